"""From committed tokens to deltas: text, stops, logprobs, usage and the end of a request (R7, R28, R29, R53)."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise

import pytest
from di_spec import (
    FinishReason,
    RequestClosedError,
    RequestOutputState,
    SamplingParams,
    SamplingState,
    TokenBytes,
    TokenLogprobs,
    Usage,
)
from di_spec.testing import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

TOKENIZER = byte_tokenizer()
TABLE = TokenBytes(TOKENIZER)
EOS, THINK = 259, 260
VOCAB_SIZE = 261


def request(prompt: str = "ab", **params: object) -> RequestOutputState:
    ids = list(prompt.encode())
    sampling = SamplingState(SamplingParams(max_tokens=None, **params), ids, [EOS], vocab_size=VOCAB_SIZE)
    return RequestOutputState(sampling, ids, TABLE)


def tokens(text: str) -> list[int]:
    return list(text.encode())


def described(ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token, -1.0, 2, (EOS, token), (-0.5, -1.0)) for token in ids]


def test_plain_stream() -> None:
    output = request()
    deltas = [output.commit(tokens("he")), output.commit(tokens("y"), finish=FinishReason.LENGTH)]
    assert [delta.text for delta in deltas] == ["he", "y"]
    assert [delta.finish_reason for delta in deltas] == [FinishReason.NONE, FinishReason.LENGTH]
    assert (output.text, output.token_ids, output.finished) == ("hey", tokens("hey"), True)
    assert (deltas[1].usage.prompt_tokens, deltas[1].usage.completion_tokens) == (2, 3)
    assert deltas[1].usage.total_tokens == 5
    assert deltas[0].logprobs is None


def test_deltas_have_names_and_a_hash() -> None:
    first, other = (request("ab").commit(tokens("xy")) for _ in range(2))
    assert first == other
    assert hash(first) == hash(other)
    assert json.loads(json.dumps(asdict(first)))["usage"] == {"prompt_tokens": 2, "completion_tokens": 2}
    assert first.usage == Usage(2, 2) != (2, 2)


def test_stop_string_across_tokens_and_steps() -> None:
    output = request(stop=["DEFGHIJ"])
    deltas = [output.commit(tokens(piece)) for piece in ("xDE", "F", "GHI", "Jtail")]
    assert [delta.text for delta in deltas] == ["x", "", "", ""]
    last = deltas[-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP_STRING, "DEFGHIJ")
    assert last.token_ids == tuple(tokens("J"))
    assert output.usage.completion_tokens == 8
    assert output.sampling.num_output_tokens == 8


def test_stop_string_overrides_a_later_end_in_the_same_step() -> None:
    for finish, ids in ((FinishReason.STOP, [*tokens("a.b"), EOS]), (FinishReason.LENGTH, tokens("a."))):
        output = request(stop=".")
        delta = output.commit(ids, finish=finish)
        assert (delta.text, delta.token_ids) == ("a", tuple(tokens("a.")))
        assert delta.finish_reason is FinishReason.STOP_STRING


def test_stop_string_may_stay_in_the_text() -> None:
    output = request(stop=["."], include_stop_str_in_output=True)
    assert output.commit(tokens("a.b")).text == "a."


def test_held_back_text_is_let_go_at_every_other_end() -> None:
    for finish, ids in ((FinishReason.LENGTH, tokens("aST")), (FinishReason.STOP, [*tokens("aST"), EOS])):
        assert request(stop="STOP").commit(ids, finish=finish).text == "aST"
    output = request(stop="STOP")
    assert output.commit(tokens("aST")).text == "a"
    half = request(stop="STOP")
    assert half.commit([*tokens("aST"), 0xF0], finish=FinishReason.LENGTH).text == "aST\ufffd"
    closed = output.close(FinishReason.ABORT)
    assert (closed.text, closed.finish_reason.label, closed.token_ids) == ("ST", "abort", ())


def test_stop_token_is_kept_as_a_token_and_left_out_of_the_text() -> None:
    delta = request(stop_token_ids=[33]).commit(tokens("hi!"), finish=FinishReason.STOP_TOKEN)
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("hi", tuple(tokens("hi!")), 33)
    shown = request(stop_token_ids=[33], include_stop_str_in_output=True)
    assert shown.commit(tokens("hi!"), finish=FinishReason.STOP_TOKEN).text == "hi!"
    eos = request(skip_special_tokens=False).commit([*tokens("hi"), EOS], finish=FinishReason.STOP)
    assert (eos.text, eos.stop_reason, eos.finish_reason.label) == ("hi", None, "stop")


def test_stop_strings_count_from_min_tokens_on() -> None:
    output = request(stop="ab", min_tokens=3)
    delta = output.commit(tokens("abaab!"))
    assert (delta.text, delta.token_ids) == ("aba", tuple(tokens("abaab")))
    assert delta.finish_reason is FinishReason.STOP_STRING


def test_half_characters_wait_and_a_truncated_one_is_replaced() -> None:
    ids = [258, *"😀".encode()[2:], *"č".encode()]
    output = request()
    assert [output.commit([token]).text for token in ids] == ["", "", "😀", "", "č"]
    cut = request()
    assert cut.commit(ids[:2], finish=FinishReason.LENGTH).text == "\ufffd"


def test_bytes_of_logprob_entries_join_to_the_text() -> None:
    ids = [*tokens("č😀"), THINK, 256, EOS]
    output = request(logprobs=2)
    for token in ids[:-1]:
        output.commit([token], described([token]))
    last = output.commit([EOS], described([EOS]), FinishReason.STOP)
    assert output.logprobs is not None
    assert last.logprobs is not None
    assert b"".join(entry.bytes for entry in output.logprobs).decode() == output.text == "č😀<think é｜>ab"
    assert last.logprobs[0].bytes == b""
    assert last.logprobs[0].top[0].bytes == b"<|end|>"
    assert [entry.token_id for entry in output.logprobs] == ids


def test_logprobs_are_cut_with_the_tokens() -> None:
    ids = tokens("a.bc")
    delta = request(stop=".", logprobs=0).commit(ids, described(ids))
    assert delta.logprobs is not None
    assert [entry.token_id for entry in delta.logprobs] == tokens("a.")


def test_missing_logprobs_are_an_error_and_change_nothing() -> None:
    output = request(logprobs=1)
    for wrong in (
        (),
        [None, None],
        [None, *described(tokens("ab"))],
        *map(described, map(tokens, ("a", "ba"))),
    ):
        with pytest.raises(ValueError, match=r"allowed: one for each of \[97, 98\]"):
            output.commit(tokens("ab"), wrong)
    assert output.commit(tokens("ab"), described(tokens("ab"))).text == "ab"


def test_bytes_of_logprob_entries_keep_the_stop_string() -> None:
    ids = tokens("abc")
    delta = request(stop="bc", logprobs=0).commit(ids, described(ids))
    assert delta.logprobs is not None
    assert (delta.text, [entry.bytes for entry in delta.logprobs]) == ("a", [b"a", b"b", b"c"])


def test_bytes_of_logprob_entries_leave_out_the_stop_token() -> None:
    ids = tokens("a!")
    delta = request(stop_token_ids=[33], logprobs=0).commit(ids, described(ids), FinishReason.STOP_TOKEN)
    assert delta.logprobs is not None
    assert (delta.text, [entry.bytes for entry in delta.logprobs]) == ("a", [b"a", b""])


def test_a_request_that_made_no_token_has_no_text() -> None:
    sampling = SamplingState(SamplingParams(), [0xF0, 0x9F], [EOS], vocab_size=VOCAB_SIZE)
    assert RequestOutputState(sampling, [0xF0, 0x9F], TABLE).close(FinishReason.ABORT).text == ""


def test_an_end_needs_a_reason() -> None:
    output = request(stop="bc")
    output.commit(tokens("ab"))
    with pytest.raises(ValueError, match="reason: got NONE"):
        output.close(FinishReason.NONE)
    assert output.close(FinishReason.ABORT).text == "b"


def test_error_ends_the_request_once() -> None:
    output = request(logprobs=1)
    delta = output.close(FinishReason.ERROR, "logits are not finite")
    assert (delta.error, delta.finish_reason, delta.logprobs) == (
        "logits are not finite",
        FinishReason.ERROR,
        (),
    )
    with pytest.raises(RequestClosedError, match="ERROR"):
        output.close(FinishReason.ABORT)
    with pytest.raises(RequestClosedError):
        output.commit(tokens("a"), described(tokens("a")))


def test_without_text() -> None:
    for output in (request(detokenize=False, logprobs=0), RequestOutputState(request().sampling, [1], None)):
        delta = output.commit(tokens("hi"), described(tokens("hi")), FinishReason.LENGTH)
        assert (delta.text, delta.token_ids) == ("", tuple(tokens("hi")))
    with pytest.raises(ValueError, match="none without a tokenizer"):
        RequestOutputState(request(stop="x").sampling, [1], None)


def test_reasons_carry_the_words_of_the_completion_interface() -> None:
    labels = {reason: reason.label for reason in FinishReason}
    assert labels == {
        0: None,
        1: "stop",
        2: "stop",
        3: "stop",
        4: "length",
        5: "abort",
        6: "error",
        7: "deadline",
        8: "error",
        9: "handed_over",
    }


@given(
    st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30),
    st.lists(st.text(alphabet="ab<é", min_size=1, max_size=4), max_size=3),
    st.integers(0, 5),
    st.booleans(),
    st.data(),
)
def test_cutting_into_steps_changes_nothing(
    ids: list[int], stop: list[str], min_tokens: int, include: bool, data: st.DataObject
) -> None:
    def run(cuts: list[int]) -> tuple[str, list[int], FinishReason]:
        output = request(stop=stop, min_tokens=min_tokens, include_stop_str_in_output=include)
        shown = ""
        for begin, end in pairwise([0, *sorted(cuts), len(ids)]):
            if not output.finished:
                finish = FinishReason.LENGTH if end == len(ids) and begin != end else FinishReason.NONE
                shown += output.commit(ids[begin:end], finish=finish).text
        assert shown == output.text
        return shown, output.token_ids, output.finish_reason

    whole = run([])
    pieces = run(data.draw(st.lists(st.integers(0, max(len(ids) - 1, 0)), max_size=6)))
    assert pieces == whole
    if not stop:
        assert whole[0] == TOKENIZER.decode(ids)
