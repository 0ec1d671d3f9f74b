#!/usr/bin/env python3
"""Puts the figures of written records into docs/performance.md, or into another document of a machine.

    di bench kernels --out kernels.json; di bench layer --out layer.json; di bench model --out model.json
    python benchmarks/tables.py docs/performance.md kernels.json layer.json model.json

A benchmark may be run in parts with a record each. Of what was measured twice, the last that nothing disturbed counts.
Tables stand between ``<!-- NAME -->`` and ``<!-- end -->``; one whose records are not given stays as it is, if they are
of the same machine. Which were replaced and which were kept is printed. Nothing in a table is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from di_engine.benchmark.model_work import ModelWork, StepShape, expected_experts
from di_engine.benchmark.prediction import Shares, footprint, predict
from di_engine.benchmark.record import RecordError, read_record
from di_engine.benchmark.release import released_config
from di_engine.benchmark.work import Ceilings

Result = dict[str, Any]
CONTEXT = 8192
STEPS = ("decode, batch 1", "decode, batch 16", "prefill of 512")
"""Of layers, whose shares the predictions take."""
MACHINES = ((100, 16), (200, 32), (400, 64), (800, 128))
"""Read rates in GB/s and cores to predict for."""
SECTION = re.compile(r"<!-- (?P<name>[a-z]+) -->\n(?P<text>.*?)<!-- end -->", re.S)


class PageError(ValueError):
    """Records that do not go together, or not with what the document keeps."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the tables; 2 if a file is not what it should be."""
    parser = argparse.ArgumentParser(
        prog="tables.py", description="Put the figures of records into a document of one machine."
    )
    parser.add_argument(
        "document", type=Path, help="Markdown file whose tables stand between <!-- NAME --> and <!-- end -->."
    )
    parser.add_argument(
        "records",
        type=Path,
        nargs="+",
        help="Files that --out of di bench kernels, layer and model wrote, all on one machine.",
    )
    options = parser.parse_args(arguments)
    try:
        report = fill(options.document, [read_record(path) for path in options.records])
    except (OSError, RecordError, PageError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    sys.stdout.write(f"{report}\n")
    return 0


def fill(document: Path, records: Sequence[dict[str, Any]]) -> str:
    """Replace the sections that the records cover; a line each on what was replaced, kept and left out.

    Raises :class:`PageError` for records of several machines, or of another than that of the sections that stay.
    """
    results = latest(result for record in records for result in record["results"])
    tables = {"machine": machine(records), **sections([each for each in results if _is_packed(each)])}
    text = document.read_text(encoding="utf-8")
    found = {section["name"]: section["text"] for section in SECTION.finditer(text)}
    replaced = [name for name in found if tables.get(name)]
    kept = [name for name, old in found.items() if name not in replaced and old.strip()]
    if kept:
        _check_machine(found.get("machine", ""), records[0]["machine"], kept)
    text = SECTION.sub(lambda section: _section(section["name"], tables) or section[0], text)
    document.write_text(text, encoding="utf-8")
    lines = [f"replaced: {', '.join(replaced) or 'nothing'}", f"kept: {', '.join(kept) or 'nothing'}"]
    stored = sum(not _is_packed(each) for each in results)
    return "\n".join(lines + [f"left out: results of layers as stored ({stored})"] * bool(stored))


def _is_packed(result: Result) -> bool:
    """Whether it is about weights as steps use them; records of layers did not tell while packed was all there was."""
    return bool(result.get("layout", "packed") == "packed")


def _section(name: str, tables: dict[str, str]) -> str:
    """What takes a section's place; nothing if no record covers it."""
    return f"<!-- {name} -->\n{tables[name]}\n<!-- end -->" if tables.get(name) else ""


def _check_machine(section: str, new: dict[str, Any], kept: Sequence[str]) -> None:
    """Old figures must not come to stand under the name of a machine that they are not of."""
    if section.strip() and not section.startswith(f"{_identity(new)}, "):
        old = section.partition(" Measured ")[0]
        raise PageError(
            f"the records are of {_identity(new)}, but {', '.join(kept)}, which no record covers, of {old}"
        )


def sections(results: Sequence[Result]) -> dict[str, str]:
    """Tables by the name of their section; empty where there are no results."""
    parts = {
        name: kernels([result for result in results if result["family"] in families])
        for name, families in (
            ("linear", ("linear",)),
            ("attention", ("attention", "indexer")),
            ("sampling", ("top-k", "sampling")),
            ("step", ("step",)),
        )
    }
    layered = [result for result in results if result["family"] == "layer"]
    parts["layer"] = layers(layered)
    parts["model"] = models([result for result in results if result["family"] == "model"])
    parts["peers"] = peers([result for result in results if result["family"] == "peer"])
    alone = [result for result in layered if result["threads"] == 1 and not result["disturbed"]]
    if set(STEPS) <= {result["size"] for result in alone}:
        parts["predict"] = predictions(alone)
    return parts


def machine(records: Sequence[dict[str, Any]]) -> str:
    """What it was measured on, when, and beside how much other work. Raises PageError for several machines."""
    first = records[0]["machine"]
    for record in records:
        for name, value in record["machine"].items():
            if name != "date" and value != first[name]:
                raise PageError(f"records of different machines: {name} is {first[name]} and {value}")
    dates = sorted(record["machine"]["date"] for record in records)
    loads: dict[str, float] = {}
    for record in records:
        if record["foreign_load"]:
            name, cores = record["benchmark"], record["foreign_load"]["cores"]
            loads[name] = max(loads.get(name, 0.0), cores)
    versions = ", ".join(text for text in first["versions"] if text.split()[0] in ("torch", "Python"))
    return (
        f"{_identity(first)}, {versions}. "
        f"Measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))} UTC. "
        "Cores that other processes kept busy meanwhile, at most: "
        f"{', '.join(f'{name} {cores:.1f}' for name, cores in loads.items()) or 'unknown'}."
    )


def _identity(first: dict[str, Any]) -> str:
    """A machine and what of it was used, as a document names it."""
    return (
        f"{first['processor']}: {first['cores']} cores, {first['memory'] / 2**30:.0f} GB, "
        f"{first['last_level_cache'] >> 20} MB of last-level cache, {first['instruction_set']}"
    )


def kernels(results: Sequence[Result]) -> str:
    """A line a case, one and two threads side by side."""
    lines = []
    for name, group in _grouped(results, ("name", "size", "rows")):
        one = next(iter(group.values()))
        cells = [*map(str, name), *_both(group, _microseconds)]
        measured = group.get(1, one)
        peer = measured["peer"]
        cells += (
            [f"{peer}, {1e6 * measured['peer_seconds']:,.0f}", f"{measured['peer_ratio']:.1f}"]
            if peer
            else ["", ""]
        )
        lines.append(cells)
    head = [
        "operation",
        "size",
        "rows",
        "1 thread, µs",
        "reached",
        "2 threads, µs",
        "reached",
        "peer, µs",
        "times",
    ]
    return _table(head, lines, left=2)


def layers(results: Sequence[Result]) -> str:
    """How many experts a layer had, and a line a step and kind of layers."""
    lines = []
    for (step, kind), group in _grouped(results, ("size", "name")):
        one = next(iter(group.values()))
        counts = [f"{1e-9 * one['read_bytes']:.2f}", f"{1e-9 * one['flops']:.1f}"]
        lines.append([step, kind, *counts, *_both(group, _milliseconds)])
    head = ["step", "layers", "GB", "GFLOP", "1 thread, ms", "reached", "2 threads, ms", "reached"]
    table = _table(head, lines, left=2)
    return f"{_experts(results)}\n\n{table}" if table else ""


def _experts(results: Sequence[Result]) -> str:
    text = released_config().text
    held = "; ".join(
        f"{count} routed experts were in memory, of which a step of batch 16 hits about "
        f"{expected_experts(count, text.num_experts_per_tok, 16):.0f}"
        for count in sorted({result["experts"] for result in results})
    )
    released = expected_experts(text.n_routed_experts, text.num_experts_per_tok, 16)
    return f"{held} (of the release's {text.n_routed_experts}, about {released:.0f})."


def models(results: Sequence[Result]) -> str:
    """A line a step of the engine."""
    lines = [
        [
            *result["name"].split(", "),
            str(result["sequences"]),
            str(result["threads"]),
            _milliseconds(result["seconds"]),
            f"{result['tokens_per_second']:,.0f}",
            _reached(result),
            f"{1e6 * result['outside_seconds']:,.0f}",
            f"{100 * result['outside_share']:.1f} %",
        ]
        for result in results
    ]
    head = [
        "model",
        "step",
        "sequences",
        "threads",
        "ms",
        "tokens/s",
        "reached",
        "outside kernels, µs",
        "its share",
    ]
    return _table(head, lines, left=2)


def peers(results: Sequence[Result]) -> str:
    """A line a step of another engine."""
    lines = []
    for result in results:
        seconds = result["step"]["minimum"]
        lines.append(
            [
                result["peer"],
                result["model"],
                result["name"],
                str(result["threads"]),
                _milliseconds(seconds),
                f"{result['tokens'] / seconds:,.0f}",
                f"{1e-9 * result['read'] / seconds:.1f}" if result["read"] else "",
                f"{1e-9 * result['flops'] / seconds:.0f}" if result["flops"] else "",
                "disturbed" if result["ratio"] is None else f"{result['ratio']:.2f} times",
            ]
        )
    head = ["peer", "beside", "step", "threads", "ms", "tokens/s", "GB/s", "GFLOP/s", "ours is"]
    return _table(head, lines, left=3)


def predictions(results: Sequence[Result]) -> str:
    """The released model on larger machines, with the shares that single layers reached, on one thread, here."""
    shares = Shares(*(_share(results, step) for step in STEPS))
    peak = max(result["dot_ceiling"] for result in results)
    config = released_config()
    work, needed = ModelWork(config), footprint(config)
    one, sixteen = (work.step(StepShape(count, CONTEXT, 1)) for count in (1, 16))
    lines = []
    for rate, cores in MACHINES:
        found = predict(work, Ceilings(1e9 * rate, peak * cores), shares, CONTEXT)
        speeds = (f"{found.decode_1:.1f}", f"{found.decode_16:.0f}", f"{found.prefill:.0f}")
        lines.append([str(rate), str(cores), f"{1e-12 * peak * cores:.1f}", *speeds])
    head = [
        "read rate, GB/s",
        "cores",
        "dot peak, TFLOP/s",
        "decode, 1 sequence",
        "decode, 16 sequences",
        "prefill",
    ]
    counts = (
        f"A token behind {CONTEXT:,} others reads {1e-9 * one.read:.1f} GB and computes {1e-9 * one.flops:.1f} GFLOP; "
        f"a step of sixteen sequences reads {1e-9 * sixteen.read:.1f} GB, if the router has no preferences. "
        f"{1e-9 * needed.memory:.0f} GB of weights have to be in memory; the Engram tables "
        f"({1e-9 * needed.tables:.0f} GB) are read by single rows and may stay on disk."
    )
    taken = (
        "Tokens a second, with the median shares of the layers above on one thread "
        f"({100 * shares.decode_1:.0f} % at batch 1, {100 * shares.decode_16:.0f} % at batch 16, "
        f"{100 * shares.prefill:.0f} % in prefill) and {1e-9 * peak:.0f} GFLOP/s a core as here:"
    )
    return "\n\n".join([counts, taken, _table(head, lines, left=0)])


def _share(results: Sequence[Result], step: str) -> float:
    """The median over kinds of layers."""
    return float(median(result["of_floor"] for result in results if result["size"] == step))


def latest(results: Iterable[Result]) -> list[Result]:
    """Each measurement once, in the order of their first times."""
    found: dict[tuple[Any, ...], Result] = {}
    for result in results:
        names = ("family", "peer", "model", "name", "size", "rows", "sequences", "threads")
        known = (result.get(name) for name in names if name != "peer" or result["family"] == "peer")
        key = (*known, _is_packed(result))
        if key not in found or not result.get("disturbed") or found[key].get("disturbed"):
            found[key] = result
    return list(found.values())


def _grouped(
    results: Iterable[Result], keys: Sequence[str]
) -> list[tuple[tuple[Any, ...], dict[int, Result]]]:
    """Results by these fields, and then by the number of threads."""
    groups: dict[tuple[Any, ...], dict[int, Result]] = {}
    for result in results:
        groups.setdefault(tuple(result[key] for key in keys), {})[result["threads"]] = result
    return list(groups.items())


def _both(group: dict[int, Result], time: Any) -> list[str]:
    cells = []
    for threads in (1, 2):
        result = group.get(threads)
        cells += ["", ""] if result is None else [time(result["seconds"]), _reached(result)]
    return cells


def _reached(result: Result) -> str:
    """A share of the ceiling that binds; a run that other work disturbed has none."""
    if result.get("disturbed"):
        return "disturbed"
    memory = result["bound"] == "memory"
    of = (
        f"{1e-9 * result['read_ceiling']:.0f} GB/s"
        if memory
        else f"{1e-9 * result['dot_ceiling']:.0f} GFLOP/s"
    )
    return f"{100 * result['of_floor']:.0f} % of {of}"


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}" if seconds < 1e-4 else f"{1e6 * seconds:,.0f}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], left: int) -> str:
    """Markdown; the first ``left`` columns are text."""
    if not lines:
        return ""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


if __name__ == "__main__":
    sys.exit(main())
