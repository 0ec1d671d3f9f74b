"""Tensor operations of DeepSeek-V4.1: number formats, reference formulas and CPU kernels."""

from di_kernels.errors import KernelUnavailableError
from di_kernels.instruction_sets import (
    equal_instruction_sets,
    instruction_set,
    instruction_sets,
    set_instruction_set,
)
from di_kernels.threads import num_threads, pin_threads, set_num_threads, threads_are_pinned

__all__ = [
    "KernelUnavailableError",
    "equal_instruction_sets",
    "instruction_set",
    "instruction_sets",
    "num_threads",
    "pin_threads",
    "set_instruction_set",
    "set_num_threads",
    "threads_are_pinned",
]
__version__ = "0.1.0"
