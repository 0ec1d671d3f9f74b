"""Incremental detokenisation (R28, R29): joined deltas equal a full decode, and no delta shows half a character."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from di_kernels.testing import shared_directory
from di_spec import IncrementalDetokenizer, TokenBytes, UnsupportedTokenizerError
from di_spec.testing import EOS, byte_tokenizer
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

TOKENIZER = byte_tokenizer()
TABLE = TokenBytes(TOKENIZER)
VOCAB_SIZE = TOKENIZER.get_vocab_size()
EOS_ID = TOKENIZER.token_to_id(EOS)


def deltas(ids: list[int], skip_special: bool = True, prompt: list[int] | None = None) -> list[str]:
    stream = IncrementalDetokenizer(TABLE, prompt or [], skip_special)
    return [*(stream.append([token]) for token in ids), stream.flush()]


@pytest.mark.parametrize("text", ["😀", "👩‍👩‍👧‍👦", "č", "漢字とかな", "a😀b\u0301", "\ufffd"])
def test_characters_split_over_tokens(text: str) -> None:
    shown = deltas(list(text.encode()))
    assert "".join(shown) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in shown)


def test_each_character_appears_with_its_last_byte() -> None:
    assert deltas(list("č😀".encode())) == ["", "č", "", "", "", "😀", ""]


def test_truncated_tail_becomes_a_replacement_character_at_the_end_only() -> None:
    assert deltas(list("😀".encode()[:3])) == ["", "", "", "\ufffd"]


def test_invalid_bytes_do_not_stall_the_stream() -> None:
    assert deltas([0xFF, 0xF0, 0x41, 0x42]) == ["\ufffd", "", "\ufffdA", "B", ""]


def test_special_tokens() -> None:
    ids = [0x41, EOS_ID, 0x42, EOS_ID + 1]
    assert "".join(deltas(ids)) == "AB<think é｜>"
    assert "".join(deltas(ids, skip_special=False)) == f"A{EOS}B<think é｜>"
    assert IncrementalDetokenizer(TABLE).token_bytes(EOS_ID) == b""
    assert TABLE[EOS_ID] == EOS.encode()


def test_prompt_that_ends_inside_a_character() -> None:
    for cut in (1, 2, 3):
        prompt, rest = list("x😀".encode()[:-cut]), list("x😀".encode()[-cut:])
        assert deltas(rest, prompt=prompt) == [""] * (cut - 1) + ["😀", ""]
    assert deltas([0x41], prompt=list("é".encode())) == ["A", ""]


@pytest.mark.parametrize("output", [[], [0x41], [EOS_ID], [0x98, 0x41], list("č".encode())])
def test_a_character_that_only_the_prompt_left_unfinished_is_not_shown(output: list[int]) -> None:
    shown = "".join(deltas(output, prompt=list("x😀".encode()[:-2])))
    assert shown == TOKENIZER.decode(output).lstrip("\ufffd")


def test_unknown_ids_add_nothing() -> None:
    assert deltas([0x41, VOCAB_SIZE + 5]) == ["A", "", ""]


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=60), st.booleans(), st.randoms())
def test_joined_deltas_equal_full_decode(ids: list[int], skip_special: bool, random: object) -> None:
    expected = TOKENIZER.decode(ids, skip_special_tokens=skip_special)
    assert "".join(deltas(ids, skip_special)) == expected
    stream, shown, position = IncrementalDetokenizer(TABLE, [], skip_special), "", 0
    while position < len(ids):
        size = random.randint(1, 5)  # type: ignore[attr-defined]
        shown += stream.append(ids[position : position + size])
        position += size
    assert shown + stream.flush() == expected


@given(st.text(max_size=40))
def test_token_bytes_join_to_the_utf8_text(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    stream = IncrementalDetokenizer(TABLE)
    assert b"".join(stream.token_bytes(token) for token in ids).decode() == text


@given(st.lists(st.integers(0, 255), max_size=20), st.lists(st.integers(0, 255), max_size=20))
@example([0xED, 0xA0], [])  # the beginning of a surrogate: two characters that are none
@example([0xED, 0xA0], [0x80, 0x41])
def test_prompt_and_output_join_to_the_whole_decode(prompt: list[int], output: list[int]) -> None:
    whole = TOKENIZER.decode(prompt + output)
    *complete, unfinished = deltas(prompt)
    shown = "".join(deltas(output, prompt=prompt))
    # The prompt's last character is either completed by the output or shown by the prompt alone.
    assert whole in ("".join(complete) + shown, "".join(complete) + unfinished + shown)


def test_other_kinds_of_tokenizer_are_refused() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.Metaspace()
    with pytest.raises(UnsupportedTokenizerError, match="Metaspace, allowed: ByteLevel"):
        IncrementalDetokenizer(tokenizer)


def test_released_tokenizer_decodes_its_golden_cases() -> None:
    shared: Path | None = shared_directory(__file__)
    if shared is None:
        pytest.skip("the directory ../shared with the released tokenizer is absent")
    packed = (shared / "data/deepseek-v4.1/tokenizer.json.gz").read_bytes()
    table = TokenBytes(Tokenizer.from_str(gzip.decompress(packed).decode()))
    cases = json.loads((shared / "golden/tokenizer_cases.json").read_text())["cases"]
    assert cases
    for case in cases:
        for key, skip in (("decoded", False), ("decoded_skip_special", True)):
            stream = IncrementalDetokenizer(table, [], skip)
            shown = "".join(stream.append([token]) for token in case["ids"]) + stream.flush()
            assert shown == case[key]
