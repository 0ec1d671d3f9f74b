"""``di doctor``: what this machine is and what it could run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from di_engine.cli.common import EXIT_FAILURE, bytes_text, print_json, stdout_console

if TYPE_CHECKING:
    from di_engine.doctor import Backend, Diagnosis, Kernels


def command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> int:
    """Report cores, instruction sets, memory, accelerators, and what each backend could run.

    Exits with 1 when the model cannot run here.
    """
    from di_engine.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        print_json(diagnosis)
    else:
        stdout_console().print(_table(diagnosis))
    return 0 if diagnosis.healthy else EXIT_FAILURE


def _table(diagnosis: Diagnosis) -> Table:
    cpu, memory, threads = diagnosis.cpu, diagnosis.memory, diagnosis.threads
    total = "total unknown" if memory.total is None else bytes_text(memory.total)
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [
        ("system", diagnosis.system),
        ("versions", ", ".join(map(str, diagnosis.versions))),
        ("processor", f"{cpu.model or 'unknown'} ({cpu.architecture})"),
        ("cores", f"{cpu.cores}, usable by this process: {cpu.usable_cores}"),
        ("instruction sets", " ".join(cpu.instruction_sets) or "unknown on this platform"),
        ("memory", f"{total}, available to this process: {bytes_text(memory.available)}"),
        (
            "torch",
            f"{diagnosis.torch.version} built for {diagnosis.torch.build}, {diagnosis.torch.threads} threads",
        ),
        ("thread runtime", ", ".join(threads.libraries) or "unknown on this platform"),
        ("kernels", _kernels_text(diagnosis.kernels)),
    ]
    if diagnosis.tiles_refused:
        rows.append(("", "the processor has AMX, but the system does not let this process use it"))
    if len(threads.libraries) > 1:
        rows.append(("", "warning: more than one thread runtime in one process; they compete for the cores"))
    for module in diagnosis.native_modules:
        rows.append((module.name, module.problem or "loads"))
    for accelerator in diagnosis.accelerators:
        rows.append(("accelerator", f"{accelerator.kind}: {accelerator.name} ({accelerator.source})"))
    if not diagnosis.accelerators:
        rows.append(("accelerator", "none found"))
    for backend in diagnosis.backends:
        rows.append((f"backend {backend.name}", _backend_text(backend)))
    for label, text in rows:
        table.add_row(label, text)
    return table


def _kernels_text(kernels: Kernels | None) -> str:
    """All give the same bits but amx, which has its own; the later ones are faster."""
    if kernels is None:
        return "unknown: no native module"
    others = ", ".join(kernels.instruction_sets)
    return f"{kernels.threads} threads, instruction set {kernels.instruction_set} (of {others})"


def _backend_text(backend: Backend) -> str:
    count = f"{len(backend.available)} of {len(backend.available) + len(backend.missing)} operations"
    if backend.reason is None:
        return f"complete ({count})"
    lacking = f"; lacks {', '.join(backend.missing)}" if backend.available and backend.missing else ""
    return f"cannot run the model: {backend.reason} ({count}){lacking}"
