"""Instruction set of the CPU kernels. It changes time only, never a bit of a result, but for amx."""

from __future__ import annotations

from di_kernels.errors import shown


def instruction_sets() -> tuple[str, ...]:
    """What this machine can run, the best one last: portable, avx2, avx512, avx512bf16, amx."""
    from di_kernels import _native

    return tuple(_native.instruction_sets())


def equal_instruction_sets() -> tuple[tuple[str, ...], ...]:
    """What this machine can run, in groups that give the same bits.

    A product of bfloat16 numbers on amx adds up the even and the odd ones of 32 inputs apart
    (``docs/architecture.md``), so it is alone; everything else is one group.
    """
    plain = tuple(name for name in instruction_sets() if name != "amx")
    return (plain, ("amx",)) if "amx" in instruction_sets() else (plain,)


def instruction_set() -> str:
    """The one in use; by default the best one."""
    from di_kernels import _native

    return _native.instruction_set()


def set_instruction_set(name: str) -> None:
    """Use ``name`` in the CPU kernels from now on, in this process.

    A product that another thread computes meanwhile may have parts of either set, so bits of either where they differ.

    Raises:
        ValueError: this machine cannot run it, or there is no such instruction set.
    """
    from di_kernels import _native

    if not isinstance(name, str) or not _native.set_instruction_set(name):
        allowed = ", ".join(instruction_sets())
        raise ValueError(f"instruction set is {shown(name)}; this machine can run: {allowed}")
