"""What this machine is, and what each kernel backend could run on it. Facts only; nothing is printed.

A fact that the platform does not tell is None or an empty tuple, never a guess.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

from di_engine.capacity import available_memory, total_memory
from di_engine.processors import first_facts, processor_facts, processor_name, usable_processors
from di_engine.versions import Version, installed_versions

INSTRUCTION_SETS = (
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx512vbmi",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimdhp",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)
"""Names (as Linux spells them) of the extensions that matrix kernels use, x86 then Arm."""

NATIVE_MODULES = ("di_kernels._native", "di_scheduler._native")
THREAD_RUNTIMES = ("libgomp", "libomp", "libiomp5", "libtbb")


@dataclass(frozen=True)
class Cpu:
    """The processor: its name, architecture, cores of the machine, cores this process may use, extensions."""

    model: str | None
    architecture: str
    cores: int
    usable_cores: int
    instruction_sets: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes: of the machine, and what this process can still take of it."""

    total: int | None
    available: int


@dataclass(frozen=True)
class Torch:
    """The installed torch: version, what it was built for, its threads."""

    version: str
    build: str
    threads: int


@dataclass(frozen=True)
class NativeModule:
    """A compiled module of ours; ``problem`` is None when it loads."""

    name: str
    problem: str | None


@dataclass(frozen=True)
class ThreadRuntime:
    """OpenMP-like runtimes in this process (one is right)."""

    libraries: tuple[str, ...]


@dataclass(frozen=True)
class Kernels:
    """What the CPU kernels use: threads, the instruction set, and all that this machine can run, the best one last."""

    threads: int
    instruction_set: str
    instruction_sets: tuple[str, ...]


@dataclass(frozen=True)
class Accelerator:
    """A device other than the CPU; ``source`` says who reports it."""

    kind: str
    name: str
    source: str


@dataclass(frozen=True)
class Backend:
    """What one backend could run here.

    Attributes:
        name: ``reference``, ``cpu``, ``cuda`` or ``asc``.
        available: operations that it provides, ``family.function``.
        missing: operations that it lacks.
        reason: why it cannot run the model; None when it can.
    """

    name: str
    available: tuple[str, ...]
    missing: tuple[str, ...]
    reason: str | None


@dataclass(frozen=True)
class Diagnosis:
    """Everything that ``di doctor`` reports."""

    versions: tuple[Version, ...]
    system: str
    cpu: Cpu
    memory: Memory
    torch: Torch
    threads: ThreadRuntime
    kernels: Kernels | None
    native_modules: tuple[NativeModule, ...]
    accelerators: tuple[Accelerator, ...]
    backends: tuple[Backend, ...]

    @property
    def tiles_refused(self) -> bool:
        """Whether the processor has AMX for bfloat16 and the kernels may not use it: an old Linux, or a thread with a
        small alternate signal stack (``docs/architecture.md``, "Instruction sets").
        """
        has_tiles = {"amx_tile", "amx_bf16"} <= set(self.cpu.instruction_sets)
        sets = () if self.kernels is None else self.kernels.instruction_sets
        return has_tiles and "avx512bf16" in sets and "amx" not in sets

    @property
    def healthy(self) -> bool:
        """Whether the model can run here at all: on the CPU backend, with every native module in place."""
        cpu = next(backend for backend in self.backends if backend.name == "cpu")
        return cpu.reason is None and all(module.problem is None for module in self.native_modules)


def diagnose() -> Diagnosis:
    """Look at this machine and this installation. Loads torch and the native modules; changes nothing."""
    native = tuple(_native_module(name) for name in NATIVE_MODULES)
    accelerators = (*_cuda_devices(), *_ascend_devices())
    return Diagnosis(
        versions=installed_versions(),
        system=platform.platform(),
        cpu=_cpu(),
        memory=Memory(total_memory(), available_memory()),
        torch=_torch(),
        threads=_threads(),
        kernels=_kernels(),
        native_modules=native,
        accelerators=accelerators,
        backends=_backends(native, accelerators),
    )


def _cpu() -> Cpu:
    facts = processor_facts()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    usable = usable_processors()
    return Cpu(
        model=processor_name() or None,
        architecture=platform.machine(),
        cores=os.cpu_count() or usable,
        usable_cores=usable,
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in flags),
    )


def _torch() -> Torch:
    import torch

    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    return Torch(torch.__version__, built_for, torch.get_num_threads())


def _native_module(name: str) -> NativeModule:
    try:
        importlib.import_module(name)
    except ImportError as error:
        return NativeModule(name, str(error))
    return NativeModule(name, None)


def _threads() -> ThreadRuntime:
    """Runtimes by the libraries that the process has mapped: two of them would fight for the cores."""
    files = {Path(line.split()[-1]).name for line in _read("/proc/self/maps").splitlines() if ".so" in line}
    libraries = tuple(sorted(file for file in files if file.startswith(THREAD_RUNTIMES)))
    return ThreadRuntime(libraries)


def _kernels() -> Kernels | None:
    """None without a native module."""
    try:
        from di_kernels import instruction_set, instruction_sets, num_threads

        return Kernels(num_threads(), instruction_set(), instruction_sets())
    except ImportError:
        return None


def _cuda_devices() -> Iterator[Accelerator]:
    import torch

    if torch.version.cuda and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield Accelerator("cuda", torch.cuda.get_device_name(index), "torch")
        return
    for device in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        fields = first_facts(_read(str(device)))
        yield Accelerator("cuda", fields.get("Model", device.parent.name), "driver; torch does not see it")


def _ascend_devices() -> Iterator[Accelerator]:
    for device in sorted(Path("/dev").glob("davinci[0-9]*")):
        yield Accelerator("ascend", device.name, "device file")


def _backends(native: tuple[NativeModule, ...], accelerators: tuple[Accelerator, ...]) -> tuple[Backend, ...]:
    operations = tuple(_operations())
    kinds = {accelerator.kind for accelerator in accelerators}
    problem = next((m.problem for m in native if m.name == "di_kernels._native"), None)
    cpu_reason = f"the native module does not load: {problem}" if problem else None
    wants = (
        ("reference", None),
        ("cpu", cpu_reason),
        ("cuda", None if "cuda" in kinds else "no NVIDIA device found"),
        ("asc", None if "ascend" in kinds else "no Ascend device found"),
    )
    return tuple(_backend(name, operations, reason) for name, reason in wants)


def _backend(name: str, operations: tuple[tuple[str, str], ...], reason: str | None) -> Backend:
    if importlib.util.find_spec(f"di_kernels.{name}") is None:
        absent = "this version of di-kernels has no kernels for it"
        missing = tuple(f"{family}.{function}" for family, function in operations)
        return Backend(name, (), missing, f"{absent}; {reason}" if reason else absent)
    available: list[str] = []
    missing_ops: list[str] = []
    for family, function in operations:
        module = _import_or_none(f"di_kernels.{name}.{family}")
        (available if hasattr(module, function) else missing_ops).append(f"{family}.{function}")
    if reason is None and missing_ops:
        reason = f"{len(missing_ops)} of {len(operations)} operations are missing"
    return Backend(name, tuple(available), tuple(missing_ops), reason)


def _operations() -> Iterator[tuple[str, str]]:
    """(family, function) of every operation: the public functions of ``ops`` that ask the dispatcher for a kernel."""
    import di_kernels.ops as ops

    for entry in pkgutil.iter_modules(ops.__path__):
        interface = importlib.import_module(f"{ops.__name__}.{entry.name}")
        for name, value in vars(interface).items():
            own = isinstance(value, FunctionType) and value.__module__ == interface.__name__
            # Functions that never ask for a kernel are compositions of others, or plain arithmetic.
            if own and not name.startswith("_") and "kernel" in value.__code__.co_names:
                yield entry.name, name


def _import_or_none(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _read(path: str) -> str:
    """Contents of a file of the system, empty where the platform has none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
