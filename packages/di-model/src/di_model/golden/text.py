"""The released tokenizer, and the Engram constants and hashes that follow from its vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from di_kernels.ops.engram import EngramHash
from di_kernels.reference.engram import engram_hash, engram_windows
from torch import Tensor

from di_model.engram_tables import compressed_vocabulary, hash_multipliers
from di_model.golden.files import CaseResult, GoldenFile, never_silent
from di_model.primes import engram_primes
from di_model.tokenizer import open_tokenizer

RELEASED_ENGRAM_LAYERS = (1, 14)
"""Engram layers of the released model, which the golden constants belong to."""
PAD_TOKEN = 2


@never_silent
def check_tokenizer(path: str | Path, tokenizer: str | Path) -> Iterator[CaseResult]:
    """Cases of ``tokenizer_cases.json``: ids and both decodings of every text, with the released tokenizer."""
    name = Path(path).name
    cases: list[dict[str, Any]] = json.loads(Path(path).read_text(encoding="utf-8"))["cases"]
    raw = open_tokenizer(tokenizer)
    if not cases:
        return
    for key, actual in (
        ("ids", [raw.encode(case["text"], add_special_tokens=False).ids for case in cases]),
        ("decoded", [raw.decode(case["ids"], skip_special_tokens=False) for case in cases]),
        ("decoded_skip_special", [raw.decode(case["ids"], skip_special_tokens=True) for case in cases]),
    ):
        missed = [i for i, case in enumerate(cases) if case[key] != actual[i]]
        figure = f"{len(cases) - len(missed)} of {len(cases)} equal"
        if missed:
            figure += f"; first miss is case {missed[0]}, text {cases[missed[0]]['text'][:40]!r}"
        yield CaseResult(name, key.replace("_", " "), figure, not missed)


@never_silent
def check_engram(path: str | Path, tokenizer: str | Path) -> Iterator[CaseResult]:
    """Cases of ``engram_released.npz``: vocabulary map, constants, and hash ids of texts."""
    file = GoldenFile(path)
    vocabulary = compressed_vocabulary(tokenizer)
    yield file.equal("token map", vocabulary, file["token_map"])
    constants = _constants(file, int(vocabulary.max()) + 1)
    for name in ("primes", "offsets", "multipliers"):
        derived = torch.stack([getattr(layer, name) for layer in constants])
        yield file.equal(name, derived, file[name])
    pad = int(vocabulary[PAD_TOKEN])
    yield CaseResult(file.name, "padding class", f"{pad}", pad == int(file["pad_id"]))
    for case in file.cases("ids"):
        yield file.equal(
            f"{case} hash", _hash(file[f"{case}.ids"], vocabulary, pad, constants), file[f"{case}.hash"]
        )
    if "masked.mask" in file:
        text = file["masked.mask"]
        # An image position holds a token outside the vocabulary.
        ids = torch.where(text, file["random.ids"], len(vocabulary)).to(torch.int32)
        hashed = _hash(ids, vocabulary, pad, constants)
        yield file.equal("masked hash", hashed[text], file["masked.hash"][text])
    yield from file.leftovers()


def _constants(file: GoldenFile, compressed_size: int) -> list[EngramHash]:
    """Constants of the released layers. Segment sizes are consecutive primes, so the first one tells where to start."""
    layers, orders, heads = file["primes"].shape
    sizes = torch.tensor(
        engram_primes(layers, int(file["primes"][0, 0, 0]), orders + 1, heads), dtype=torch.int64
    )
    return [
        EngramHash(
            multipliers=hash_multipliers(layer, orders + 1, compressed_size),
            primes=primes,
            offsets=primes.flatten().cumsum(0) - primes.flatten(),
        )
        for layer, primes in zip(RELEASED_ENGRAM_LAYERS, sizes, strict=True)
    ]


def _hash(ids: Tensor, vocabulary: Tensor, pad: int, constants: list[EngramHash]) -> Tensor:
    """Hash ids of a sequence: int64 ``[T, layers, columns]``."""
    order = len(constants[0].multipliers)
    padded = torch.cat([ids.new_full((order - 1,), -1), ids])
    windows = engram_windows(padded.unfold(0, order, 1).flip(1), vocabulary, pad)
    return torch.stack([engram_hash(windows, layer) for layer in constants], dim=1)
