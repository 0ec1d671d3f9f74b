"""Mistakes of a command line name the option as it was given, its value and all that is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from di_engine.cli import run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "kernels", "--seconds", "-1"], "--seconds: got '-1', allowed: a number from 0 to 86400"),
        (["bench", "kernels", "--seconds", "inf"], "--seconds: got 'inf', allowed: a number from 0 to 86400"),
        (["bench", "kernels", "--seconds", "nan"], "--seconds: got 'nan', allowed: a number from 0 to 86400"),
        (["bench", "layer", "--seconds", "inf"], "--seconds: got 'inf', allowed: a number from 0 to 86400"),
        (["bench", "layer", "--experts", "3"], "--experts: got '3', allowed: an integer from 6 to 384"),
        (["bench", "model", "--steps", "1"], "--steps: got '1', allowed: an integer of at least 3"),
        (
            ["bench", "predict", "--context", "0"],
            "--context: got '0', allowed: an integer from 1 to 1048576",
        ),
        (["bench", "predict", "--prefill", "2"], "--prefill: got '2', allowed: a number from 0.01 to 1"),
        (["demo-checkpoint", "d1", "--seed", "-1"], "--seed: got '-1', allowed: an integer of at least 0"),
        (["generate", "nano", "--temperature", "x"], "--temperature: got 'x', allowed: a number"),
        (["generate", "nano", "--stop-token-id", "x"], "--stop-token-id: got 'x', allowed: an integer"),
        (["generate", "nano", "--max-tokens", "1.5"], "--max-tokens: got '1.5', allowed: an integer"),
        (["generate", "nano", "--tokenizer", "absent"], "--tokenizer: path 'absent' does not exist"),
        (["generate", "nano", "--packed-directory", ""], "--packed-directory: got '', allowed: a path"),
        (["inspect", "nano", "--tokens", "x"], "--tokens: got 'x', allowed: an integer"),
        (
            ["packed", "pk", "--remove-unused", "-1"],
            "--remove-unused: got '-1', allowed: a number of at least 0",
        ),
        (["simulate", "--requests", "-1"], "--requests: got '-1', allowed: an integer of at least 0"),
        (
            ["verify", "equality", "--checkpoint", "nano", "--cases", "0"],
            "--cases: got '0', allowed: an integer of at least 1",
        ),
        (["verify", "golden"], "Missing argument 'GOLDEN_DIR'."),
    ],
)
def test_what_the_parser_refuses_has_its_value_and_both_ends(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err == f"di: {message}\n"


def test_a_long_number_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "model", "--steps", "9" * 5000]) == 2
    error = capsys.readouterr().err
    assert error.startswith("di: --steps: got '999")
    assert error.endswith("allowed: an integer of at least 3\n")
    assert len(error) < 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", "0"], "--threads: got 0, allowed: an integer in [1, 4096]"),
        (["--chunk", "0"], "--chunk: got 0, allowed: an integer in [1, 2147483647]"),
        (
            ["--packed-directory", "pk", "--weight-layout", "stored"],
            "--packed-directory: got 'pk', allowed: no value when --weight-layout is stored, which packs nothing",
        ),
        (
            ["--kv-cache-bytes", "100", "--num-blocks", "5"],
            "--kv-cache-bytes: got 100, allowed: no value when --num-blocks is given",
        ),
        (
            ["--max-num-batched-tokens", "3"],
            "--max-num-batched-tokens: got 3, allowed: at least --max-num-seqs (256), so that every decode fits in "
            "one step",
        ),
        (["--min-tokens", "50"], "--min-tokens: got 50, allowed: at most --max-tokens (16)"),
        (["--policy", "x"], "--policy: got 'x', allowed: 'mixed' or 'homogeneous'"),
        (["--stop-token-id", "50000"], "--stop-token-id: got 50000, allowed: token ids 0..4095"),
        (
            ["--golden-token-ids", "5,-9"],
            "--golden-token-ids[1]: got -9, allowed: an integer in [-1, 2147483647]",
        ),
    ],
)
def test_settings_have_the_names_of_their_options(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["generate", "nano", "--prompt", "a", "--quiet", *options]) == 2
    assert capsys.readouterr().err == f"di: {message}\n"


def test_settings_of_other_commands_have_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "nano", "--threads", "0"]) == 2
    assert "di: --threads: got 0, allowed: an integer in [1, 4096]\n" in capsys.readouterr().err
    assert run(["eval", "nano", "--instruction-set", "z80"]) == 2
    assert "--instruction-set: got 'z80', allowed: " in capsys.readouterr().err
    assert run(["inspect", "nano", "--block-size", "7"]) == 2
    assert capsys.readouterr().err.startswith("di: --block-size is 7; allowed: ")


def test_a_field_of_a_line_is_no_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "a", "top_k": -5}\n')
    assert run(["generate", "nano", "--prompt-file", str(lines)]) == 1
    assert "line 1: top_k: got -5" in capsys.readouterr().err
