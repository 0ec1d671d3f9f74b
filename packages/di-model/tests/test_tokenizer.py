"""The tokenizer: released cases, and the release's rules on special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from di_model.config import ModelConfig
from di_model.testing import tiny_config, tiny_tokenizer
from di_model.tokenizer import (
    BOS_TOKEN,
    EOS_TOKEN,
    PAD_TOKEN,
    Tokenizer,
    TokenizerError,
    add_image_placeholders,
    image_placeholders,
    open_tokenizer,
)
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, processors
from tokenizers import Tokenizer as RawTokenizer

CONFIG = ModelConfig.from_dict(tiny_config())
TOKENIZER = Tokenizer(tiny_tokenizer(), CONFIG)


def config(**top: object) -> ModelConfig:
    return ModelConfig.from_dict({**tiny_config(), **top})


def with_tokens(*tokens: str) -> RawTokenizer:
    return RawTokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))


def test_released_cases(shared: Path, released_config: ModelConfig, released_tokenizer: Path) -> None:
    tokenizer = Tokenizer.from_file(released_tokenizer, released_config)
    cases = json.loads((shared / "golden" / "tokenizer_cases.json").read_text(encoding="utf-8"))["cases"]
    assert len(cases) > 10
    for case in cases:
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert tokenizer.decode(case["ids"], skip_special_tokens=False) == case["decoded"]
        assert tokenizer.decode(case["ids"]) == case["decoded_skip_special"]


def test_released_policy(released_config: ModelConfig, released_tokenizer: Path) -> None:
    tokenizer = Tokenizer.from_file(released_tokenizer, released_config)
    assert tokenizer.encode("") == []
    assert tokenizer.encode("", add_bos=True) == [0]
    assert (tokenizer.token(0), tokenizer.token(1), tokenizer.token(2)) == (BOS_TOKEN, EOS_TOKEN, PAD_TOKEN)
    assert tokenizer.token_id("<｜System｜>") == 128799
    add_image_placeholders(tokenizer.raw, 129280)
    assert tokenizer.token_id("<|place_holder_mm_span_0020|>") == 129300


@pytest.mark.parametrize("preset", ["micro", "w128", "heads"])
def test_presets_need_no_tokenizer_config(make_tiny: Callable[..., Path], preset: str) -> None:
    directory = make_tiny(preset)
    assert not (directory / "tokenizer_config.json").exists()
    tokenizer = Tokenizer.from_file(directory, ModelConfig.from_file(directory))
    assert tokenizer.decode(tokenizer.encode("Hello <think>")) == "Hello <think>"


@given(st.text())
def test_text_survives(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert all(0 <= i < TOKENIZER.vocab_size for i in ids)
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_special_and_protocol_tokens() -> None:
    ids = TOKENIZER.encode(f"{BOS_TOKEN}<｜User｜>on{EOS_TOKEN}")
    assert ids[0] == 0
    assert ids[-1] == 1
    assert TOKENIZER.decode(ids) == "<｜User｜>on"
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == f"{BOS_TOKEN}<｜User｜>on{EOS_TOKEN}"


def test_half_a_character_decodes_to_the_replacement_character() -> None:
    ids = TOKENIZER.encode("é")
    assert len(ids) == 2
    assert TOKENIZER.decode(ids[:1]) == "�"


def test_unknown_ids_and_tokens() -> None:
    assert TOKENIZER.token(320) is None
    assert TOKENIZER.token_id("no such token") is None


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ((EOS_TOKEN, BOS_TOKEN, PAD_TOKEN), "BOS token .* has id 1; it must have id 0"),
        ((BOS_TOKEN, "a", PAD_TOKEN), "EOS token .* has id None; it must have id 1"),
        ((BOS_TOKEN, EOS_TOKEN, "a", PAD_TOKEN), "padding token .* has id 3; it must have id 2"),
        ((BOS_TOKEN, EOS_TOKEN, PAD_TOKEN, "<image>"), "image token <image> has id 3"),
    ],
)
def test_misplaced_special_tokens(tokens: tuple[str, ...], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        Tokenizer(with_tokens(*tokens), CONFIG)
    Tokenizer(with_tokens(*tokens), config(tokenizer_compatibility="native"))


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "pad_token_id"])
def test_configured_ids_must_be_those_of_the_release(key: str) -> None:
    with pytest.raises(TokenizerError, match=r"configured .* id is 7"):
        Tokenizer(tiny_tokenizer(), config(**{key: 7}))
    assert (
        getattr(Tokenizer(tiny_tokenizer(), config(**{key: 7, "tokenizer_compatibility": "native"})), key)
        == 7
    )


def test_eos_may_stand_for_padding_and_is_replaced() -> None:
    assert Tokenizer(tiny_tokenizer(), config(pad_token_id=1)).pad_token_id == 2


def test_vocabulary_larger_than_the_embedding() -> None:
    raw = tiny_tokenizer(330)
    with pytest.raises(TokenizerError, match=r"has id 329; the model has ids 0\.\.319"):
        Tokenizer(raw, CONFIG)


def test_appended_eos_is_refused() -> None:
    raw = tiny_tokenizer()
    raw.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}", special_tokens=[(EOS_TOKEN, 1)]
    )
    with pytest.raises(TokenizerError, match="appends EOS"):
        Tokenizer(raw, CONFIG)


def test_image_placeholders_follow_the_vocabulary() -> None:
    raw = tiny_tokenizer()
    add_image_placeholders(raw, 320)
    tokenizer = Tokenizer(raw, CONFIG)
    assert [tokenizer.token_id(token) for token in image_placeholders()] == list(range(320, 341))


def test_image_placeholder_elsewhere_is_refused() -> None:
    raw = tiny_tokenizer()
    raw.add_special_tokens([AddedToken(image_placeholders()[3], special=True)])
    with pytest.raises(TokenizerError, match=r"0003\|> has id 320; it must have id 323"):
        Tokenizer(raw, CONFIG)
    with pytest.raises(TokenizerError, match="must have id"):
        add_image_placeholders(raw, 320)


def test_unreadable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(TokenizerError, match="is not a tokenizer"):
        open_tokenizer(tmp_path)


def test_truncation_and_padding_of_the_file_are_not_in_force(tmp_path: Path) -> None:
    raw = tiny_tokenizer()
    raw.enable_truncation(2)
    raw.enable_padding(length=50)
    raw.save(str(tmp_path / "tokenizer.json"))
    text = "Hello world, this is not cut"
    assert Tokenizer.from_file(tmp_path, CONFIG).encode(text) == TOKENIZER.encode(text)
