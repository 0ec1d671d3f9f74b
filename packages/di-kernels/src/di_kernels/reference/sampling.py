"""Reference of the sampling family (decoding specification, 3 to 5): numpy, row by row, with a full sort.

Only exact element-wise float64 operations are used on vectors: the bits are the contract's on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from di_kernels.ops.sampling import DrawPurpose

_GREEDY_TEMPERATURE = 1e-5
_LANES = 16
_FIXED_POINT_ONE = float(1 << 31)
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_ROUNDER = 1.5 * 2.0**52
_SMALLEST_EXPONENT = -708.0
_EXP_SERIES = [1.0 / math.factorial(k) for k in range(14)]
_ATANH_SERIES = [1.0 / (2 * k + 1) for k in range(12)]

Floats = NDArray[np.float64]


def philox(seeds: Tensor, positions: Tensor, purpose: DrawPurpose, count: int) -> Tensor:
    """See :func:`di_kernels.ops.sampling.philox`."""
    rows = [
        list(islice(_stream(seed, position, purpose), count))
        for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), count)


def all_finite(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.all_finite`."""
    return torch.isfinite(logits).all(dim=1)


def argmax(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.argmax`."""
    rows = [int(_ranking(row)[0]) if _has_distribution(row) else -1 for row in logits.numpy()]
    return torch.tensor(rows, dtype=torch.int64)


def log_softmax(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.log_softmax`."""
    rows = (
        np.stack([_log_softmax_row(row) for row in logits.numpy()]) if len(logits) else np.empty(logits.shape)
    )
    with np.errstate(over="ignore"):  # beyond float32: -inf
        return torch.from_numpy(rows.astype(np.float32))


def logprobs_at(logits: Tensor, ids: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.logprobs_at`."""
    return log_softmax(logits).gather(1, ids[:, None])[:, 0]


def token_ranks(logits: Tensor, ids: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.token_ranks`."""
    ranks = [
        int(np.nonzero(_ranking(row) == token)[0][0]) + 1
        for row, token in zip(logits.numpy(), ids.tolist(), strict=True)
    ]
    return torch.tensor(ranks, dtype=torch.int64)


def top_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.sampling.top_logprobs`."""
    rows = [_ranking(row)[:k] for row in logits.numpy()]
    ids = torch.from_numpy(np.array(rows, dtype=np.int64).reshape(len(rows), k))
    return ids, log_softmax(logits).gather(1, ids)


def apply_penalties(
    logits: Tensor,
    row_starts: Tensor,
    token_ids: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """See :func:`di_kernels.ops.sampling.apply_penalties`."""
    for r, row in enumerate(logits):
        entries = slice(int(row_starts[r]), int(row_starts[r + 1]))
        ids, counts = token_ids[entries], output_counts[entries]
        x = row[ids]
        x = torch.where(x > 0, x / repetition[r], x * repetition[r])
        x = x - frequency[r] * counts.to(torch.float32)
        row[ids] = torch.where(counts > 0, x - presence[r], x)


def apply_bias(logits: Tensor, row_starts: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """See :func:`di_kernels.ops.sampling.apply_bias`."""
    for r, row in enumerate(logits):
        for entry in range(int(row_starts[r]), int(row_starts[r + 1])):
            row[token_ids[entry]] += values[entry]


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """See :func:`di_kernels.ops.sampling.sample`."""
    tokens = []
    for r, row in enumerate(logits.numpy()):
        if not _has_distribution(row):
            tokens.append(-1)
        elif float(temperature[r]) < _GREEDY_TEMPERATURE:
            tokens.append(int(_ranking(row)[0]))
        else:
            weights = _weights(row, float(temperature[r]))
            weights[~_kept(row, weights, int(top_k[r]), float(top_p[r]), float(min_p[r]))] = 0.0
            tokens.append(_draw(weights, _stream(int(seeds[r]), int(positions[r]), DrawPurpose.FRESH)))
    return torch.tensor(tokens, dtype=torch.int64)


def _has_distribution(row: NDArray[np.float32]) -> bool:
    return not np.isnan(row).any() and bool(np.isfinite(row.max()))


def _ranking(row: NDArray[np.float32]) -> NDArray[np.int64]:
    """Columns by logit descending, equals by lower column, NaN last."""
    return np.argsort(-row, kind="stable")


def _exp(x: Floats) -> Floats:
    """exp of values <= 0: reduction by ln 2, Taylor polynomial, scale by a power of two."""
    with np.errstate(all="ignore"):  # far below the smallest exponent; replaced by 0
        shifted = x * _LOG2_E + _ROUNDER
        n = shifted - _ROUNDER
        r = (x - n * _LN2_HIGH) - n * _LN2_LOW
        y = np.full_like(x, _EXP_SERIES[13])
        for coefficient in reversed(_EXP_SERIES[:13]):
            y = y * r + coefficient
        power = ((shifted.view(np.uint64) + np.uint64(1023)) << np.uint64(52)).view(np.float64)
        return np.where(x < _SMALLEST_EXPONENT, 0.0, y * power)


def _log(x: float) -> float:
    """ln of a value >= 1 by the series of atanh."""
    mantissa, exponent = math.frexp(x)
    if mantissa < math.sqrt(0.5):
        mantissa, exponent = mantissa * 2.0, exponent - 1
    f = (mantissa - 1.0) / (mantissa + 1.0)
    square = f * f
    y = _ATANH_SERIES[11]
    for coefficient in reversed(_ATANH_SERIES[:11]):
        y = y * square + coefficient
    return exponent * _LN2_HIGH + ((2.0 * f) * y + exponent * _LN2_LOW)


def _sum(x: Floats) -> float:
    """Sixteen interleaved partial sums, then a tree."""
    padded = np.zeros((-(-len(x) // _LANES), _LANES))
    padded.reshape(-1)[: len(x)] = x
    lanes = np.cumsum(padded, axis=0)[-1]  # cumsum adds strictly in order
    for width in (8, 4, 2, 1):
        lanes = lanes[:width] + lanes[width : 2 * width]
    return float(lanes[0])


def _weights(row: NDArray[np.float32], temperature: float) -> Floats:
    x: Floats = row.astype(np.float64)
    return _exp((x - x.max()) / temperature)


def _log_softmax_row(row: NDArray[np.float32]) -> Floats:
    if not _has_distribution(row):
        return np.full(row.shape, np.nan)
    x: Floats = row.astype(np.float64)
    result: Floats = (x - x.max()) - _log(_sum(_weights(row, 1.0)))
    return result


def _kept(
    row: NDArray[np.float32], weights: Floats, top_k: int, top_p: float, min_p: float
) -> NDArray[np.bool_]:
    keep = weights >= min_p
    order = _ranking(row)
    if 1 <= top_k < len(row):
        keep[order[top_k:]] = False
    if top_p < 1.0:
        before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
        keep[order[before >= top_p * _sum(weights)]] = False
    return keep


def _draw(weights: Floats, stream: Iterator[int]) -> int:
    units = np.floor(weights / _sum(weights) * _FIXED_POINT_ONE).astype(np.int64)
    edges = np.cumsum(units)
    total = int(edges[-1])
    limit = (2**32 - 1) // total * total
    value = next(value for value in stream if value < limit)
    return int(np.searchsorted(edges, value % total, side="right"))


def _stream(seed: int, position: int, purpose: int) -> Iterator[int]:
    """Philox4x32-10: key = seed, counter = (block number, subsequence), each 64 bits wide."""
    subsequence = (3 * position + purpose) % 2**64
    block = 0
    while True:
        yield from _philox_block(seed % 2**64, block | subsequence << 64)
        block += 1


def _philox_block(key: int, counter: int) -> tuple[int, int, int, int]:
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = (counter >> shift & mask for shift in (0, 32, 64, 96))
    k0, k1 = key & mask, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & mask, (p0 >> 32) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3
