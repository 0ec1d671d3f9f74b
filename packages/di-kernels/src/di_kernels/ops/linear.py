"""Linear layers over weights in their stored form: float32, bfloat16, FP8 (32x32 blocks) and MXFP4.

``y = x . W^T`` with float32 accumulation in one fixed order over the input dimension for every number of rows.
Formats: checkpoint specification, 3.3 and 3.4. Activation quantization: backbone specification, 2.3.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from di_kernels.dispatch import kernel
from di_kernels.errors import shown
from di_kernels.ops.checks import (
    ACTIVATIONS,
    check_dtype,
    check_kind,
    check_multiple,
    check_number,
    check_positive,
    check_result_type,
    check_shape,
    check_strided,
)


class WeightFormat(enum.Enum):
    """Stored form of a weight matrix."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FP8 = 2
    MXFP4 = 3


_DTYPES = {
    WeightFormat.FLOAT32: torch.float32,
    WeightFormat.BFLOAT16: torch.bfloat16,
    WeightFormat.FP8: torch.uint8,
    WeightFormat.MXFP4: torch.uint8,
}
_VALUES_PER_CODE = {WeightFormat.FP8: 1, WeightFormat.MXFP4: 2}
MOST_SIZE = 1 << 40
"""Largest number of rows or columns of a packed matrix."""


@dataclass(frozen=True, eq=False)
class LinearWeight:
    """A weight matrix ``[n, k]``, as the checkpoint stores it or packed for the CPU (:mod:`di_kernels.packing`).

    Attributes:
        format: stored form.
        data: FLOAT32/BFLOAT16: ``[n, k]`` of that type; FP8: uint8 E4M3 codes ``[n, k]``; MXFP4: uint8
            ``[n, k/2]``, two E2M1 codes a byte, the even input in the low nibble.
        scale: FP8: uint8 UE8M0 ``[n/32, k/32]`` (one per 32x32 block); MXFP4: uint8 UE8M0 ``[n, k/32]`` (one per row
            and 32 inputs); else None.
        packed_shape: ``(n, k)`` where the matrix is packed: ``data`` then is uint8 ``[ceil(n/16), bytes]``, a group of
            16 rows with its scales in each row, and ``scale`` is None.

    Raises:
        TypeError, ValueError: ``data`` or ``scale`` is not what the format asks for.
    """

    format: WeightFormat
    data: Tensor
    scale: Tensor | None = None
    packed_shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_kind("format", self.format, WeightFormat)
        packed = self.packed_shape is not None
        check_dtype("data", self.data, torch.uint8 if packed else _DTYPES[self.format])
        check_strided("data", self.data)
        check_shape("data", self.data, None, None)
        if packed:
            self._check_packed_shape()
        if packed or self.format not in _VALUES_PER_CODE:
            if self.scale is not None:
                raise ValueError(f"scale is {shown(self.scale)}; {self._described()} has None")
        elif self.scale is None:
            raise ValueError(f"scale is None; {self._described()} needs its scales")
        else:
            _check_codes("data", self.format, self.data, self.scale)

    def _described(self) -> str:
        return f"a {'packed ' if self.is_packed else ''}weight of format {self.format.name}"

    def _check_packed_shape(self) -> None:
        shape = self.packed_shape
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise ValueError(f"packed_shape is {shown(shape)}; it must be two integers, rows and columns")
        for place, size in enumerate(shape):
            check_kind(f"packed_shape[{place}]", size, int)
            check_number(f"packed_shape[{place}]", size, 0, MOST_SIZE)

    @classmethod
    def dense(cls, data: Tensor) -> LinearWeight:
        """A float32 or bfloat16 matrix ``[n, k]``."""
        check_dtype("data", data, *ACTIVATIONS)
        return cls(WeightFormat.BFLOAT16 if data.dtype == torch.bfloat16 else WeightFormat.FLOAT32, data)

    @classmethod
    def fp8(cls, codes: Tensor, scale: Tensor) -> LinearWeight:
        """E4M3 codes ``[n, k]`` (uint8) with UE8M0 scales ``[n/32, k/32]`` (uint8)."""
        _check_codes("codes", WeightFormat.FP8, codes, scale)
        return cls(WeightFormat.FP8, codes, scale)

    @classmethod
    def mxfp4(cls, codes: Tensor, scale: Tensor) -> LinearWeight:
        """E2M1 code pairs ``[n, k/2]`` (uint8) with UE8M0 scales ``[n, k/32]`` (uint8)."""
        _check_codes("codes", WeightFormat.MXFP4, codes, scale)
        return cls(WeightFormat.MXFP4, codes, scale)

    @property
    def shape(self) -> tuple[int, int]:
        """Logical shape ``(n, k)``."""
        if self.packed_shape is not None:
            return self.packed_shape
        n, k = self.data.shape
        return n, 2 * k if self.format is WeightFormat.MXFP4 else k

    @property
    def is_packed(self) -> bool:
        """Whether the matrix is packed."""
        return self.packed_shape is not None

    @property
    def nbytes(self) -> int:
        """Stored bytes, scales included."""
        return self.data.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def rows(self, start: int, stop: int) -> LinearWeight:
        """The matrix of output rows ``start..stop-1``, sharing storage (multiples of 32 for FP8).

        Of a packed matrix ``start`` must be a multiple of 16, and so must ``stop`` unless it is the end.
        """
        if self.packed_shape is not None:
            return self._packed_rows(start, stop, *self.packed_shape)
        check_number("start", start, 0, self.shape[0])
        check_number("stop", stop, start, self.shape[0])
        if self.scale is None:
            return LinearWeight(self.format, self.data[start:stop])
        step = 32 if self.format is WeightFormat.FP8 else 1
        check_multiple("start", start, step)
        check_multiple("stop", stop, step)
        return LinearWeight(self.format, self.data[start:stop], self.scale[start // step : stop // step])

    def _packed_rows(self, start: int, stop: int, n: int, k: int) -> LinearWeight:
        step = 32 if self.format is WeightFormat.FP8 else 16
        check_number("start", start, 0, n)
        check_number("stop", stop, start, n)
        check_multiple("start", start, step)
        if stop != n:
            check_multiple("stop", stop, step)
        return LinearWeight(self.format, self.data[start // 16 : -(-stop // 16)], None, (stop - start, k))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The matrix ``[n, k]`` in ``dtype``; exact in bfloat16 and float32 for the quantized formats."""
        from di_kernels.reference.linear import dequantize

        return dequantize(self, dtype)


def _check_codes(name: str, form: WeightFormat, codes: Tensor, scale: Tensor) -> None:
    """Raise TypeError or ValueError unless ``codes`` and ``scale`` make a weight with scales."""
    check_dtype(name, codes, torch.uint8)
    check_dtype("scale", scale, torch.uint8)
    check_strided("scale", scale)
    check_shape(name, codes, None, None)
    rows, columns = codes.shape[0], codes.shape[1] * _VALUES_PER_CODE[form]
    rows_per_scale = 32 if form is WeightFormat.FP8 else 1
    check_multiple(f"rows of an {form.name} weight", rows, rows_per_scale)
    check_multiple(f"columns of an {form.name} weight", columns, 32)
    check_shape("scale", scale, rows // rows_per_scale, columns // 32)


def linear(
    x: Tensor, weight: LinearWeight, *, quantize_input: bool = False, out_dtype: torch.dtype | None = None
) -> Tensor:
    """``x . W^T`` for each row of ``x``.

    The sum of a block of 32 inputs is formed before it is scaled, so it can overflow to an infinity where the scaled
    sum would be finite: inputs near 3e38 with FP8 weights of tiny scales. (On amx weights are scaled first if ``x`` is
    bfloat16.)

    Args:
        x: ``[rows, k]`` bfloat16 or float32.
        weight: ``[n, k]``.
        quantize_input: first replace each group of 32 inputs of a row by its MXFP8 value (backbone specification, 2.3).
        out_dtype: bfloat16 (rounded once) or float32; default the type of ``x``.

    Returns:
        ``[rows, n]`` of ``out_dtype``.
    """
    try:
        y: Tensor = kernel("linear", "linear", x)(x, weight, quantize_input, out_dtype or x.dtype)
    except Exception:
        _check_linear(x, weight, quantize_input, out_dtype)
        raise
    return y


def _check_linear(
    x: Tensor, weight: LinearWeight, quantize_input: bool, out_dtype: torch.dtype | None
) -> None:
    """Say which argument of :func:`linear` is refused. The kernels refuse it anyway; asked before each call, this would
    take as long as a twentieth of the product of one row, for it finds its code and data out of the caches."""
    check_dtype("x", x, *ACTIVATIONS)
    check_kind("weight", weight, LinearWeight)
    check_shape("x", x, None, weight.shape[1])
    check_kind("quantize_input", quantize_input, bool)
    if quantize_input:
        check_multiple("columns of x", x.shape[1], 32)
    check_result_type("out_dtype", out_dtype or x.dtype)


def grouped_linear(x: Tensor, weight: LinearWeight, groups: int) -> Tensor:
    """A block-diagonal linear: group ``g`` of the inputs meets rows ``g*n/groups ..`` of the weight.

    Used for the low-rank output projection (attention specification, 10.4). The input is not quantized.

    Args:
        x: ``[rows, groups, k]`` bfloat16 or float32.
        weight: ``[n, k]``, ``n`` a multiple of ``groups``.
        groups: number of groups.

    Returns:
        ``[rows, n]`` in the type of ``x``, the groups' outputs side by side.
    """
    check_dtype("x", x, *ACTIVATIONS)
    check_kind("weight", weight, LinearWeight)
    check_positive("groups", groups)
    check_multiple("rows of the weight", weight.shape[0], groups)
    check_shape("x", x, None, groups, weight.shape[1])
    return cast(Tensor, kernel("linear", "grouped_linear", x)(x, weight, groups))
