"""Numbers separated by commas, of every option that takes some."""

from __future__ import annotations

import pytest
from di_engine.cli import run
from di_engine.cli.common import CommandError, numbers

COUNTS = "numbers of at least 1, such as 1,2"
REQUESTS = "numbers of requests from 1 to 16384, such as 8,64"
RATES = "positive numbers, such as 100,250"
ANY = "numbers such as 1,2.5"


def test_numbers_are_what_stands_between_commas() -> None:
    assert numbers("--some", "3,1", int, lambda count: count > 0, "") == [3, 1]
    assert numbers("--some", "-1,2.5", float, lambda number: True, "") == [-1.0, 2.5]
    with pytest.raises(CommandError, match=r"^--some: got '3,0', allowed: positive ones$"):
        numbers("--some", "3,0", int, lambda count: count > 0, "positive ones")


@pytest.mark.parametrize(
    ("command", "option", "texts", "allowed"),
    [
        (["bench", "scheduler"], "--running", ("", "8,", "1.5", "8,0"), REQUESTS),
        (["bench", "kernels"], "--threads", ("", "x", "1,-1"), COUNTS),
        (["bench", "predict"], "--read", ("", "fast", "100,0", "-1", "inf", "nan"), RATES),
        (["bench", "predict"], "--dot", ("8,x",), RATES),
        (["simulate", "--requests", "3"], "--classes", ("", "1,x"), ANY),
        (["simulate", "--requests", "3", "--against-reference"], "--rates", ("1;2",), ANY),
    ],
)
def test_other_texts_are_named_with_what_is_allowed(
    command: list[str], option: str, texts: tuple[str, ...], allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in texts:
        assert run([*command, f"{option}={text}"]) == 2
        assert f"{option}: got {text!r}, allowed: {allowed}\n" in capsys.readouterr().err
