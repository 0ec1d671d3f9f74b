"""Opening a checkpoint in the released Hugging Face layout: memory-mapped weights in their stored form.

Everything is checked before anything is built, and all problems are reported in one error. Rules: checkpoint
spec, section 5.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor

from di_model.assemble import WIDE_TYPES, assemble
from di_model.config import ModelConfig
from di_model.mapped_file import FileIdentity, map_file
from di_model.plan import (
    PREFIX,
    CheckpointPlan,
    ListedTensor,
    PlannedTensor,
    canonical_name,
    match_listing,
    plan_checkpoint,
    read_listing,
)
from di_model.problems import CheckpointError, Problem, ProblemKind
from di_model.shard_header import HeaderEntry, ShardHeader, read_shard_header
from di_model.tensors import DTYPE_BYTES
from di_model.weights import ModelWeights

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointPlan",
    "ListedTensor",
    "load_checkpoint",
    "open_plan",
    "plan_checkpoint",
    "read_listing",
]

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An opened checkpoint. The tensors of ``weights`` are backed by the mapped shard files.

    ``files`` has the identity of each mapped shard: what lies at its path later may be another file.
    """

    config: ModelConfig
    weights: ModelWeights
    path: Path
    plan: CheckpointPlan
    files: Mapping[str, FileIdentity]

    def check_files(self) -> None:
        """Raises FileChangedError, which names it, if a shard is not the file any more that is mapped."""
        for shard, identity in self.files.items():
            identity.check(self.path / shard)


def load_checkpoint(path: str | Path, *, config: ModelConfig | None = None, draft: bool = True) -> Checkpoint:
    """Opens a checkpoint directory.

    Args:
        path: directory with ``config.json``, shards and their index, or a single ``model.safetensors``.
        config: configuration to use instead of the directory's own.
        draft: False leaves the draft model out; its tensors are then not needed (5.9).

    Tensors are views of read-only memory maps, so writing to one ends the process: FP8 and MXFP4 codes and their
    scales are uint8, everything else has its stored type. Only a tensor whose offset in the file is no multiple
    of its element size is copied, because native code may not read it in place.

    Raises FileNotFoundError (no directory, no ``config.json``), ConfigError, or CheckpointError with every
    problem of the files: shards missing, truncated or contradicting themselves, tensors missing, unexpected,
    named twice, in another shard than the index says, or of a wrong dtype or shape.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise FileNotFoundError(f"no checkpoint directory at {directory}")
    config = config or ModelConfig.from_file(directory)
    plan = open_plan(directory, config, draft=draft)
    tensors, files = _map_tensors(directory, plan)
    return Checkpoint(config, assemble(config, tensors, draft=draft), directory, plan, files)


def open_plan(directory: Path, config: ModelConfig, *, draft: bool = True) -> CheckpointPlan:
    """Reads index and shard headers, no weights; raises CheckpointError with every problem found."""
    listing, problems = _list_tensors(directory)
    if any(problem.kind is ProblemKind.UNREADABLE_INDEX for problem in problems):
        raise CheckpointError(str(directory), problems)
    plan, mismatches = match_listing(config, listing, draft=draft)
    # A tensor already reported with its broken or missing shard is not reported as missing again.
    named = {canonical_name(problem.subject) for problem in problems}
    problems += [p for p in mismatches if p.kind is not ProblemKind.MISSING or p.subject not in named]
    if problems:
        raise CheckpointError(str(directory), problems)
    return plan


def _list_tensors(directory: Path) -> tuple[list[ListedTensor], list[Problem]]:
    """Rows of every tensor that index and shard headers agree on, and what they do not agree on."""
    problems: list[Problem] = []
    try:
        weight_map = _read_index(directory / INDEX_FILE)
    except FileNotFoundError:
        weight_map = None
    except _IndexFaultError as fault:
        return [], [Problem(ProblemKind.UNREADABLE_INDEX, INDEX_FILE, str(fault))]
    if weight_map is None and not (directory / SINGLE_FILE).exists():
        detail = f"neither {INDEX_FILE} nor {SINGLE_FILE} in the directory"
        return [], [Problem(ProblemKind.UNREADABLE_INDEX, INDEX_FILE, detail)]
    shards = [SINGLE_FILE] if weight_map is None else sorted({shard for _, shard in weight_map})
    headers = {shard: read_shard_header(directory / shard) for shard in shards}
    problems += [problem for header in headers.values() for problem in header.problems]
    if weight_map is None:
        return [_row(entry, SINGLE_FILE) for entry in headers[SINGLE_FILE].entries.values()], problems
    rows, disagreements = _resolve(weight_map, headers)
    return rows, problems + disagreements


class _IndexFaultError(ValueError):
    """An index that cannot be used at all."""


def _read_index(path: Path) -> list[tuple[str, str]]:
    """The pairs (tensor, shard) of ``weight_map``, repeated names included."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its other end
            raise _IndexFaultError("not a regular file")
        text = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _IndexFaultError(str(error)) from error
    try:
        index = json.loads(text.decode("utf-8"), object_pairs_hook=_keep_repeats)
    except (ValueError, RecursionError) as error:  # also a number of too many digits
        raise _IndexFaultError(f"not JSON: {error}") from error
    maps = [value for name, value in index if name == "weight_map"] if isinstance(index, tuple) else []
    if len(maps) > 1:
        raise _IndexFaultError("weight_map twice")
    pairs = maps[0] if maps else None
    if not isinstance(pairs, tuple) or not pairs:
        raise _IndexFaultError("no weight_map object")
    names: set[str] = set()
    for name, shard in pairs:
        if isinstance(shard, str) and shard in names:
            continue
        if not isinstance(shard, str) or not _is_file_name(shard):
            raise _IndexFaultError(f"weight_map[{name!r}] = {shard!r} is not a file name")
        names.add(shard)
    return list(pairs)


def _is_file_name(text: str) -> bool:
    """Whether ``text`` names a file of a directory: never a path out of it, nor what no file system can hold."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return bool(text) and text != ".." and "\0" not in text and PurePath(text).name == text


def _keep_repeats(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    return tuple(pairs)


def _row(entry: HeaderEntry, shard: str) -> ListedTensor:
    return ListedTensor(entry.name, entry.dtype, entry.shape, shard)


def _spellings(name: str) -> tuple[str, str]:
    """The name itself, then with the ``model.`` prefix added or removed (5.2)."""
    return name, name.removeprefix(PREFIX) if name.startswith(PREFIX) else PREFIX + name


def _resolve(
    weight_map: Sequence[tuple[str, str]], headers: Mapping[str, ShardHeader]
) -> tuple[list[ListedTensor], list[Problem]]:
    """Joins index and headers."""
    location = {canonical_name(name): shard for shard, header in headers.items() for name in header.entries}
    rows: list[ListedTensor] = []
    problems: list[Problem] = []
    used: set[tuple[str, str]] = set()
    first_spelling: dict[str, str] = {}
    for name, shard in weight_map:
        canonical = canonical_name(name)
        if canonical in first_spelling:
            detail = f"in the index as {first_spelling[canonical]} and as {name}"
            problems.append(Problem(ProblemKind.DUPLICATE, canonical, detail))
            continue
        first_spelling[canonical] = name
        header = headers[shard]
        entry = next((header.entries[n] for n in _spellings(name) if n in header.entries), None)
        if entry is not None:
            rows.append(_row(entry, shard))
            used.add((shard, entry.name))
        elif not header.readable:
            detail = f"its shard {shard} cannot be read"
            problems.append(Problem(ProblemKind.MISSING, canonical, detail, shard))
        elif header.faulty.isdisjoint(_spellings(name)):
            elsewhere = location.get(canonical)
            detail = f"index says {shard}, " + (f"it is in {elsewhere}" if elsewhere else "no shard has it")
            problems.append(Problem(ProblemKind.WRONG_SHARD, name, detail))
    problems += _unindexed(headers, used, first_spelling)
    return rows, problems


def _unindexed(
    headers: Mapping[str, ShardHeader],
    used: set[tuple[str, str]],
    indexed: Mapping[str, str],
) -> Iterator[Problem]:
    """Tensors of a shard that no index entry leads to."""
    for shard, header in headers.items():
        for name in header.entries:
            if (shard, name) in used:
                continue
            kind = ProblemKind.DUPLICATE if canonical_name(name) in indexed else ProblemKind.UNINDEXED
            yield Problem(kind, name, f"in {shard}")


def _map_tensors(directory: Path, plan: CheckpointPlan) -> tuple[dict[str, Tensor], dict[str, FileIdentity]]:
    """Every planned tensor by canonical name, each shard mapped once, and the identities of the shards."""
    tensors: dict[str, Tensor] = {}
    files: dict[str, FileIdentity] = {}
    for shard, planned in sorted(plan.shards.items()):
        header = read_shard_header(directory / shard)
        if header.problems:  # the file has changed since it was checked
            raise CheckpointError(str(directory), header.problems)
        try:
            mapped, files[shard] = map_file(directory / shard)
        except OSError as error:
            problem = Problem(ProblemKind.UNREADABLE_SHARD, shard, str(error))
            raise CheckpointError(str(directory), [problem]) from error
        # The tensors tile the data, which ends where the file does.
        data = mapped[len(mapped) - max(entry.end for entry in header.entries.values()) :]
        for item in planned:
            entry = header.entries[item.stored_name]
            tensors[item.spec.name] = _stored(data[entry.begin : entry.end], item)
    return tensors, files


def _stored(data: Tensor, item: PlannedTensor) -> Tensor:
    """The bytes ``data`` as the tensor that they hold; one-byte types as uint8."""
    if data.data_ptr() % DTYPE_BYTES[item.spec.dtype]:
        data = data.clone()
    return data.view(WIDE_TYPES.get(item.spec.dtype, torch.uint8)).view(item.spec.shape)
