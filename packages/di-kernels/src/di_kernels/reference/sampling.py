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

from di_kernels.ops.sampling import PARAMETERS, DrawPurpose

_GREEDY_TEMPERATURE = 1e-5
_LANES = 16
_ONE = 2.0**31
_LOWEST = np.float32(-22)
_SMALLEST_SCALE = np.float32(2.0**-126)

# exp in float32 (csrc/simd/simd.hpp) ...
_LOG2_E = float.fromhex("0x1.715476p0")
_ROUNDER = 1.5 * 2.0**23
_MINUS_LN2 = float.fromhex("-0x1.62e4p-1"), float.fromhex("-0x1.7f7d1cp-20")
_EXP_SERIES = [float(np.float32(1.0 / math.factorial(k))) for k in range(8)]
# ... and ln in float64
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_ATANH_SERIES = [1.0 / (2 * k + 1) for k in range(12)]

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Weights = NDArray[np.int64]


def philox(seeds: Tensor, positions: Tensor, purpose: DrawPurpose, count: int) -> Tensor:
    """See :func:`di_kernels.ops.sampling.philox`."""
    rows = [
        list(islice(_stream(seed, position, purpose), count))
        for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    return torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(len(rows), count)


def all_finite(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.all_finite`."""
    return torch.isfinite(logits).all(dim=1)


def argmax(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.argmax`."""
    rows = [int(_ranking(row)[0]) if _has_distribution(row) else -1 for row in logits.numpy()]
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def log_softmax(logits: Tensor) -> Tensor:
    """See :func:`di_kernels.ops.sampling.log_softmax`."""
    rows = (
        np.stack([_log_softmax_row(row) for row in logits.numpy()]) if len(logits) else np.empty(logits.shape)
    )
    with np.errstate(over="ignore"):  # beyond float32: -inf
        return torch.from_numpy(rows.astype(np.float32))


def describe_tokens(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See :func:`di_kernels.ops.sampling.describe_tokens`."""
    rankings = torch.from_numpy(
        np.array([_ranking(row) for row in logits.numpy()], dtype=np.int64).reshape(logits.shape)
    )
    logprobs, best = log_softmax(logits), rankings[:, :k]
    ranks = (rankings == ids[:, None]).nonzero()[:, 1] + 1
    return logprobs.gather(1, ids[:, None])[:, 0], ranks, best, logprobs.gather(1, best)


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


def apply_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor | None = None) -> None:
    """See :func:`di_kernels.ops.sampling.apply_bitmask`."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    allowed = (bitmask.view(torch.int32)[:, columns // 32] >> (columns % 32)) & 1
    for i, row in enumerate(range(len(bitmask)) if rows is None else rows.tolist()):
        logits[row, allowed[i] == 0] = -math.inf


def choose(
    logits: Tensor, parameters: Tensor, positions: Tensor, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See :func:`di_kernels.ops.sampling.choose`."""
    part = logits if rows is None else logits[rows]
    records = np.frombuffer(parameters.numpy().tobytes(), dtype=PARAMETERS)
    given = {
        name: torch.from_numpy(records[name].copy()) for name in ("temperature", "top_k", "top_p", "min_p")
    }
    given["seeds"] = torch.from_numpy(records["seed"].view(np.int64).copy())
    return sample(part, **given, positions=positions), all_finite(part)


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
            weights = _fixed_point(row, float(temperature[r]))
            weights[~_kept(row, weights, int(top_k[r]), float(top_p[r]), float(min_p[r]))] = 0
            tokens.append(_draw(weights, _stream(int(seeds[r]), int(positions[r]), DrawPurpose.FRESH)))
    return torch.tensor(tokens, dtype=torch.int64, device="cpu")


def _has_distribution(row: NDArray[np.float32]) -> bool:
    return not np.isnan(row).any() and bool(np.isfinite(row.max()))


def _ranking(row: NDArray[np.float32]) -> NDArray[np.int64]:
    """Columns by logit descending, equals by lower column, NaN as -inf."""
    return np.argsort(-np.where(np.isnan(row), np.float32(-np.inf), row), kind="stable")


def _fma(a: Floats32, b: Floats32 | float, c: Floats32 | float) -> Floats32:
    """``a * b + c`` rounded once to float32. The product is exact in float64; their sum is rounded to odd there, so
    that it can be rounded again."""
    product, addend = a.astype(np.float64) * np.asarray(b, np.float64), np.asarray(c, np.float64)
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    odd = (total.view(np.int64) & 1).astype(bool)
    toward = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    return np.where((lost == 0) | odd, total, toward).astype(np.float32)


def _exp(x: Floats32) -> Floats32:
    """exp of float32 values <= 0: reduction by ln 2, Taylor polynomial, scale by a power of two."""
    x = np.maximum(x, np.float32(-104))
    n = _fma(x, _LOG2_E, _ROUNDER) - np.float32(_ROUNDER)
    r = _fma(n, _MINUS_LN2[1], _fma(n, _MINUS_LN2[0], x))
    y = np.full_like(x, _EXP_SERIES[7])
    for coefficient in reversed(_EXP_SERIES[:7]):
        y = _fma(y, r, coefficient)
    half = n.astype(np.int32) >> 1
    one = np.float32(1)
    scaled: Floats32 = y * np.ldexp(one, half) * np.ldexp(one, n.astype(np.int32) - half)
    return scaled


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


def _fixed_point(row: Floats32, temperature: float) -> Weights:
    """``floor(2^31 e^z)``, z in float32."""
    with np.errstate(over="ignore"):  # the distance between two logits: -inf
        scale = max(np.float32(1.0 / temperature), _SMALLEST_SCALE)
        z = np.maximum((row - row.max()) * scale, _LOWEST)
    weights: Weights = np.floor(_exp(z) * np.float32(_ONE)).astype(np.int64)
    return weights


def _log_softmax_row(row: Floats32) -> Floats:
    if not _has_distribution(row):
        return np.full(row.shape, np.nan)
    with np.errstate(over="ignore"):
        weights = _exp(row - row.max()).astype(np.float64)
    x: Floats = row.astype(np.float64)
    result: Floats = (x - x.max()) - _log(_sum(weights))
    return result


def _kept(row: Floats32, weights: Weights, top_k: int, top_p: float, min_p: float) -> NDArray[np.bool_]:
    keep = weights >= min_p * _ONE
    order = _ranking(row)
    if 1 <= top_k < len(row):
        keep[order[top_k:]] = False
    if top_p < 1.0:
        before = np.concatenate([[0], np.cumsum(weights[order])[:-1]])
        keep[order[before >= math.ceil(top_p * float(weights.sum()))]] = False
    return keep


def _draw(weights: Weights, stream: Iterator[int]) -> int:
    edges = np.cumsum(weights)
    total = int(edges[-1])
    pairs = (high << 32 | low for high, low in zip(stream, stream, strict=False))
    products = (value * total for value in pairs)
    product = next(product for product in products if product % 2**64 >= 2**64 % total)
    return int(np.searchsorted(edges, product >> 64, side="right"))


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
