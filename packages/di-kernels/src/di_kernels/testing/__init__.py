"""Tools for testing operations: hostile inputs, awkward memory, bitwise comparison.

Nothing here is imported by the library itself.
"""

from di_kernels.testing.compare import assert_same_bits, assert_same_values
from di_kernels.testing.environment import device_backends, instructions, shared_directory, threads
from di_kernels.testing.hostile import AWKWARD_SIZES, Hostile, hostile
from di_kernels.testing.memory import misaligned, with_gaps, with_row_gaps

__all__ = [
    "AWKWARD_SIZES",
    "Hostile",
    "assert_same_bits",
    "assert_same_values",
    "device_backends",
    "hostile",
    "instructions",
    "misaligned",
    "shared_directory",
    "threads",
    "with_gaps",
    "with_row_gaps",
]
