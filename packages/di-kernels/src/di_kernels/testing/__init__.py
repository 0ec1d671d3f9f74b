"""Tools for testing operations: hostile inputs, random weights, awkward memory, bitwise comparison.

Nothing here is imported by the library itself.
"""

from di_kernels.testing.compare import assert_same_bits, assert_same_values, assert_telling
from di_kernels.testing.environment import (
    device_backends,
    instructions,
    shared_directory,
    threads,
    torch_default,
)
from di_kernels.testing.hostile import AWKWARD_SIZES, Hostile, hostile
from di_kernels.testing.memory import misaligned, with_gaps, with_row_gaps
from di_kernels.testing.weights import random_weight, with_bad_rows

__all__ = [
    "AWKWARD_SIZES",
    "Hostile",
    "assert_same_bits",
    "assert_same_values",
    "assert_telling",
    "device_backends",
    "hostile",
    "instructions",
    "misaligned",
    "random_weight",
    "shared_directory",
    "threads",
    "torch_default",
    "with_bad_rows",
    "with_gaps",
    "with_row_gaps",
]
