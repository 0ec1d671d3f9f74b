"""The reference model on a small random checkpoint of our own: consistency, gradients, drafts and errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from di_kernels.ops.linear import LinearWeight
from di_kernels.reference.linear import dequantize
from di_model.checkpoint import Checkpoint, load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.numerics import Numerics
from di_model.reference import ReferenceModel
from di_model.testing import tiny_config, write_checkpoint
from di_model.trace import Trace, Traced
from torch import Tensor

IDS = torch.randint(3, 320, (40,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return load_checkpoint(write_checkpoint(tmp_path_factory.mktemp("tiny"), seed=5))


def reference(checkpoint: Checkpoint, numerics: Numerics) -> ReferenceModel:
    engram = derive_engram(checkpoint.config, checkpoint.path)
    return ReferenceModel(checkpoint.config, checkpoint.weights, engram, numerics)


@pytest.mark.parametrize("numerics", list(Numerics))
def test_a_position_depends_on_nothing_behind_it(tiny: Checkpoint, numerics: Numerics) -> None:
    model = reference(tiny, numerics)
    whole = model.forward(IDS)
    changed = IDS.clone()
    changed[25:] = changed[25:].flip(0)
    other = model.forward(changed)
    # Plain float32 products may differ in the last bit with the rows beside them; the release's are exact.
    tolerance = 2e-5 if numerics is Numerics.FLOAT32 else 0.0
    assert torch.allclose(whole.logits[:25], other.logits[:25], atol=tolerance, rtol=0)
    assert torch.allclose(whole.features[:25], other.features[:25], atol=tolerance, rtol=0)
    assert not torch.allclose(whole.logits[25:], other.logits[25:], atol=1e-2, rtol=0)


def test_a_prefix_gives_the_same_logits(tiny: Checkpoint) -> None:
    model = reference(tiny, Numerics.FLOAT32)
    whole = model.forward(IDS).logits
    for length in (1, 2, 7, 8, 9, 33):
        assert torch.allclose(model.forward(IDS[:length]).logits, whole[:length], atol=2e-5, rtol=0)


def test_distant_tokens_reach_the_last_position_through_compressed_entries(tiny: Checkpoint) -> None:
    """The window is 8 tokens, so the first token acts through entries only; all layers window-only would hide it."""
    model = reference(tiny, Numerics.FLOAT32)
    changed = IDS.clone()
    changed[0] = 200 if int(IDS[0]) != 200 else 201
    assert not torch.equal(model.forward(IDS).logits[9:], model.forward(changed).logits[9:])


def test_quantized_and_plain_checkpoints_agree_in_float32(tiny: Checkpoint, tmp_path: Path) -> None:
    plain = load_checkpoint(write_checkpoint(tmp_path, tiny_config(quantized=False), seed=5))
    assert plain.config.quantization is None
    expected = reference(tiny, Numerics.FLOAT32).forward(IDS).logits
    assert torch.equal(reference(plain, Numerics.FLOAT32).forward(IDS).logits, expected)


def test_release_numerics_round_but_do_not_change_the_model(tiny: Checkpoint) -> None:
    exact = reference(tiny, Numerics.FLOAT32).forward(IDS).logits
    rounded = reference(tiny, Numerics.RELEASE).forward(IDS).logits
    error = (rounded - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 1e-4 < float(error) < 0.35


@pytest.mark.parametrize("numerics", list(Numerics))
def test_layers_run_from_recorded_inputs_repeat_the_forward_pass(
    tiny: Checkpoint, numerics: Numerics
) -> None:
    model, whole, again = reference(tiny, numerics), Trace(), Trace()
    model.forward(IDS, whole)
    state = model.start(IDS)
    for role in tiny.config.text.layers:
        stream, pre = whole.get(Traced.IN_STREAM, role.index), whole.get(Traced.IN_MIX, role.index)
        topk = None if role.index_source is None else whole.get(Traced.TOPK, role.index_source)
        model.layer(role.index, stream, pre, state, topk=topk, trace=again)
    for name in (Traced.OUT_STREAM, Traced.OUT_MIX, Traced.MOE_EXPERT):
        for layer in whole.layers(name):
            assert torch.equal(again.get(name, layer), whole.get(name, layer)), (name, layer)


def test_a_given_selection_replaces_the_layers_own(tiny: Checkpoint) -> None:
    model, trace = reference(tiny, Numerics.FLOAT32), Trace()
    model.forward(IDS, trace)
    source = tiny.config.text.index_source_layer_ids[0]
    stream, pre = trace.get(Traced.IN_STREAM, source), trace.get(Traced.IN_MIX, source)
    nothing = torch.full_like(trace.get(Traced.TOPK, source), -1)
    own, _ = model.layer(source, stream, pre, model.start(IDS))
    given, _ = model.layer(source, stream, pre, model.start(IDS), topk=nothing)
    assert torch.equal(own[0], given[0])  # no entry exists for the first position
    assert not torch.equal(own, given)


def test_selections_stay_inside_candidate_blocks(tiny: Checkpoint) -> None:
    text, trace = tiny.config.text, Trace()
    reference(tiny, Numerics.FLOAT32).forward(IDS, trace)
    source = text.candidate_source_layer_id
    assert source is not None
    blocks = trace.get(Traced.CANDIDATES, source)
    restricted = [role.index for role in text.layers if role.is_index_source and role.index > source]
    assert restricted
    for layer in restricted:
        selected = trace.get(Traced.TOPK, layer)
        inside = (selected[:, :, None] // text.candidate_block_size == blocks[:, None, :]).any(dim=2)
        assert bool(inside[selected >= 0].all())


def test_gradients_of_every_parameter_are_finite_and_match_differences(tiny: Checkpoint) -> None:
    weights = _trainable(tiny.weights)
    engram = derive_engram(tiny.config, tiny.path)
    model = ReferenceModel(tiny.config, weights, engram, Numerics.FLOAT32)
    target = torch.roll(IDS, -1).long()

    def loss() -> Tensor:
        return torch.nn.functional.cross_entropy(model.forward(IDS).logits[:-1], target[:-1])

    loss().backward()
    backbone = dataclasses.replace(weights, draft=None, vision={})
    gradients = [leaf.grad for leaf in _leaves(backbone) if leaf.grad is not None]
    assert len(gradients) > 100
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    for leaf in (weights.norm, weights.layers[0].attn.wkv.data, weights.layers[2].ffn_norm):
        _assert_slope(leaf, loss)


def _assert_slope(leaf: Tensor, loss: Any) -> None:
    """The loss changes along the gradient as the gradient says."""
    gradient = leaf.grad
    assert gradient is not None
    direction, step = gradient / gradient.norm(), 2e-2 / gradient.numel() ** 0.5
    with torch.no_grad():
        leaf += step * direction
        ahead = loss()
        leaf -= 2 * step * direction
        behind = loss()
        leaf += step * direction
    assert float((ahead - behind) / (2 * step)) == pytest.approx(float(gradient.norm()), rel=0.05)


def test_release_numerics_pass_gradients_through_the_quantizers(tiny: Checkpoint) -> None:
    weights = dataclasses.replace(tiny.weights, embed=tiny.weights.embed.detach().clone().requires_grad_())
    engram = derive_engram(tiny.config, tiny.path)
    model = ReferenceModel(tiny.config, weights, engram, Numerics.RELEASE)
    model.forward(IDS).logits.square().mean().backward()
    gradient = weights.embed.grad
    assert gradient is not None
    assert bool(gradient.isfinite().all())
    assert bool((gradient[IDS.long()] != 0).any())


def test_a_draft_block_has_the_markov_term_and_sees_only_the_past(tiny: Checkpoint) -> None:
    model = reference(tiny, Numerics.FLOAT32)
    features = model.forward(IDS).features
    block = model.draft(features, int(IDS[20]), 20)
    assert block.tokens.shape == (5,)
    assert block.logits.shape == (5, 320)
    assert block.confidence.shape == (5,)
    assert torch.equal(block.tokens.long(), block.logits.argmax(dim=1))
    again = model.draft(features[:20], int(IDS[20]), 20)
    assert torch.equal(block.logits, again.logits)
    window = tiny.config.text.sliding_window
    far = features.clone()
    far[: 20 - window] = 0
    assert torch.equal(model.draft(far, int(IDS[20]), 20).logits, block.logits)
    near = features.clone()
    near[20 - window] = 0
    assert not torch.equal(model.draft(near, int(IDS[20]), 20).logits, block.logits)


def test_draft_length_and_errors(tiny: Checkpoint) -> None:
    model = reference(tiny, Numerics.FLOAT32)
    features = model.forward(IDS[:4]).features
    assert len(model.draft(features, 7, 4, 2).tokens) == 2
    with pytest.raises(ValueError, match="position is 5"):
        model.draft(features, 7, 5)
    with pytest.raises(ValueError, match="length is 0"):
        model.draft(features, 7, 4, 0)
    bare = ReferenceModel(
        tiny.config,
        dataclasses.replace(tiny.weights, draft=None),
        derive_engram(tiny.config, tiny.path),
        Numerics.FLOAT32,
    )
    with pytest.raises(ValueError, match="no draft model"):
        bare.draft(features, 7, 4)


def test_bad_inputs_are_named(tiny: Checkpoint) -> None:
    model = reference(tiny, Numerics.FLOAT32)
    with pytest.raises(ValueError, match=r"ids has shape \[0\]"):
        model.forward(torch.empty(0, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"ids has shape \[1, 2\]"):
        model.forward(torch.zeros((1, 2), dtype=torch.int32))
    with pytest.raises(ValueError, match="engram is None"):
        ReferenceModel(tiny.config, tiny.weights, None, Numerics.FLOAT32)


def test_a_trace_joins_steps_and_names_what_is_missing() -> None:
    trace = Trace()
    trace("topk", 3, torch.zeros(2, 4))
    trace("topk", 3, torch.ones(1, 4))
    assert trace.get("topk", 3).shape == (3, 4)
    assert trace.layers("topk") == (3,)
    assert ("topk", 2) not in trace
    with pytest.raises(KeyError, match="'topk' of layer 2"):
        trace.get("topk", 2)
    with pytest.raises(ValueError, match="nonsense"):
        trace("nonsense", 0, torch.zeros(1))


def _trainable(value: Any) -> Any:
    """The same weights as float32 leaves that require gradients."""
    if isinstance(value, LinearWeight):
        return LinearWeight.dense(dequantize(value).clone().requires_grad_())
    if isinstance(value, Tensor):
        return value.to(torch.float32).clone().requires_grad_() if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(_trainable(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _trainable(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, LinearWeight):
        return _leaves(value.data)
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [leaf for field in dataclasses.fields(value) for leaf in _leaves(getattr(value, field.name))]
    return []
