"""Logits to tokens and log-probabilities (decoding specification, 3 to 5).

Every result of a row is a function of that row's logits and parameters alone. How it is computed is part of
the contract, because the bits are:

* Weights of a draw are 31-bit fixed point: ``w_i = floor(2^31 exp(z_i))`` with ``z_i = max(-22, (x_i - max x)
  * s)`` in float32, where ``s`` is ``1 / T`` rounded to float32 (at least 2^-126) and ``exp`` a fixed sequence of
  float32 operations (``csrc/simd/simd.hpp``). So the most probable column weighs 2^31, one that is less than
  2^-31 as probable nothing, and all masses are sums of integers, exact in any order.
* Log-probabilities are ``(x_i - max x) - ln sum e``, in float64, rounded once to float32. ``e_i = exp(x_i - max
  x)`` is the float32 function again; the sum adds column ``c`` to the float64 partial sum ``c mod 16`` in
  ascending order and folds the sixteen in a tree (8, 4, 2, 1 apart).
* Columns are ranked by logit descending, equal logits (``-0`` equals ``+0``) by lower column; NaN counts as
  ``-inf``.
* Random numbers are Philox4x32-10 in the cuRAND convention: key = seed, subsequence = ``3 * position +
  purpose``, offset 0. They depend on nothing else.
"""

from __future__ import annotations

import enum
import math
from typing import cast

import numpy as np
import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.errors import shown
from di_kernels.ops.checks import (
    MOST_COUNT,
    check_dtype,
    check_integer,
    check_kind,
    check_readable,
    check_shape,
    check_strided,
)


class DrawPurpose(enum.IntEnum):
    """What a random number is for; keeps the streams of one position apart (decoding specification, 5.1)."""

    FRESH = 0
    RESIDUAL = 1
    ACCEPT = 2


PARAMETERS = np.dtype(
    [("temperature", "f8"), ("top_p", "f8"), ("min_p", "f8"), ("top_k", "i8"), ("seed", "u8")]
)
"""What one row is drawn with, as :func:`choose` takes it. :func:`sample` says what the fields mean."""


class SamplingParametersError(ValueError):
    """Parameters that leave nothing to draw from, or not one record of them for each row."""


def philox(seeds: Tensor, positions: Tensor, purpose: DrawPurpose, count: int) -> Tensor:
    """The first ``count`` 32-bit numbers of the stream of each (seed, position, purpose).

    Args:
        seeds: int64 ``[rows]``, the bits of an unsigned 64-bit seed.
        positions: int64 ``[rows]``, not negative.
        purpose: one for all rows.
        count: 0 to 2^31 - 1.

    Returns:
        int64 ``[rows, count]``, values in ``[0, 2^32)``.
    """
    check_shape("seeds", seeds, None)
    _check_streams(seeds, positions, seeds.shape[0])
    check_kind("purpose", purpose, DrawPurpose)
    check_integer("count", count, 0, MOST_COUNT)
    return cast(Tensor, kernel("sampling", "philox", seeds)(seeds, positions, purpose, count))


def all_finite(logits: Tensor) -> Tensor:
    """Whether each row of float32 ``[rows, vocab]`` is free of NaN and infinities; bool ``[rows]``."""
    _check_logits(logits)
    return cast(Tensor, kernel("sampling", "all_finite", logits)(logits))


def argmax(logits: Tensor) -> Tensor:
    """Column of the largest logit of each row, the lowest one of equals.

    Args:
        logits: float32 ``[rows, vocab]``.

    Returns:
        int64 ``[rows]``; -1 for a row with NaN, with +inf, or with nothing above -inf.
    """
    _check_logits(logits)
    return cast(Tensor, kernel("sampling", "argmax", logits)(logits))


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities of each row, float32 ``[rows, vocab]``.

    A row with NaN, with +inf, or with nothing above -inf has no distribution: all its results are NaN.
    """
    _check_logits(logits)
    return cast(Tensor, kernel("sampling", "log_softmax", logits)(logits))


def describe_tokens(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What is reported about a token of each row, and the most probable ones beside it.

    Log-probabilities are the bits of :func:`log_softmax`. Ranks go by descending logit, counted from 1; equal
    logits rank by lower column.

    Args:
        logits: float32 ``[rows, vocab]``.
        ids: int64 ``[rows]`` in ``[0, vocab)``.
        k: in ``[0, vocab]``.

    Returns:
        Log-probabilities float32 ``[rows]`` and ranks int64 ``[rows]`` of ``ids``; the ``k`` most probable columns
        int64 ``[rows, k]``, best first, and their log-probabilities float32 ``[rows, k]``.
    """
    _check_logits(logits)
    _check_ids("ids", ids, logits.shape[0], logits.shape[1])
    _check_count(k, logits)
    describe = kernel("sampling", "describe_tokens", logits)
    return cast("tuple[Tensor, Tensor, Tensor, Tensor]", describe(logits, ids, k))


def apply_penalties(
    logits: Tensor,
    row_starts: Tensor,
    token_ids: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Penalise, in place, tokens seen before. Row ``r`` has entries ``row_starts[r] .. row_starts[r+1]-1``.

    For each entry, in float32 and in this order: a positive logit is divided by ``repetition``, another is
    multiplied; ``frequency * count`` is subtracted; where ``count > 0``, ``presence`` is subtracted.

    Args:
        logits: float32 ``[rows, vocab]``, contiguous in its last dimension; edited.
        row_starts: int64 ``[rows + 1]``, ascending from 0 to the number of entries.
        token_ids: int64 ``[entries]`` in ``[0, vocab)``, distinct within a row: tokens of the prompt or the
            output.
        output_counts: int32 ``[entries]``: occurrences in the output, 0 for a token of the prompt only.
        repetition, presence, frequency: float32 ``[rows]``.
    """
    _check_entries(logits, row_starts, token_ids)
    check_dtype("output_counts", output_counts, torch.int32)
    check_shape("output_counts", output_counts, token_ids.shape[0])
    for name, values in (("repetition", repetition), ("presence", presence), ("frequency", frequency)):
        check_dtype(name, values, torch.float32)
        check_shape(name, values, logits.shape[0])
    kernel("sampling", "apply_penalties", logits)(
        logits, row_starts, token_ids, output_counts, repetition, presence, frequency
    )


def apply_bias(logits: Tensor, row_starts: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """Add ``values`` to single logits, in place; ``-inf`` forbids a token.

    Args:
        logits: float32 ``[rows, vocab]``, contiguous in its last dimension; edited.
        row_starts: int64 ``[rows + 1]``, ascending from 0 to the number of entries.
        token_ids: int64 ``[entries]`` in ``[0, vocab)``; one that is listed twice gets both values, in order.
        values: float32 ``[entries]``.
    """
    _check_entries(logits, row_starts, token_ids)
    check_dtype("values", values, torch.float32)
    check_shape("values", values, token_ids.shape[0])
    kernel("sampling", "apply_bias", logits)(logits, row_starts, token_ids, values)


def apply_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor | None = None) -> None:
    """Set the logits of columns whose bit is 0 to ``-inf``, in place.

    Args:
        logits: float32 ``[rows, vocab]``, contiguous in its last dimension; edited.
        bitmask: int32 or uint32 ``[count, ceil(vocab / 32)]``: bit ``c % 32`` of word ``c // 32`` allows column ``c``.
            Bits behind the last column mean nothing.
        rows: int64 ``[count]``, ascending: the row that each row of the bitmask is for. None: all, in order.
    """
    _check_logits(logits)
    _check_dense_rows(logits)
    check_dtype("bitmask", bitmask, torch.int32, torch.uint32)
    count = _check_rows(rows, logits)
    check_shape("bitmask", bitmask, count, (logits.shape[1] + 31) // 32)
    kernel("sampling", "apply_bitmask", logits)(logits, bitmask, rows)


def choose(
    logits: Tensor, parameters: Tensor, positions: Tensor, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one column from each row, as :func:`sample` does, and say whether the row was finite.

    This is :func:`sample` for a step of an engine: what belongs to a request comes packed, so that a batch is put
    together by joining bytes, and a row is read once to check it and to find its largest logit.

    Args:
        logits: float32 ``[rows, vocab]``.
        parameters: uint8 ``[count, 40]``, records of ``PARAMETERS``, aligned to 8 bytes; values as ``sample`` allows
            them, else ValueError.
        positions: int64 ``[count]``, not negative: absolute index of the token to be produced.
        rows: int64 ``[count]``: the row of logits of each. None: all, in order.

    Returns:
        Columns int64 ``[count]``, -1 for a row with NaN, with +inf, or with nothing above -inf; and bool ``[count]``,
        whether the row is free of NaN and infinities.
    """
    _check_logits(logits)
    count = _check_rows(rows, logits)
    check_dtype("parameters", parameters, torch.uint8)
    check_shape("parameters", parameters, count, PARAMETERS.itemsize)
    check_dtype("positions", positions, torch.int64)
    check_shape("positions", positions, count)
    chosen = kernel("sampling", "choose", logits)(logits, parameters, positions, rows)
    return cast("tuple[Tensor, Tensor]", chosen)


def pack_parameters(
    temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seeds: Tensor
) -> Tensor:
    """The parameters of :func:`sample` as :func:`choose` takes them, uint8 ``[rows, 40]``.

    Args:
        temperature, top_p, min_p: float64 ``[rows]``; :func:`choose` says whether it can draw with their values.
        top_k, seeds: int64 ``[rows]``.
    """
    check_shape("temperature", temperature, None)
    _check_parameters(temperature, top_k, top_p, min_p, seeds, temperature.shape[0])
    records = np.empty(len(temperature), dtype=PARAMETERS)
    for name, values in zip(PARAMETERS.names or (), (temperature, top_p, min_p, top_k, seeds), strict=True):
        records[name] = values.detach().cpu().resolve_neg().numpy().view(PARAMETERS[name])
    packed = records.view(np.uint8).reshape(len(records), PARAMETERS.itemsize)
    return torch.from_numpy(packed).to(temperature.device)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one column from each row.

    Below a temperature of 1e-5 the result is ``argmax`` and the filters are off. Otherwise all three filters
    look at the softmax of ``logits / temperature`` over the whole row (decoding specification, 4.3), and what
    all of them keep is drawn from:

    * top_k keeps the first ``k`` columns by rank; it is off unless ``1 <= k < vocab``.
    * top_p keeps the shortest prefix by rank whose mass is at least ``top_p`` times the mass of all columns (that
      product in float64); off at 1.
    * min_p keeps ``w_i >= min_p * 2^31``, the share of the most probable column's weight; off at 0.

    The draw: with ``W`` the sum of the kept weights, numbers of the FRESH stream are taken in pairs, the first as
    the high half of a 64-bit number ``v``, until ``v W mod 2^64 >= 2^64 mod W``, which makes every place equally
    likely. The place ``floor(v W / 2^64)`` falls into the interval of one column. Intervals follow each other in
    plain column order for every vocabulary size.

    Args:
        logits: float32 ``[rows, vocab]``.
        temperature, top_p, min_p: float64 ``[rows]``, in [0, inf), (0, 1] and [0, 1]; else ValueError.
        top_k: int64 ``[rows]``.
        seeds: int64 ``[rows]``, the bits of an unsigned 64-bit seed.
        positions: int64 ``[rows]``, not negative: absolute index of the token to be produced.

    Returns:
        int64 ``[rows]``; -1 for a row with NaN, with +inf, or with nothing above -inf.
    """
    _check_logits(logits)
    rows = logits.shape[0]
    _check_parameters(temperature, top_k, top_p, min_p, seeds, rows)
    _check_range("temperature", temperature, (temperature >= 0) & (temperature < math.inf), "[0, inf)")
    _check_range("top_p", top_p, (top_p > 0) & (top_p <= 1), "(0, 1]")
    _check_range("min_p", min_p, (min_p >= 0) & (min_p <= 1), "[0, 1]")
    _check_streams(seeds, positions, rows)
    parameters = pack_parameters(temperature, top_k, top_p, min_p, seeds)
    return choose(logits, parameters, positions)[0]


def _check_logits(logits: Tensor) -> None:
    check_dtype("logits", logits, torch.float32)
    check_shape("logits", logits, None, None)
    if logits.shape[1] == 0 or logits.shape[1] >= 2**31:
        raise ValueError(f"logits has {logits.shape[1]} columns; allowed: 1 to {2**31 - 1}")


def _check_parameters(
    temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seeds: Tensor, rows: int
) -> None:
    for name, values in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        _check_read(name, values, torch.float64, rows)
    for name, values in (("top_k", top_k), ("seeds", seeds)):
        _check_read(name, values, torch.int64, rows)


def _check_read(name: str, values: Tensor, dtype: torch.dtype, count: int | None) -> None:
    """Type, shape and place of an argument whose values are looked at here, before any kernel sees it."""
    check_dtype(name, values, dtype)
    check_readable(name, values)
    check_shape(name, values, count)


def _check_range(name: str, values: Tensor, valid: Tensor, allowed: str) -> None:
    if not bool(valid.all()):
        raise ValueError(f"{name} holds {values[~valid].tolist()}; allowed: {allowed}")


def _check_ids(name: str, ids: Tensor, count: int | None, vocab_size: int) -> None:
    _check_read(name, ids, torch.int64, count)
    if ids.numel() == 0:
        return
    low, high = map(int, ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise ValueError(f"{name} spans {low}..{high}; allowed: 0..{vocab_size - 1}")


def _check_streams(seeds: Tensor, positions: Tensor, rows: int) -> None:
    for name, values in (("seeds", seeds), ("positions", positions)):
        _check_read(name, values, torch.int64, rows)
    if rows and int(positions.min()) < 0:
        raise ValueError(f"positions holds {int(positions.min())}; positions must not be negative")


def _check_count(k: int, logits: Tensor) -> None:
    check_integer("k", k)
    if not 0 <= k <= logits.shape[1]:
        raise ValueError(f"k is {shown(k)}; it must be in [0, {logits.shape[1]}] (columns of the logits)")


def _check_rows(rows: Tensor | None, logits: Tensor) -> int:
    """How many rows of the logits are meant."""
    if rows is None:
        return logits.shape[0]
    check_dtype("rows", rows, torch.int64)
    check_shape("rows", rows, None)
    return rows.shape[0]


def _check_dense_rows(logits: Tensor) -> None:
    check_strided("logits", logits)
    if logits.shape[1] > 1 and logits.stride(1) != 1:
        raise ValueError("logits must be contiguous in its last dimension (it is edited in place)")
    if logits.shape[0] > 1 and logits.stride(0) < logits.shape[1]:
        raise ValueError("rows of logits share memory; each needs its own (it is edited in place)")


def _check_entries(logits: Tensor, row_starts: Tensor, token_ids: Tensor) -> None:
    _check_logits(logits)
    _check_dense_rows(logits)
    _check_ids("token_ids", token_ids, None, logits.shape[1])
    _check_read("row_starts", row_starts, torch.int64, logits.shape[0] + 1)
    starts = row_starts.tolist()
    if starts[0] != 0 or starts[-1] != token_ids.shape[0] or sorted(starts) != starts:
        raise ValueError(f"row_starts is {starts}; it must ascend from 0 to the {token_ids.shape[0]} entries")
