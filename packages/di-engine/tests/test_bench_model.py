"""``di bench model``: which steps are timed, what counts as inside kernels, and how peers are compared."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from di_engine.benchmark.generated import generated_config, write_generated
from di_engine.benchmark.layer import stored_tensors
from di_engine.benchmark.measure import using_threads
from di_engine.benchmark.model import (
    BATCHES,
    PREFILL_TOKENS,
    PROMPT_TOKENS,
    ModelTiming,
    StepTimes,
    measure_ceilings,
    measure_model,
    settle,
)
from di_engine.benchmark.native_clock import native_clock
from di_engine.benchmark.peers.llama_cpp_model import Sizes, sizes_for
from di_engine.benchmark.peers.models import measure_llama_cpp, measure_transformers
from di_engine.benchmark.peers.process import PeerError, run_peer
from di_engine.benchmark.record import read_record
from di_engine.benchmark.timing import Timing
from di_engine.benchmark.work import Ceilings, Work
from di_engine.cli import run
from di_engine.cli.bench_output import unpinned, using_kernels
from di_engine.config import EngineConfig
from di_engine.loading import load_model
from di_kernels import _native
from di_kernels.ceilings import dot_peak
from di_kernels.ops.norm import rms_norm
from di_model.checkpoint import load_checkpoint
from di_model.config import ModelConfig
from di_model.tensors import Part, expected_tensors
from di_model.testing import tiny_config
from torch import ones

ECHO = """
import json, sys
print(json.dumps({"arguments": sys.argv[1:], "given": json.load(sys.stdin)}))
"""
TRANSFORMERS = """
import json, sys
text = json.load(sys.stdin)
print(json.dumps({"version": "9.9", "seconds": {"float32": [text["hidden_size"], 2.0], "bfloat16": [3.0, 4.0]}}))
"""
LLAMA_CPP = """
import json, sys
size = float(sys.argv[2])
seconds = {"decode": [0.5, 0.25], "prefill": [8.0, 4.0]}
print(json.dumps({"version": "9.9", "token_bytes": size * 1.5, "token_flops": 10.0, "seconds": seconds}))
"""
"""Scripts with the manners of the peers'."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generated(tmp_path_factory.mktemp("model") / "tiny", tiny_config())


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "peer.py"
    path.write_text(text)
    return path


def test_the_generated_model_has_about_a_hundred_million_active_parameters() -> None:
    config = ModelConfig.from_dict(generated_config())
    text, active = config.text, 0.0
    for spec in expected_tensors(config).values():
        if spec.part not in (Part.EMBEDDING, Part.ENGRAM_TABLE, Part.VISION):
            chosen = text.num_experts_per_tok / text.n_routed_experts if spec.part is Part.EXPERTS else 1
            active += spec.parameters * chosen
    assert 95e6 < active < 115e6
    roles = text.layers
    assert {role.ratio for role in roles} == {0, 1, 2}
    assert any(role.engram is not None for role in roles)


def test_a_written_model_loads(tiny: Path) -> None:
    config = ModelConfig.from_file(tiny)
    checkpoint = load_checkpoint(tiny, config=config)
    assert len(checkpoint.weights.layers) == config.text.num_hidden_layers


def test_the_clock_counts_native_calls_only_while_it_is_there() -> None:
    before = {name: getattr(_native, name) for name in dir(_native)}
    x, weight = ones(512, 512), ones(512)
    with native_clock() as clock:
        time.sleep(0.01)
        assert clock.read() == 0.0
        start = time.perf_counter()
        rms_norm(x, weight, 1e-6)
        assert 0.0 < clock.read() <= time.perf_counter() - start
        assert clock.read() == 0.0
    assert {name: getattr(_native, name) for name in dir(_native)} == before
    rms_norm(x, weight, 1e-6)
    assert clock.read() == 0.0


def test_steps_of_every_shape_are_timed(tiny: Path) -> None:
    seen = []
    timings = measure_model("tiny", tiny, 1, 3, seen.append)
    assert seen == timings
    assert [(timing.name, timing.sequences, timing.tokens) for timing in timings] == [
        *(("decode", batch, batch) for batch in BATCHES),
        ("prefill", 1, PREFILL_TOKENS),
    ]
    for timing in timings:
        assert (timing.model, timing.threads, timing.times.step.count) == ("tiny", 1, 3)
        assert 0 < timing.times.outside.minimum < timing.times.step.minimum
        assert timing.times.outside.median < timing.times.step.median
        assert timing.tokens_per_second == timing.tokens / timing.times.step.minimum
        assert timing.of_floor == timing.ceilings.floor(timing.work) / timing.times.step.minimum
        assert timing.outside_share == timing.times.outside.minimum / timing.times.step.minimum
    assert timings[1].work.read > timings[0].work.read
    assert timings[2].work.flops > 100 * timings[0].work.flops


def test_time_that_others_had_does_not_lower_the_ceilings_of_one_thread(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(EngineConfig(model=tiny, load_draft=False))
    monkeypatch.setattr("di_kernels.ceilings.MemoryRead", lambda buffers: lambda: time.sleep(0.05))
    read = sum(tensor.nbytes // 64 * 64 for tensor in stored_tensors(loaded.model.weights))
    with using_threads(1):
        assert measure_ceilings(loaded)[0].read > read / 0.05
    with using_threads(2):
        assert measure_ceilings(loaded)[0].read <= read / 0.05


def test_steps_of_a_run_have_its_best_ceilings_and_tell_who_did_not_see_them() -> None:
    def timing(model: str, threads: int, read: float, dot: float, disturbed: bool = False) -> ModelTiming:
        least = Timing(3, 0.25, 0.25, 0.5)
        times = StepTimes(least, Timing(3, 0.05, 0.1, 0.4), disturbed)
        return ModelTiming(
            model, "decode", 1, 1, threads, times, Work(10), Ceilings(read, dot), times.disturbed
        )

    found = settle(
        [
            timing("a", 1, 80.0, 100.0),
            timing("a", 1, 90.0, 84.0),
            timing("b", 1, 40.0, 100.0, disturbed=True),
            timing("a", 2, 85.0, 170.0),
        ]
    )
    assert [each.ceilings for each in found] == [
        *[Ceilings(90.0, 100.0)] * 2,
        Ceilings(40.0, 100.0),
        Ceilings(85.0, 170.0),
    ]
    assert [each.disturbed for each in found] == [False, True, True, False]
    assert found[0].outside_share == 0.2
    assert found[0].of_floor == 10 / 90 / 0.25


def test_a_peers_script_gets_arguments_and_input(tmp_path: Path) -> None:
    found = run_peer(Path(sys.executable), script(tmp_path, ECHO), ["--a", "1"], {"b": 2})
    assert found == {"arguments": ["--a", "1"], "given": {"b": 2}}
    with pytest.raises(PeerError, match="no JSON object"):
        run_peer(Path(sys.executable), script(tmp_path, "print('hello')"), [])
    with pytest.raises(PeerError, match="no JSON object"):
        run_peer(Path(sys.executable), script(tmp_path, "print('[1]')"), [])
    with pytest.raises(PeerError, match="exit code 3: out of luck"):
        run_peer(
            Path(sys.executable),
            script(tmp_path, "import sys; print('out of luck', file=sys.stderr); sys.exit(3)"),
            [],
        )


def test_transformers_has_a_step_for_each_dtype(tmp_path: Path) -> None:
    python, text = Path(sys.executable), {"hidden_size": 1.0}
    steps = measure_transformers(python, "nano", text, 2, PROMPT_TOKENS, 2, script(tmp_path, TRANSFORMERS))
    assert [(step.peer, step.step.minimum) for step in steps] == [
        ("transformers 9.9, float32", 1.0),
        ("transformers 9.9, bfloat16", 3.0),
    ]
    assert {(step.model, step.name, step.tokens, step.threads) for step in steps} == {
        ("nano", "decode", 1, 2)
    }


def test_llama_cpp_tells_bytes_of_a_decode_and_operations_of_both(tmp_path: Path) -> None:
    python = Path(sys.executable)
    decode, prefill = measure_llama_cpp(python, "generated", 100, 1, 128, 512, 2, script(tmp_path, LLAMA_CPP))
    assert (decode.name, decode.tokens, decode.step.minimum) == ("decode", 1, 0.25)
    assert (decode.read, decode.flops) == (150.0, 10.0)
    assert (prefill.name, prefill.tokens, prefill.step.minimum) == ("prefill", 512, 4.0)
    assert (prefill.read, prefill.flops) == (None, 5120.0)


def test_llama_cpps_model_reads_as_many_bytes_as_it_should() -> None:
    for wanted in (60e6, 118e6, 1e9):
        assert sizes_for(wanted).token_bytes() == pytest.approx(wanted, rel=0.1)
    one = Sizes(layers=1, hidden=64, inter=32, experts=4, used=2, vocab=100, heads=2, kv_heads=1)
    attention = 2 * 128 * 64 * 2 + 2 * 128 * 64
    experts = 2 * 3 * 64 * 32
    router = 4 * 64
    assert one.token_bytes() == attention * 34 / 32 + experts * 17 / 32 + 4 * router + 6400 * 34 / 32
    assert one.token_flops() == 2 * (attention + experts + router)


def test_the_command_prints_tables_and_writes_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from di_engine.benchmark.peers import models

    peer = script(tmp_path, TRANSFORMERS)
    monkeypatch.setattr(models.measure_transformers, "__defaults__", (peer,))
    out = tmp_path / "record.json"
    arguments = ["bench", "model", "--model", "nano", "--threads", "1", "--steps", "3"]
    assert run([*arguments, "--peer-python", sys.executable, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "outside" in text
    assert "bound" in text
    assert re.search(r"G(B|FLOP)/s +\d+ %|disturbed", text)
    assert "transformers 9.9, float32" in text
    results = read_record(out)["results"]
    assert [each["family"] for each in results] == ["model"] * 3 + ["peer"] * 2
    decode, peer_step = results[0], results[3]
    assert peer_step["ratio"] == pytest.approx(peer_step["step"]["minimum"] / decode["seconds"])
    assert run([*arguments, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 3


@pytest.mark.parametrize(
    "option", [("--model", "nothing"), ("--threads", "0"), ("--steps", "1"), ("--instruction-set", "z80")]
)
def test_options_are_checked(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "model", *option]) == 2
    assert option[0] in capsys.readouterr().err


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="the system does not tell where a process may run"
)
def test_peers_are_not_pinned() -> None:
    before = os.sched_getaffinity(0)
    with using_kernels(None, pin=True):
        dot_peak(1)
        assert len(os.sched_getaffinity(0)) == 1
        with unpinned():
            assert os.sched_getaffinity(0) == before
        dot_peak(1)
        assert len(os.sched_getaffinity(0)) == 1
    dot_peak(1)
    assert os.sched_getaffinity(0) == before


def test_a_peer_that_fails_is_told_when_all_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from di_engine.benchmark.peers import models

    peer = script(tmp_path, "raise SystemExit('no transformers here')")
    monkeypatch.setattr(models.measure_transformers, "__defaults__", (peer,))
    out = tmp_path / "record.json"
    arguments = ["bench", "model", "--model", "nano", "--threads", "1", "--steps", "3", "--out", str(out)]
    assert run([*arguments, "--peer-python", sys.executable]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("di: --peer-python: not measured beside a peer: ")
    assert "no transformers here" in captured.err
    assert "outside" in captured.out
    assert [each["family"] for each in read_record(out)["results"]] == ["model"] * 3


@pytest.mark.parametrize("command", ["model", "scheduler"])
def test_a_peer_that_is_not_there_is_told_before_anything_is_measured(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("di_engine.benchmark.timing.LoadMeter", lambda: pytest.fail("begun to measure"))
    assert run(["bench", command, "--peer-python", "/nowhere/python"]) == 2
    assert capsys.readouterr().err.startswith("di: --peer-python: got '/nowhere/python', allowed: ")
