"""Matching what a checkpoint lists with what its configuration needs, without touching weights.

Source of the rules: checkpoint spec, 5.1 to 5.6. Every tensor must be known and every parameter covered.
"""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from di_model.config import ModelConfig
from di_model.problems import CheckpointError, Problem, ProblemKind
from di_model.tensors import TensorSpec, expected_tensors, is_draft_tensor, is_ignored_tensor

PREFIX = "model."
FOLDED_NORMS = ("hc_attn_norm.weight", "hc_ffn_norm.weight", "hc_head_norm.weight")
MAX_SIZE_DIGITS = 18
LISTING_COLUMNS = ("name", "dtype", "shape", "shard")


class ListedTensor(NamedTuple):
    """One row of a checkpoint listing; ``name`` may carry the ``model.`` prefix."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the model and where it is stored."""

    spec: TensorSpec
    shard: str
    stored_name: str


@dataclass(frozen=True)
class CheckpointPlan:
    """Every tensor of a checkpoint with the part of the model that it fills, by canonical name."""

    config: ModelConfig
    tensors: Mapping[str, PlannedTensor]

    @property
    def num_tensors(self) -> int:
        return len(self.tensors)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of tensor data, headers not counted."""
        return sum(planned.spec.nbytes for planned in self.tensors.values())

    @cached_property
    def shards(self) -> Mapping[str, tuple[PlannedTensor, ...]]:
        """Tensors by the shard that holds them."""
        groups: dict[str, list[PlannedTensor]] = defaultdict(list)
        for planned in self.tensors.values():
            groups[planned.shard].append(planned)
        return {shard: tuple(group) for shard, group in groups.items()}


def canonical_name(name: str) -> str:
    """The name without the optional ``model.`` prefix (5.2)."""
    return name.removeprefix(PREFIX)


def plan_checkpoint(
    config: ModelConfig,
    listing: Iterable[tuple[str, str, tuple[int, ...], str]],
    *,
    draft: bool = True,
    source: str = "listing",
) -> CheckpointPlan:
    """Maps each listed tensor onto a part of the model.

    Args:
        config: configuration whose model the checkpoint holds.
        listing: rows ``(name, safetensors dtype, shape, shard)``.
        draft: False: the draft layers' tensors are neither needed nor looked at (5.9).
        source: what the rows were read from, for the error.

    Raises CheckpointError with every missing, unexpected, repeated or folded tensor and every wrong dtype or
    shape.
    """
    plan, problems = match_listing(config, listing, draft=draft)
    if problems:
        raise CheckpointError(source, problems)
    return plan


def match_listing(
    config: ModelConfig, listing: Iterable[tuple[str, str, tuple[int, ...], str]], *, draft: bool = True
) -> tuple[CheckpointPlan, list[Problem]]:
    """The plan of what matches, and the problems of what does not."""
    expected = {
        name: spec for name, spec in expected_tensors(config).items() if draft or not is_draft_tensor(name)
    }
    planned: dict[str, PlannedTensor] = {}
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    for stored, dtype, shape, shard in listing:
        name = canonical_name(stored)
        if name.endswith(FOLDED_NORMS):
            problems.append(Problem(ProblemKind.FOLDED_NORM, stored, f"in {shard}"))
        elif is_ignored_tensor(name) or (is_draft_tensor(name) and not draft):
            continue
        elif name in seen:
            problems.append(Problem(ProblemKind.DUPLICATE, name, f"as {seen[name]} and as {stored}"))
        elif name not in expected:
            problems.append(Problem(ProblemKind.UNEXPECTED, stored, f"in {shard}"))
        else:
            seen[name] = stored
            problems += _mismatches(expected[name], dtype, shape)
            planned[name] = PlannedTensor(expected[name], shard, stored)
    problems += [Problem(ProblemKind.MISSING, name) for name in expected if name not in seen]
    return CheckpointPlan(config, planned), problems


def _mismatches(spec: TensorSpec, dtype: str, shape: tuple[int, ...]) -> Iterator[Problem]:
    if dtype != spec.dtype:
        yield Problem(ProblemKind.WRONG_DTYPE, spec.name, f"{dtype}, expected {spec.dtype}")
    if tuple(shape) != spec.shape:
        yield Problem(ProblemKind.WRONG_SHAPE, spec.name, f"{list(shape)}, expected {list(spec.shape)}")


def read_listing(path: str | Path) -> Iterator[ListedTensor]:
    """Reads a table of tensors: tab-separated ``name dtype shape shard`` with a header line, plain or gzip.

    Shapes are written ``5120x1280``. Raises CheckpointError for a malformed file or line.
    """
    file = Path(path)
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        problem = Problem(ProblemKind.BAD_LISTING, file.name, str(error))
        raise CheckpointError(str(file), [problem]) from error
    for number, line in enumerate(text.splitlines(), start=1):
        fields = tuple(line.split("\t"))
        if number == 1 and fields == LISTING_COLUMNS:
            continue
        if len(fields) != len(LISTING_COLUMNS) or not all(_is_size(size) for size in _sizes(fields[2])):
            detail = f"line {number} is not {', '.join(LISTING_COLUMNS)}: {line[:80]!r}"
            raise CheckpointError(str(file), [Problem(ProblemKind.BAD_LISTING, file.name, detail)])
        yield ListedTensor(fields[0], fields[1], tuple(map(int, _sizes(fields[2]))), fields[3])


def _sizes(shape: str) -> list[str]:
    return shape.split("x") if shape else []


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_SIZE_DIGITS
