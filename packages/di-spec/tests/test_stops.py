"""Stop strings over streams (R7)."""

from __future__ import annotations

import pytest
from di_spec import StopMatcher
from hypothesis import given
from hypothesis import strategies as st


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include)
    shown = [matcher.push(piece) for piece in pieces]
    if matcher.matched is None:
        shown.append(matcher.flush())
    return shown, matcher.matched


def expected(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """By definition: the match with the earliest end, of equals the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end if include else end - len(stop)], stop


def test_stop_string_that_spans_tokens_never_leaks() -> None:
    shown, matched = run(["DEFGHIJ"], ["DE", "F", "GHI", "J"])
    assert shown == ["", "", "", ""]
    assert matched == "DEFGHIJ"


def test_overlap() -> None:
    assert run(["aab"], ["a", "a", "a", "b", "c"]) == (["", "", "a", "", ""], "aab")


def test_first_to_complete_wins_and_the_longest_of_equals() -> None:
    assert run(["abcd", "bc"], ["abcd"]) == (["a"], "bc")
    assert run(["c", "abc", "bc"], ["xabc"]) == (["x"], "abc")


def test_tail_is_flushed_when_the_stop_never_completes() -> None:
    assert run(["STOP"], ["abc ST", "O"]) == (["abc ", "", "STO"], None)


def test_include_and_drop_what_follows() -> None:
    assert run(["END"], ["aE", "NDxyz", "more"], include=True) == (["a", "END", ""], "END")


def test_without_stops_text_passes() -> None:
    assert run([], ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="non-empty"):
        StopMatcher(["a", ""])


texts = st.text(alphabet="ab", max_size=30)
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=4)


@given(stop_lists, st.lists(texts, max_size=12), st.booleans())
def test_result_does_not_depend_on_the_pieces(stops: list[str], pieces: list[str], include: bool) -> None:
    shown, matched = run(stops, pieces, include)
    assert ("".join(shown), matched) == expected(stops, "".join(pieces), include)


@given(stop_lists, texts)
def test_no_more_is_held_than_needed(stops: list[str], text: str) -> None:
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    if matcher.matched is None:
        held = text[len(shown) :]
        assert shown + held == text
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = [text[start:] for start in range(len(shown))]
        assert not any(stop.startswith(tail) for stop in stops for tail in longer)
