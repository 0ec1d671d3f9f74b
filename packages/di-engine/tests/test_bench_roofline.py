"""The picture of written records, and what is predicted from shares of the ceilings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from di_engine.benchmark.model_work import ModelWork, StepShape
from di_engine.benchmark.prediction import Shares, footprint, predict
from di_engine.benchmark.release import ONE_OF_EACH
from di_engine.benchmark.roofline import points, roof
from di_engine.benchmark.work import Ceilings
from di_engine.cli import run
from di_model.config import ModelConfig
from di_model.tensors import expected_tensors
from di_model.testing import tiny_config


def result(family: str = "linear", threads: int = 1, **changes: Any) -> dict[str, Any]:
    made = {
        "family": family,
        "name": "name",
        "threads": threads,
        "read_bytes": 100,
        "flops": 400,
        "seconds": 2.0,
        "read_ceiling": 60.0,
        "dot_ceiling": 500.0,
        "peer": "torch bfloat16",
        "peer_seconds": 4.0,
        "peer_read_bytes": 200,
    }
    return {**made, **changes}


PEER_STEP = {
    "family": "peer",
    "peer": "llama.cpp (llama-cpp-python 1)",
    "name": "decode",
    "threads": 1,
    "read": 50.0,
    "flops": 100.0,
    "step": {"minimum": 0.5},
}


MACHINE = dict.fromkeys(
    ("date", "processor", "cores", "memory", "last_level_cache", "instruction_set", "versions"), ""
)


def record(*results: dict[str, Any]) -> str:
    return json.dumps({"benchmark": "kernels", "machine": MACHINE, "results": results, "foreign_load": None})


def test_points_are_rates_over_intensity() -> None:
    ours, torchs = points([result(), result(threads=2)], 1)
    assert (ours.intensity, ours.flops, ours.is_peer) == (4.0, 200.0, False)
    assert (torchs.label, torchs.intensity, torchs.flops, torchs.is_peer) == (
        "torch bfloat16",
        2.0,
        100.0,
        True,
    )


def test_what_computes_nothing_or_reads_an_unknown_amount_is_left_out() -> None:
    assert points([result(flops=0)], 1) == []
    assert points([result("step")], 1) == []
    assert points([result(disturbed=True)], 1) == []
    assert points([{**PEER_STEP, "read": None}], 1) == []
    [point] = points([PEER_STEP], 1)
    assert (point.label, point.intensity, point.flops) == ("llama.cpp", 2.0, 200.0)


def test_the_roof_is_that_of_buffers_in_memory() -> None:
    cached = result("attention", read_ceiling=1000.0)
    ceiling = roof([result(), cached, result(read_ceiling=80.0), result(threads=2)], 1)
    assert ceiling is not None
    assert (ceiling.read, ceiling.dot) == (70.0, 500.0)
    assert ceiling.at(1.0) == 70.0
    assert ceiling.at(100.0) == 500.0
    assert roof([cached], 1) == roof([cached], 1)
    assert roof([result()], 2) is None


def test_what_other_work_disturbed_is_no_roof() -> None:
    disturbed = result(read_ceiling=1.0, dot_ceiling=1.0, disturbed=True)
    assert roof([result(), disturbed], 1) == roof([result()], 1)
    assert roof([disturbed], 1) is None


@pytest.mark.filterwarnings("error")
def test_what_has_no_place_in_the_picture_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file, out = tmp_path / "record.json", tmp_path / "roofline.svg"
    command = ["bench", "roofline", str(file), "--out", str(out)]
    file.write_text(record(result(), result("step", threads=2), result("top-k", threads=2)))
    assert run(command) == 0
    assert "left out: families that have no place in the picture: step, top-k" in capsys.readouterr().out
    assert "2 threads" not in out.read_text()  # a panel without a point
    file.write_text(record(result(), result(threads=2, disturbed=True)))
    assert run(command) == 0
    assert "left out: results that other work disturbed (1)" in capsys.readouterr().out
    file.write_text(record(result()))
    assert run(command) == 0
    assert "left out" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["roofline.bmp", "roofline", "roofline.svg.gz"])
def test_an_unknown_ending_of_the_picture_is_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "roofline", "record.json", "--out", name]) == 2
    assert f"--out: got '{name}', allowed: names that end in .svg, .png, .pdf" in capsys.readouterr().err


def test_the_command_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file, out = tmp_path / "record.json", tmp_path / "roofline.svg"
    file.write_text(record(result(), result(threads=2), PEER_STEP))
    assert run(["bench", "roofline", str(file), "--out", str(out)]) == 0
    text = out.read_text()
    assert "1 thread" in text
    assert "2 threads" in text
    assert "torch bfloat16" in text
    first = out.read_bytes()
    assert run(["bench", "roofline", str(file), "--out", str(out)]) == 0
    assert out.read_bytes() == first  # the same records give the same file
    file.write_text(record(PEER_STEP))
    assert run(["bench", "roofline", str(file), "--out", str(out)]) == 2
    assert "no result with a ceiling" in capsys.readouterr().err
    assert run(["bench", "roofline", str(tmp_path / "nothing.json"), "--out", str(out)]) == 2


def test_a_footprint_is_every_weight_once() -> None:
    config = ModelConfig.from_dict(tiny_config(text=ONE_OF_EACH))
    found = footprint(config)
    specs = expected_tensors(config).values()
    vision = sum(spec.nbytes for spec in specs if spec.part.value == "vision")
    assert found.memory + found.tables == sum(spec.nbytes for spec in specs) - vision
    assert found.tables == sum(spec.nbytes for spec in specs if ".engram.embed" in spec.name)


def test_a_prediction_is_a_share_of_the_floor() -> None:
    work = ModelWork(ModelConfig.from_dict(tiny_config(text=ONE_OF_EACH)))
    ceilings = Ceilings(1e9, 1e12)
    found = predict(work, ceilings, Shares(0.5, 0.25, 0.75), 64)
    assert found.decode_1 == pytest.approx(0.5 / ceilings.floor(work.step(StepShape(1, 64, 1))))
    assert found.decode_16 == pytest.approx(16 * 0.25 / ceilings.floor(work.step(StepShape(16, 64, 1))))
    assert found.prefill == pytest.approx(64 * 0.75 / ceilings.floor(work.step(StepShape(1, 0, 64))))


def test_the_command_predicts_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "predict", "--read", "100,200", "--dot", "1,2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    slow, fast = (row["tokens_per_second"] for row in found["predictions"])
    for name in ("decode_1", "decode_16", "prefill"):
        assert fast[name] == pytest.approx(2 * slow[name])
    assert 280e9 < found["footprint"]["memory"] < 310e9
    assert run(["bench", "predict", "--read", "100"]) == 0
    assert "tokens a second" in capsys.readouterr().out


@pytest.mark.parametrize("option", [("--read", "0"), ("--read", "x"), ("--dot", "1,2,3"), ("--dot", "inf")])
def test_options_are_checked(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "predict", *option]) == 2
    assert option[0] in capsys.readouterr().err
