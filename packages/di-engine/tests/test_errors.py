"""An error is one line of a log, whatever value it is about."""

from __future__ import annotations

from di_engine import EngineConfigError
from di_engine.errors import shown


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_message_repeats_no_more_than_the_beginning_of_a_value() -> None:
    message = str(EngineConfigError("model", "x" * 10**6, "a path"))
    assert message.startswith("model: got 'xxx")
    assert message.endswith("... (1000002 characters), allowed: a path")
    assert len(message) < 300


def test_a_value_without_a_spelling_is_named_by_its_type() -> None:
    assert shown(10**5000) == "a value of type int"
    assert shown(Unspeakable()) == "a value of type Unspeakable"
