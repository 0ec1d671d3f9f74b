"""``di simulate`` as it is typed."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pytest
from di_engine.cli import run

SMALL = ["simulate", "--requests", "40", "--rate", "30", "--prompt", "40", "--output", "lognormal:8:0.5:30"]


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_json_repeats_for_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    first = output_of(capsys, *SMALL)
    assert first == output_of(capsys, *SMALL)
    assert first != output_of(capsys, *SMALL, "--seed", "5")
    assert (first["requests"], first["finished"]) == (40, 40)
    assert first["prompt_tokens"] == 1600


def test_the_table_tells_times_fairness_and_use(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--users", "2", "--ranks", "2", "--max-draft-tokens", "2", "--asynchronous"]
    assert run([*SMALL, *options]) == 0
    text = capsys.readouterr().out
    for label in (
        "time to first token",
        "time between tokens",
        "throughput",
        "fairness",
        "preemptions",
        "blocks in use",
        "drafts",
        "fullest rank",
    ):
        assert label in text


def test_a_trace_and_a_curve_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, curve = tmp_path / "trace.jsonl", tmp_path / "curve.json"
    trace.write_text('{"arrival": 3, "prompt": 4, "output": 2}\n')
    curve.write_text('{"constant": 1, "per_row": 0.5, "per_context_token": 0}')
    found = output_of(capsys, "simulate", "--trace", str(trace), "--curve", str(curve))
    assert found["time_to_first_token"] == pytest.approx(
        {"count": 1, "mean": 3.0, "p50": 3.0, "p90": 3.0, "p99": 3.0, "worst": 3.0}
    )
    assert found["seconds"] == pytest.approx(4.5)


def test_plots_are_written_and_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    for path in (one, two):
        assert run([*SMALL, "--ranks", "2", "--plot", str(path)]) == 0
    assert one.read_bytes().startswith(b"<?xml")
    assert one.read_bytes() == two.read_bytes()
    capsys.readouterr()
    study = tmp_path / "study.png"
    small_study = [*SMALL, "--against-reference", "--rates", "5,20", "--plot", str(study)]
    points = output_of(capsys, *small_study)["points"]
    assert study.read_bytes().startswith(b"\x89PNG")
    assert isinstance(points, list)
    assert len(points) == 2 * 2 * 3
    assert {point["contender"] for point in points} == {"reference", "homogeneous", "mixed"}


def test_plots_need_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_import = builtins.__import__

    def no_matplotlib(name: str, *arguments: object, **more: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(f"No module named {name!r}")
        return real_import(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    assert run([*SMALL, "--plot", str(tmp_path / "x.svg")]) == 1
    assert "install di-engine[plot]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--trace", "absent.jsonl"], "absent.jsonl"),
        (["--curve", "absent.json"], "absent.json"),
        (["--policy", "both"], "--policy: got 'both', allowed: mixed, homogeneous"),
        (["--rule", "none"], "--rule: got 'none', allowed: own, reference"),
        (["--rule", "reference"], "homogeneous"),
        (["--balance", "random"], "--balance: got 'random', allowed: round-robin, least-loaded"),
        (["--prompt", "zipf:0:5"], "exponent"),
        (["--classes", "1,x"], "--classes"),
        (["--rate", "0"], "rate"),
        (["--max-num-batched-tokens", "3"], "max_num_batched_tokens"),
        (["--acceptance", "2"], "acceptance"),
    ],
)
def test_bad_options_are_named(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["simulate", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_bad_trace_is_named_by_line_and_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival": 0, "prompt": 1, "output": 1}\n{"arrival": 0, "prompt": 0, "output": 1}\n')
    assert run(["simulate", "--trace", str(path)]) == 2
    assert "line 2, prompt: got 0, allowed: an integer from 1" in capsys.readouterr().err
