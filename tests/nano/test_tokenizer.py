"""The tokenizer keeps the release's layout and gives back every text."""

from __future__ import annotations

import pytest
from di_model.config import ModelConfig
from di_model.tokenizer import Tokenizer
from tokenizers import Tokenizer as RawTokenizer

from examples.nano.config import nano_config
from examples.nano.tokenizer import (
    ASSISTANT,
    END_OF_THINKING,
    PROTOCOL_TOKENS,
    USER,
    single_tokens,
    train_tokenizer,
)

TEXT = "Anna has gold. The quick brown fox has 1234 coins; naïve café “quotes”.\n\n    def f(x):\n        return x\n"


@pytest.fixture(scope="module")
def raw() -> RawTokenizer:
    return train_tokenizer([TEXT] * 50)


def test_policy_of_the_release_holds(raw: RawTokenizer) -> None:
    config = ModelConfig.from_dict(nano_config(raw))
    tokenizer = Tokenizer(raw, config)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 2)


def test_protocol_tokens_are_one_id_each_and_no_special_tokens(raw: RawTokenizer) -> None:
    ids = [raw.encode(token, add_special_tokens=False).ids for token in PROTOCOL_TOKENS]
    assert all(len(found) == 1 for found in ids)
    assert len({found[0] for found in ids}) == len(PROTOCOL_TOKENS)
    prompt = f"{USER}hello{ASSISTANT}{END_OF_THINKING}"
    assert raw.decode(raw.encode(prompt).ids, skip_special_tokens=True) == prompt


@pytest.mark.parametrize("text", [TEXT, "", " ", "\t\n \n", "日本語 🙂", "a  b\r\nc", "x" * 1000])
def test_every_text_comes_back(raw: RawTokenizer, text: str) -> None:
    assert raw.decode(raw.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_digits_stand_alone(raw: RawTokenizer) -> None:
    assert len(raw.encode("1234", add_special_tokens=False).ids) == 4


def test_the_same_text_gives_the_same_tokenizer(raw: RawTokenizer) -> None:
    assert train_tokenizer([TEXT] * 50).to_str() == raw.to_str()


def test_single_tokens(raw: RawTokenizer) -> None:
    assert single_tokens(raw, ["gold", "xylophone"]) == ["gold"]
