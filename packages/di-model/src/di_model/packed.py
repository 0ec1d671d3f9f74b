"""Packed weights of a checkpoint: in memory, or in a cache file that is written once and mapped from then on.

The layout changes time only, never a bit of a result (:mod:`di_kernels.packing`).
"""

from __future__ import annotations

import enum
import math
from pathlib import Path

from di_kernels.ops.linear import LinearWeight
from di_kernels.packing import pack_all, packed_shape

from di_model.assemble import outline
from di_model.checkpoint import Checkpoint
from di_model.config import ModelConfig
from di_model.packed_file import packed_file
from di_model.tensors import Part, expected_tensors
from di_model.weight_tree import matrices, replace_matrices
from di_model.weights import ModelWeights

SMALL_BYTES = 1_000_000_000
"""Matrices of at most so many bytes in all are packed in memory without being asked."""


class WeightLayout(enum.Enum):
    """How the matrices of a model lie in memory."""

    AUTO = "auto"
    """Packed where a directory is given or the matrices are small, else as stored."""
    STORED = "stored"
    """As the checkpoint stores them, in its mapped files: nothing is copied, work starts at once."""
    PACKED = "packed"
    """Interleaved for the kernels: in the cache file of the directory if one is given, else in memory."""


def lay_out(checkpoint: Checkpoint, layout: WeightLayout, directory: Path | None = None) -> ModelWeights:
    """The weights of ``checkpoint`` in ``layout``.

    Args:
        checkpoint: as it was opened.
        layout: what is wanted.
        directory: of the cache files; made if it is missing.

    Raises:
        PackedFileError: the cache file can neither be read nor written.
    """
    if layout is WeightLayout.STORED:
        return checkpoint.weights
    if directory is not None:
        return packed_file(checkpoint, directory)
    if layout is WeightLayout.AUTO and matrix_bytes(checkpoint.weights) > SMALL_BYTES:
        return checkpoint.weights
    return pack_in_memory(checkpoint.weights)


def copy_bytes(config: ModelConfig, layout: WeightLayout, *, draft: bool = True) -> int:
    """Bytes of the packed copy that :func:`lay_out` makes in memory, without a directory, of such a checkpoint.

    Args:
        config: of the model; no file is read.
        layout: what is wanted.
        draft: whether the draft model is loaded.
    """
    if layout is WeightLayout.STORED or (layout is WeightLayout.AUTO and _has_large_experts(config)):
        return 0
    weights = outline(config, draft=draft)
    if layout is WeightLayout.AUTO and matrix_bytes(weights) > SMALL_BYTES:
        return 0
    return sum(math.prod(packed_shape(matrix.format, *matrix.shape)) for _, matrix in matrices(weights))


def _has_large_experts(config: ModelConfig) -> bool:
    """Whether the backbone's experts alone are too large for AUTO: an outline of the released model takes seconds."""
    last = config.text.num_hidden_layers
    specs = expected_tensors(config).values()
    experts = (s for s in specs if s.part is Part.EXPERTS and s.layer is not None and s.layer < last)
    return sum(spec.nbytes for spec in experts) > SMALL_BYTES


def matrix_bytes(weights: ModelWeights) -> int:
    """Stored bytes of all matrices, scales included."""
    return sum(matrix.nbytes for _, matrix in matrices(weights))


def pack_in_memory(weights: ModelWeights) -> ModelWeights:
    """``weights`` with every matrix packed, all in one piece of memory."""
    stored = dict(matrices(weights))
    packed: dict[str, LinearWeight] = dict(zip(stored, pack_all(list(stored.values())), strict=True))
    return replace_matrices(weights, lambda name, _: packed[name])
