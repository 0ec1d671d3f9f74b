"""The BF16 form of a quantized checkpoint, in memory: what an unquantized copy of it would hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from di_kernels.ops.engram import EngramTable
from di_kernels.ops.formats import EntryFormat, decode
from di_kernels.ops.linear import LinearWeight
from di_model.checkpoint import Checkpoint


def unquantized(checkpoint: Checkpoint) -> Checkpoint:
    """The same numbers without scales: every quantized matrix and table in BF16, which holds them exactly.

    Codes have at most 4 significant bits and scales are powers of two, so nothing is rounded (checkpoint
    specification, 3.3 to 3.5). Meant for small checkpoints: all matrices are expanded in memory.
    """
    if checkpoint.config.quantization is None:
        return checkpoint
    return dataclasses.replace(
        checkpoint,
        config=dataclasses.replace(checkpoint.config, quantization=None),
        weights=_expanded(checkpoint.weights),
    )


def _expanded(value: Any) -> Any:
    """A tree of weight records with its matrices expanded; everything else as it is."""
    if isinstance(value, LinearWeight):
        return value if value.scale is None else LinearWeight.dense(value.dequantize(torch.bfloat16))
    if isinstance(value, EngramTable) and value.scale is not None:
        return EngramTable(decode(value.data, value.scale, EntryFormat.FP8, torch.bfloat16))
    if isinstance(value, tuple):
        return tuple(map(_expanded, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _expanded(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
