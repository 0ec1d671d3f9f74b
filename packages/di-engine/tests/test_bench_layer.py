"""``di bench layer`` and the counts behind it, on a small model that has one layer of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from di_cache import CachePool
from di_engine.benchmark import layer
from di_engine.benchmark.layer import KINDS, STEPS, Kind, LayerBench, Step, experts_hit, experts_in_memory
from di_engine.benchmark.layer_model import Layout, filled_cache, layers_of, step_arrays
from di_engine.benchmark.measure import Reached, measure
from di_engine.benchmark.model_work import ModelWork, StepShape, expected_experts
from di_engine.benchmark.record import read_record
from di_engine.benchmark.release import ONE_OF_EACH, released_config
from di_engine.benchmark.work import Ceilings, Work
from di_engine.cli import run
from di_engine.cli.bench_layer import _chosen
from di_kernels.testing import assert_same_bits
from di_model.batch import build_batch
from di_model.config import ModelConfig
from di_model.native import NativeModel
from di_model.tensors import Part, expected_tensors
from di_model.testing import tiny_config

SHAPES = (StepShape(1, 64, 1), StepShape(3, 64, 1), StepShape(1, 0, 20))


@pytest.fixture(scope="module")
def released() -> ModelConfig:
    return released_config()


@pytest.fixture(scope="module", params=Layout)
def bench(request: pytest.FixtureRequest) -> LayerBench:
    return LayerBench.build(ModelConfig.from_dict(tiny_config(text=ONE_OF_EACH)), request.param)


def test_a_decode_step_reads_every_weight_but_other_experts(released: ModelConfig) -> None:
    """The release, one token behind 8192 others: weights, and caches by hand."""
    config = released
    work, text = ModelWork(config), config.text
    counted = work.step(StepShape(1, 8192, 1))
    whole = sum(
        spec.nbytes
        for spec in expected_tensors(config).values()
        if spec.part not in (Part.EXPERTS, Part.ENGRAM_TABLE, Part.EMBEDDING, Part.VISION)
        and spec.name != "norm.weight"
        and not spec.name.endswith("gate.bias_vl")
        and not spec.name.startswith("mtp.")
    )
    experts = 40 * 6 * 3 * 5120 * 2304 * 17 // 32
    window = 40 * 127 * 528
    entries = 38 * 512 * 288
    # Four sources of ratio 2 or 1 score what they see; at ratio 1 the source does, four layers its candidates.
    index = (3 * 4096 + 8193 + 4 * 8193) * 68
    engram = 2 * 24 * 264
    embedding = 2 * 5120
    assert counted.read == whole + experts + window + entries + index + engram + embedding
    assert work.expert_bytes == 3 * 5120 * 2304 * 17 // 32
    active = 2 * (text.vocab_size * 5120 + 40 * 7 * 3 * 5120 * 2304)
    assert active < counted.flops < 1.8 * active


def test_many_rows_of_a_sequence_read_its_caches_once(released: ModelConfig) -> None:
    config = released
    work, role = ModelWork(config), config.text.layers[3]
    alone, chunk = (work.layer(role, StepShape(1, 8192, rows), experts=6) for rows in (1, 64))
    assert chunk.read - alone.read == (4128 - 512) * 288  # all visible entries, where one row selects 512
    assert chunk.flops > 60 * alone.flops
    batch = work.layer(role, StepShape(64, 8192, 1), experts=6)
    assert batch.read - alone.read == 63 * (127 * 528 + 512 * 288)


def test_expected_experts() -> None:
    assert expected_experts(384, 6, 1) == pytest.approx(6)
    assert expected_experts(384, 6, 16) == pytest.approx(85.5, abs=0.1)
    assert expected_experts(8, 8, 3) == 8


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_runs_through_each_kind(bench: LayerBench, shape: StepShape) -> None:
    cache = filled_cache(bench.config, shape)
    for kind in KINDS:
        case = bench.case(kind, Step("step", shape), cache)
        reached = measure(case, 0.0)
        assert reached.rows == shape.num_rows
        assert reached.work.read > 0
        assert reached.of_floor > 0
        hidden = layers_of(bench.model, kind.layers).forward(
            build_batch(cache.layout, **step_arrays(bench.config, cache.layout, shape)), cache
        )
        assert bool(hidden.hidden.isfinite().all())


def test_what_is_read_is_what_is_counted(bench: LayerBench) -> None:
    """Buffers of a case are the weights of its work; what is left are caches and rows of the Engram table."""
    shape = SHAPES[0]
    cache = filled_cache(bench.config, shape)
    for kind in KINDS:
        case = bench.case(kind, Step("step", shape), cache)
        read = sum(buffer.numel() for buffer in case.buffers[0])
        caches = sum(
            work.read
            for index in kind.layers
            for work in bench.work._caches(bench.config.text.layers[index], shape)
        )
        stored = not bench.model.weights.layers[0].attn.wq_b.is_packed
        assert (
            case.work.read == read + caches
            if stored
            else case.work.read < read + caches < 1.1 * case.work.read
        )


def test_the_layout_changes_no_bit() -> None:
    config, shape = ModelConfig.from_dict(tiny_config(text=ONE_OF_EACH)), SHAPES[1]
    hidden = []
    for layout in Layout:
        bench = LayerBench.build(config, layout)
        cache = filled_cache(config, shape)
        arrays = step_arrays(config, cache.layout, shape)
        hidden.append(NativeModel(bench.model, cache).forward(**arrays).hidden)
    assert_same_bits(*hidden)


def test_hit_experts_are_those_of_the_router(bench: LayerBench) -> None:
    shape = SHAPES[1]
    cache = filled_cache(bench.config, shape)
    model = layers_of(bench.model, (2, 3))
    hit = experts_hit(
        model, build_batch(cache.layout, **step_arrays(bench.config, cache.layout, shape)), cache
    )
    assert sorted(hit) == [2, 3]
    text = bench.config.text
    for experts in hit.values():
        assert text.num_experts_per_tok <= len(experts) <= text.num_experts_per_tok * shape.num_rows
        assert set(experts) <= set(range(text.n_routed_experts))


def test_layers_share_their_experts(bench: LayerBench) -> None:
    banks = {id(layer.moe.experts) for layer in bench.model.weights.layers}
    assert len(banks) == 1
    projections = {layer.attn.wq_b.data.data_ptr() for layer in bench.model.weights.layers}
    assert len(projections) == len(bench.model.weights.layers)


def test_caches_hold_numbers_and_no_more_sequences_than_the_step(bench: LayerBench) -> None:
    shape = SHAPES[1]
    cache = filled_cache(bench.config, shape)
    assert isinstance(cache, CachePool)
    assert cache.num_slots == 1 + shape.sequences
    arrays = step_arrays(bench.config, cache.layout, shape)
    assert int(arrays["block_table"].max()) == cache.num_blocks - 1
    assert arrays["tokens"].dtype == torch.int32


def test_as_many_experts_as_memory_holds(released: ModelConfig) -> None:
    config = released
    assert experts_in_memory(config, 1 << 50) == 384
    assert experts_in_memory(config, 1 << 20) == 6
    assert 100 < experts_in_memory(config, 8 << 30) < 200


def test_a_whole_name_takes_that_one_alone() -> None:
    def names(text: str, known: tuple[Kind, ...] | tuple[Step, ...]) -> list[str]:
        return [each.name for each in _chosen("--option", text, known)]

    assert names("decode, batch 1", STEPS) == ["decode, batch 1"]
    assert names("decode", STEPS) == ["decode, batch 1", "decode, batch 16"]
    assert names("ratio 2, source", KINDS) == ["ratio 2, source"]
    assert names("ratio 2", KINDS) == ["ratio 2, source", "ratio 2, source and reader"]
    assert names("", KINDS) == [kind.name for kind in KINDS]


@pytest.mark.parametrize("layout", [layout.value for layout in Layout])
def test_the_record_tells_the_layout(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Reached(
        "layer", "window only", "decode", 1, 1, Work(1), 1.0, Ceilings(1.0, 1.0), 4, None, None, None
    )
    monkeypatch.setattr(layer, "measure_layers", lambda *arguments, progress: [case])
    out = tmp_path / "record.json"
    assert run(["bench", "layer", "--layout", layout, "--experts", "8", "--out", str(out)]) == 0
    assert [each["layout"] for each in read_record(out)["results"]] == [layout]
    assert ("weights as stored" in capsys.readouterr().out) == (layout == "stored")


@pytest.mark.parametrize(
    "option", [("--kind", "round"), ("--step", "dance"), ("--threads", "0"), ("--layout", "packed,stored")]
)
def test_options_are_checked(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "layer", *option]) == 2
    assert option[0] in capsys.readouterr().err
