"""The FLOPs estimator's view of a model."""

import dataclasses
from pathlib import Path

import pytest
from di_engine.flops import model_shape
from di_model.config import ModelConfig
from di_model.numerics import Numerics
from di_model.testing import tiny_config
from di_scheduler.flops import FlopsEstimator, Precision


def released() -> ModelConfig:
    """The released configuration; skips where the shared folder is absent."""
    for parent in Path(__file__).resolve().parents:
        file = parent / "shared" / "data" / "deepseek-v4.1" / "config.json"
        if file.is_file():
            return ModelConfig.from_file(file)
    pytest.skip("no shared/data/deepseek-v4.1/config.json next to the repository")


def test_the_layers_of_a_tiny_model() -> None:
    text = ModelConfig.from_dict(tiny_config()).text
    shape = model_shape(ModelConfig.from_dict(tiny_config()))
    assert len(shape.layers) == text.num_hidden_layers
    assert [i for i, layer in enumerate(shape.layers) if layer.stores_kv] == list(text.kv_source_layer_ids)
    assert [i for i, layer in enumerate(shape.layers) if layer.computes_index] == list(
        text.index_source_layer_ids
    )
    assert [i for i, layer in enumerate(shape.layers) if layer.has_engram] == sorted(text.engram_layer_ids)
    assert [layer.ratio for layer in shape.layers] == list(text.compress_ratios[: len(shape.layers)])
    assert shape.layers[shape.producer_layers].ratio == 1


def test_the_released_model() -> None:
    shape = model_shape(released())
    assert shape.producer_layers == 20
    assert [i for i, layer in enumerate(shape.layers) if layer.stores_index_keys] == [2, 8, 14, 20]
    assert [i for i, layer in enumerate(shape.layers) if layer.uses_candidates] == [24, 28, 32, 36]
    assert shape.engram_width == 3 * 8 * 256


def test_a_row_of_the_released_model_costs_two_flops_a_weight_it_meets() -> None:
    """Without context, the estimate is the weights of the projections, at their precision, and little else."""
    config = released()
    text = config.text
    shape = model_shape(config)
    hidden, expert = text.hidden_size, 3 * text.hidden_size * text.moe_intermediate_size
    q_out = text.num_attention_heads * text.head_dim
    attention = hidden * (text.q_lora_rank + text.head_dim) + text.q_lora_rank * q_out
    attention += q_out * text.o_lora_rank + text.o_groups * text.o_lora_rank * hidden
    weights = text.num_hidden_layers * (
        attention + expert * (text.num_experts_per_tok + text.n_shared_experts)
    )
    decode = FlopsEstimator(shape).estimate([1], [1], [False])
    floor = 2 * weights + 4 * hidden * text.vocab_size
    assert floor < decode.total[0] < 1.2 * floor


def test_precisions_follow_weights_and_numerics() -> None:
    quantized = model_shape(ModelConfig.from_dict(tiny_config()))
    plain = model_shape(ModelConfig.from_dict(tiny_config(quantized=False)))
    exact = model_shape(ModelConfig.from_dict(tiny_config()), Numerics.FLOAT32)
    assert (quantized.expert_precision, quantized.index_precision) == (Precision.FP8, Precision.FP4)
    assert dataclasses.replace(plain, index_precision=quantized.index_precision) == dataclasses.replace(
        quantized,
        attention_precision=Precision.BF16,
        expert_precision=Precision.BF16,
        engram_precision=Precision.BF16,
    )
    assert {exact.attention_precision, exact.expert_precision, exact.index_precision} == {Precision.FP32}
    costs = [
        FlopsEstimator(shape).estimate([4], [64], [True]).total[0] for shape in (quantized, plain, exact)
    ]
    assert costs == sorted(costs)
    assert len(set(costs)) == 3
