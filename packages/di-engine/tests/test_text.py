"""Text as it streams: whole characters, and never a piece of a stop string."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from di_engine import LLMEngine, SamplingParams
from di_engine.testing import follow
from di_spec import TokenBytes

Drain = Callable[[LLMEngine], dict[str, list[Any]]]
PIECES = ("DE", "F", "GHI", "J", "aa", "ab")
PROMPT = (10, 11)


def spell(engine: LLMEngine, *texts: str | bytes) -> tuple[int, ...]:
    """The ids of tokens with exactly these texts."""
    table = TokenBytes(engine.tokenizer.raw)
    ids = {table[token]: token for token in reversed(range(engine.tokenizer.vocab_size))}
    return tuple(ids[text.encode() if isinstance(text, str) else text] for text in texts)


@pytest.fixture
def stream(make_scripted: Any, drain: Drain) -> Callable[..., list[Any]]:
    """Outputs of a request for which the model says ``pieces``, one token each, and then the end token."""

    def run(pieces: tuple[str | bytes, ...], **params: Any) -> list[Any]:
        speller = make_scripted(follow(), extra_tokens=PIECES)
        engine = make_scripted(follow((*PROMPT, *spell(speller, *pieces))), extra_tokens=PIECES)
        engine.add_request("a", PROMPT, SamplingParams(**{"temperature": 0, "max_tokens": 64, **params}))
        return drain(engine)["a"]

    return run


@pytest.mark.parametrize(
    ("pieces", "stop", "texts", "stop_reason"),
    [
        (("DE", "F", "GHI", "J"), ["DEFGHIJ"], ["", "", "", ""], "DEFGHIJ"),
        (("J", "DE", "F", "GHI", "J", "J"), ["DEFGHIJ"], ["J", "", "", "", ""], "DEFGHIJ"),
        (("aa", "ab"), ["aab"], ["", "a"], "aab"),
        (("F", "DE", "GHI"), ["FJ", "DEG"], ["", "F", ""], "DEG"),
        (("F", "GHI", "J"), ["GHIJ", "HI"], ["F", "G"], "HI"),
        (("F", "DE"), ["DEFG"], ["F", "", "DE"], None),
        (("DE", "F"), ["DEFG"], ["", "", "DEF"], None),
    ],
)
def test_r7_a_stop_string_never_leaks(
    stream: Callable[..., list[Any]],
    pieces: tuple[str, ...],
    stop: list[str],
    texts: list[str],
    stop_reason: str | None,
) -> None:
    outputs = stream(pieces, stop=stop)
    assert [output.text for output in outputs] == texts
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", stop_reason)
    assert outputs[-1].finished


def test_r7_a_stop_string_can_be_kept(stream: Callable[..., list[Any]]) -> None:
    outputs = stream(("J", "DE", "F", "GHI"), stop="DEF", include_stop_str_in_output=True)
    assert [output.text for output in outputs] == ["J", "", "DEF"]


def test_r7_held_text_is_let_go_at_the_length_limit(stream: Callable[..., list[Any]]) -> None:
    outputs = stream(("J", "DE", "F", "GHI"), stop="DEFJ", max_tokens=3)
    assert "".join(output.text for output in outputs) == "JDEF"
    assert outputs[-1].finish_reason == "length"


def test_a_stop_string_returns_blocks_and_slot(make_scripted: Any, drain: Drain) -> None:
    speller = make_scripted(follow(), extra_tokens=PIECES)
    engine = make_scripted(follow((*PROMPT, *spell(speller, "J", "J", "J"))), extra_tokens=PIECES)
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, stop="JJ"))
    drain(engine)
    scheduler = engine.stats().scheduler
    assert (scheduler.used_blocks, scheduler.used_slots, scheduler.running) == (0, 0, 0)


def test_a_stop_token_is_named_and_left_out_of_the_text(stream: Callable[..., list[Any]]) -> None:
    outputs = stream(("J", "GHI", "DE"), stop_token_ids=[321])  # GHI, the second new token
    assert [(output.text, output.token_ids) for output in outputs][-1] == ("", (321,))
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == ("stop", 321)


MIXED = "a😀b👨‍👩‍👧 ř語"


def test_r28_characters_arrive_whole(stream: Callable[..., list[Any]]) -> None:
    outputs = stream(tuple(bytes([byte]) for byte in MIXED.encode()))
    assert "".join(output.text for output in outputs) == MIXED
    assert not any("\ufffd" in output.text for output in outputs)


def test_r28_only_a_truncated_tail_is_replaced(stream: Callable[..., list[Any]]) -> None:
    outputs = stream(tuple(bytes([byte]) for byte in "a😀".encode()), max_tokens=3)
    assert [output.text for output in outputs] == ["a", "", "\ufffd"]
    assert outputs[-1].finish_reason == "length"


def test_r29_logprobs_carry_the_bytes_of_every_token(stream: Callable[..., list[Any]]) -> None:
    outputs = stream(tuple(bytes([byte]) for byte in MIXED.encode()), logprobs=3)
    entries = [entry for output in outputs for entry in output.logprobs]
    assert b"".join(entry.bytes for entry in entries) == MIXED.encode()
    assert all(len(entry.top) == 3 for entry in entries)
    assert [entry.token_id for entry in entries] == [
        token for output in outputs for token in output.token_ids
    ]
    document = json.dumps([{"bytes": list(entry.bytes), "logprob": entry.logprob} for entry in entries])
    assert bytes(byte for entry in json.loads(document) for byte in entry["bytes"]) == MIXED.encode()
