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
        (["--prompt", "zipf:0:5"], "--prompt: exponent: got 0.0"),
        (["--prompt", "zipf"], "--prompt: got 'zipf', allowed: N, zipf:EXPONENT:MOST or"),
        (["--output", "zipf"], "--output: got 'zipf', allowed: N, zipf:EXPONENT:MOST or"),
        (["--classes", "1,x"], "--classes"),
        (["--rate", "0"], "--rate: got 0.0"),
        (
            ["--max-num-batched-tokens", "3"],
            "--max-num-batched-tokens: got 3, allowed: at least --max-num-seqs",
        ),
        (["--max-draft-tokens", "2000"], "--max-draft-tokens must be an integer from 0 to 1024, got 2000"),
        (
            ["--rule", "reference", "--asynchronous"],
            "--asynchronous: not allowed together with --rule reference",
        ),
        (["--plot", "x.jpg"], "--plot: got 'x.jpg', allowed: names that end in .svg, .png, .pdf"),
        (["--plot", "x.foo"], "--plot: got 'x.foo', allowed: names that end in .svg, .png, .pdf"),
        (["--plot", "nowhere/x.svg"], "--plot: nowhere/x.svg: there is no such directory"),
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


HUGE = "9" * 401
"""An integer that no float can hold."""


@pytest.mark.parametrize(
    ("options", "field", "allowed"),
    [
        (["--rate", "1e-300"], "rate", "a number from 0.001 to 1000000000"),
        (["--rate", "1e-18"], "rate", "a number from 0.001 to 1000000000"),
        (["--rate", "1e300"], "rate", "a number from 0.001 to 1000000000"),
        (["--rate", "nan"], "rate", "a number from 0.001 to 1000000000"),
        (["--burst", "1e300"], "burst", "a number from 1 to 1000000"),
        (["--requests", HUGE], "requests", "an integer from 0 to 1000000"),
        (["--users", "3000000000"], "users", "an integer from 1 to 1000000"),
        (["--classes", "1e308,1e308"], "classes", "shares from 0 to 1000000000, some above 0"),
        (["--seed", str(2**64)], "seed", f"an integer from 0 to {2**64 - 1}"),
        (["--prompt", HUGE], "tokens", "an integer from 1 to 1048576"),
        (["--prompt", "zipf:1e300:5"], "exponent", "a number from 1e-06 to 100"),
        (["--prompt", "zipf:1:2000000"], "most", "an integer from 1 to 1048576"),
        (["--output", "lognormal:1e300:1:5"], "median", "a number from 1 to 1048576"),
        (["--output", "lognormal:9:1e300:5"], "sigma", "a number from 1e-06 to 10"),
        (["--ranks", "100000"], "ranks", "an integer from 1 to 256"),
        (["--snapshot-delay", "1e300"], "--snapshot-delay", "a number from 0 to 100"),
        (["--num-blocks", "2000000000"], "--num-blocks", "an integer from 2 to 1048576"),
        (["--block-size", "2000000000"], "--block-size", "an integer from 1 to 1048576"),
        (
            ["--max-num-seqs", "20000", "--max-num-batched-tokens", "20000"],
            "--max-num-seqs",
            "an integer from 1 to 16384",
        ),
        (
            ["--max-num-batched-tokens", "2000000000"],
            "--max-num-batched-tokens",
            "an integer from 1 to 1048576",
        ),
        (["--against-reference", "--rates", "1,1e300"], "rates", "a number from 0.001 to 250000000"),
        (["--against-reference", "--requests", "300000"], "requests", "an integer from 0 to 250000"),
        (["--curve", '{"constant": 1e308}'], "constant", "a number from 1e-06 to 1000"),
        (["--curve", '{"constant": 1e-300}'], "constant", "a number from 1e-06 to 1000"),
        (["--curve", f'{{"per_row": {HUGE}}}'], "per_row", "a number from 0 to 1"),
        (["--curve", '{"per_context_token": 1e308}'], "per_context_token", "a number from 0 to 1"),
        (["--curve", '{"host": 1e308}'], "host", "a number from 0 to 1000"),
        (
            ["--trace", '{"arrival": 1e300, "prompt": 7, "output": 2}'],
            "line 1, arrival",
            "seconds from 0 to 10000000000",
        ),
        (
            ["--trace", f'{{"arrival": {HUGE}, "prompt": 7, "output": 2}}'],
            "line 1, arrival",
            "seconds from 0 to 10000000000",
        ),
        (
            ["--trace", '{"arrival": 0, "prompt": 2000000, "output": 2}'],
            "line 1, prompt",
            "an integer from 1 to 1048576",
        ),
        (
            ["--trace", '{"arrival": 0, "prompt": 7, "output": 2000000}'],
            "line 1, output",
            "an integer from 1 to 1048576",
        ),
    ],
)
def test_numbers_out_of_bounds_are_named(
    options: list[str],
    field: str,
    allowed: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(["simulate", "--requests", "3", *with_files(options, tmp_path, monkeypatch)]) == 2
    error = capsys.readouterr().err
    assert f"{field}: got " in error
    assert f"allowed: {allowed}" in error


@pytest.mark.parametrize(
    "options",
    [
        ["--rate", "0.001"],
        ["--rate", "1e9"],
        ["--rate", "0.001", "--burst", "1e6", "--users", "1000000"],
        ["--seed", str(2**64 - 1), "--max-draft-tokens", "3"],
        ["--prompt", "1048576", "--output", "1", "--num-blocks", "8200"],
        ["--prompt", "zipf:100:1048576", "--output", "lognormal:1:10:9"],
        ["--ranks", "256", "--snapshot-delay", "100"],
        ["--num-blocks", "1048576", "--block-size", "1048576"],
        ["--max-num-seqs", "16384", "--max-num-batched-tokens", "1048576"],
        ["--curve", '{"constant": 1e3, "per_row": 1, "per_context_token": 1, "host": 1e3}'],
        ["--curve", '{"constant": 1e-6, "per_row": 0, "per_context_token": 0}'],
        ["--trace", '{"arrival": 0, "prompt": 7, "output": 2}\n{"arrival": 1e10, "prompt": 7, "output": 2}'],
    ],
)
def test_numbers_at_their_bounds_are_served(
    options: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = ["simulate", "--requests", "3", "--prompt", "40", "--output", "8"]
    found = output_of(capsys, *small, *with_files(options, tmp_path, monkeypatch))
    assert found["finished"] == found["requests"]
    assert found["refused"] == 0


def with_files(options: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options with files in the place of the texts that they should hold."""
    monkeypatch.chdir(directory)
    named = []
    for option in options:
        if option.startswith("{"):
            Path("given").write_text(option + "\n")
        named.append("given" if option.startswith("{") else option)
    return named


def test_a_bad_trace_is_named_by_line_and_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"arrival": 0, "prompt": 1, "output": 1}\n{"arrival": 0, "prompt": 0, "output": 1}\n')
    assert run(["simulate", "--trace", str(path)]) == 2
    assert "line 2, prompt: got 0, allowed: an integer from 1" in capsys.readouterr().err
