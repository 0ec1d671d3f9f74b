"""Hash constants and compressed vocabulary, against the released values and against their definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from di_model.config import ConfigError, ModelConfig
from di_model.engram_tables import compressed_vocabulary, derive_engram, engram_tables
from di_model.primes import engram_primes, is_prime
from di_model.testing import tiny_config, tiny_tokenizer
from di_model.tokenizer import TokenizerError
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models


def test_released_values(shared: Path, released_config: ModelConfig, released_tokenizer: Path) -> None:
    golden = np.load(shared / "golden" / "engram_released.npz")
    data = derive_engram(released_config, released_tokenizer)
    assert data is not None
    assert data.vocabulary.dtype == torch.int32
    np.testing.assert_array_equal(data.vocabulary, golden["token_map"])
    assert data.pad == golden["pad_id"]
    assert [table.layer for table in data.tables] == [1, 14]
    for i, table in enumerate(data.tables):
        np.testing.assert_array_equal(table.primes, golden["primes"][i])
        np.testing.assert_array_equal(table.offsets, golden["offsets"][i])
        np.testing.assert_array_equal(table.multipliers, golden["multipliers"][i])
        assert {t.dtype for t in (table.primes, table.offsets, table.multipliers)} == {torch.int64}


def test_released_multipliers_as_printed_in_the_spec(released_config: ModelConfig) -> None:
    first, second = engram_tables(released_config.text, 99092)
    assert first.multipliers.tolist() == [76632096046245, 4839876093313, 35959672319349, 73987337458391]
    assert second.multipliers.tolist() == [67716810739261, 51510806800915, 30921347202721, 82619226485591]
    assert first.hash.multipliers is first.multipliers


def test_spellings_of_one_word_share_a_class() -> None:
    tokenizer = tiny_tokenizer()
    classes = compressed_vocabulary(tokenizer)
    assert len(classes) == tokenizer.get_vocab_size()
    the = {int(classes[tokenizer.token_to_id(token)]) for token in ("the", "Ġthe", "The", "ĠThe")}
    blanks = {int(classes[tokenizer.token_to_id(token)]) for token in ("Ġ", "Ċ", "ĠĠ", "ĊĊ")}
    assert len(the) == len(blanks) == 1
    assert the != blanks
    assert classes[:3].tolist() == [0, 1, 2]


def test_lone_bytes_keep_their_own_class() -> None:
    """A token that is not valid UTF-8 alone is keyed by its vocabulary string, not by the replacement character."""
    tokenizer = tiny_tokenizer()
    classes = compressed_vocabulary(tokenizer)
    lone = [
        i
        for i in range(tokenizer.get_vocab_size())
        if "�" in tokenizer.decode([i], skip_special_tokens=False)
    ]
    assert len(lone) == 128
    assert len({int(classes[i]) for i in lone}) == 128


def test_classes_are_numbered_by_first_appearance() -> None:
    classes = compressed_vocabulary(tiny_tokenizer(400)).tolist()
    seen: list[int] = []
    for value in classes:
        if value not in seen:
            seen.append(value)
    assert seen == list(range(len(seen)))
    assert len(seen) < len(classes)


def test_declared_size_must_agree() -> None:
    config = ModelConfig.from_dict(tiny_config(text={"engram_compressed_vocab_size": 300}))
    with pytest.raises(ConfigError, match=r"engram_compressed_vocab_size = 300 .* 270"):
        derive_engram(config, tiny_tokenizer())


def test_without_compression_ids_are_classes() -> None:
    raw = tiny_config()
    del raw["text_config"]["engram_compressed_vocab_size"]
    config = ModelConfig.from_dict(raw)
    data = derive_engram(config, tiny_tokenizer())
    assert data is not None
    assert data.vocabulary.tolist() == list(range(320))
    assert torch.equal(data.tables[0].multipliers, engram_tables(config.text, 320)[0].multipliers)


def test_model_without_engram() -> None:
    config = ModelConfig.from_dict(tiny_config(text={"engram_layer_ids": []}))
    assert derive_engram(config, tiny_tokenizer()) is None


def test_padding_token_is_required() -> None:
    with pytest.raises(TokenizerError, match="has id None; it must have id 2"):
        compressed_vocabulary(Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])))


def test_products_fit_in_63_bits() -> None:
    config = ModelConfig.from_dict(tiny_config())
    for size in (1, 2, 320, 99092, 2**31):
        for table in engram_tables(config.text, size):
            assert all(m % 2 == 1 and (size - 1) * m < 2**63 for m in table.multipliers.tolist())


@given(st.integers(0, 20_000))
def test_is_prime(number: int) -> None:
    assert is_prime(number) == (number > 1 and all(number % d for d in range(2, int(number**0.5) + 1)))


@pytest.mark.parametrize("composite", [2047, 1_373_653, 25_326_001])
def test_strong_pseudoprimes_are_no_primes(composite: int) -> None:
    """Composites that fool the test with the bases 2; 2, 3; and 2, 3, 5."""
    assert not is_prime(composite)


def test_is_prime_refuses_numbers_it_cannot_decide() -> None:
    with pytest.raises(ValueError, match="3215031751"):
        is_prime(3_215_031_751)


@given(st.integers(1, 3), st.integers(2, 200), st.integers(2, 4), st.integers(1, 4))
def test_table_sizes_are_the_smallest_unused_primes(layers: int, low: int, n: int, heads: int) -> None:
    sizes = engram_primes(layers, low, n, heads)
    flat = [size for layer in sizes for order in layer for size in order]
    assert len(set(flat)) == len(flat) == layers * (n - 1) * heads
    assert sorted(flat) == flat
    primes = (p for p in range(low, flat[-1] + 1) if is_prime(p))
    assert flat == list(primes)


def test_no_number_is_tested_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[int] = []
    monkeypatch.setattr("di_model.primes.is_prime", lambda number: tested.append(number) or is_prime(number))
    sizes = engram_primes(3, 1000, 4, 8)
    assert tested == list(range(1000, sizes[-1][-1][-1] + 1))
