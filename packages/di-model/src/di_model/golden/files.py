"""Golden files: what their names mean, their arrays, and the result of a case."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, ParamSpec

import numpy as np
import torch
from torch import Tensor


class GoldenKind(enum.Enum):
    """What a golden file holds."""

    LOGITS = "fp32_logits"
    DECODE = "fp32_decode"
    LAYERS = "fp32_layers"
    QUANTIZED_LAYERS = "quant_layers"
    LOWPREC = "lowprec_logits"
    OPERATIONS = "ops.npz"
    ENGRAM = "engram_released.npz"
    TOKENIZER = "tokenizer_cases.json"


_PRESET_FILE = re.compile(
    r"(?P<preset>.+)_(?P<kind>fp32_logits|fp32_decode|fp32_layers|quant_layers|lowprec_logits)\.npz"
)


def classify(name: str) -> tuple[GoldenKind, str | None] | None:
    """Kind of a golden file and the preset it belongs to (None: to no checkpoint); None for any other file."""
    match = _PRESET_FILE.fullmatch(name)
    if match:
        return GoldenKind(match["kind"]), match["preset"]
    for kind in (GoldenKind.OPERATIONS, GoldenKind.ENGRAM, GoldenKind.TOKENIZER):
        if name == kind.value:
            return kind, None
    return None


@dataclass(frozen=True)
class CaseResult:
    """Outcome of one case.

    Attributes:
        file: name of the golden file.
        case: what was compared, such as ``random0 logits``.
        figure: how close it came, for people.
        passed: whether it met its criterion.
        understood: False where the file holds something that no case is about; ``figure`` names it.
    """

    file: str
    case: str
    figure: str
    passed: bool
    understood: bool = True


P = ParamSpec("P")
Check = Callable[Concatenate[str | Path, P], Iterator[CaseResult]]
"""Reads a golden file and yields a result a case."""


def never_silent(check: Check[P]) -> Check[P]:
    """The check, which raises ValueError where it found nothing to compare: an empty file must not pass."""

    @functools.wraps(check)
    def run(path: str | Path, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[CaseResult]:
        count = 0
        for result in check(path, *args, **kwargs):
            count += result.understood
            yield result
        if count == 0:
            raise ValueError(f"{Path(path).name} holds nothing that {check.__name__} knows")

    return run


MOST_NAMED = 12
"""Arrays that are named where a file holds more than is understood."""


class GoldenFile:
    """Arrays of one ``.npz`` file as tensors. Arrays named ``X.bf16`` are read as ``X``, in bfloat16."""

    def __init__(self, path: str | Path) -> None:
        """Reads the whole file; raises FileNotFoundError, or ValueError when it is not an ``.npz`` file."""
        self.name = Path(path).name
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} is not a regular file")
        with np.load(path, allow_pickle=False) as arrays:
            self._arrays = {key: arrays[key] for key in arrays.files}
        self._unread = set(self.keys)

    def __contains__(self, key: str) -> bool:
        return key in self._arrays or f"{key}.bf16" in self._arrays

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the arrays, without ``.bf16``."""
        return tuple(key.removesuffix(".bf16") for key in self._arrays)

    def __getitem__(self, key: str) -> Tensor:
        """Array ``key``; raises KeyError naming the file when it has none."""
        self._unread.discard(key)
        if f"{key}.bf16" in self._arrays:
            return torch.from_numpy(self._arrays[f"{key}.bf16"]).view(torch.bfloat16)
        if key not in self._arrays:
            raise KeyError(f"{self.name} has no array {key!r}")
        return torch.from_numpy(self._arrays[key])

    def leftovers(self, *left_out: str) -> Iterator[CaseResult]:
        """A result that names the arrays nobody read, except those ending in one of ``left_out``; none without any."""
        unread = sorted(key for key in self._unread if not key.endswith(left_out))
        if unread:
            more = f" and {len(unread) - MOST_NAMED} more" if len(unread) > MOST_NAMED else ""
            names = ", ".join(unread[:MOST_NAMED]) + more
            yield CaseResult(self.name, "arrays", f"no case for {names}", passed=True, understood=False)

    def cases(self, array: str) -> tuple[str, ...]:
        """Names ``X`` for which the file has ``X.array``, in file order."""
        return tuple(key.removesuffix(f".{array}") for key in self.keys if key.endswith(f".{array}"))

    def layers(self, array: str) -> tuple[int, ...]:
        """Numbers ``i`` for which the file has ``array.i``, ascending."""
        found = (re.fullmatch(rf"{re.escape(array)}\.(\d+)", key) for key in self.keys)
        return tuple(sorted(int(match[1]) for match in found if match))

    def within(self, case: str, actual: Tensor, expected: Tensor, tolerance: float) -> CaseResult:
        """Largest absolute difference at most ``tolerance``; a NaN on either side fails."""
        if actual.shape != expected.shape:
            return self.shapes_differ(case, actual, expected)
        error = largest_difference(actual, expected)
        return CaseResult(
            self.name, case, f"max error {error:.2e} (at most {tolerance:g})", error <= tolerance
        )

    def equal(self, case: str, actual: Tensor, expected: Tensor) -> CaseResult:
        """Every element equal."""
        if actual.shape != expected.shape:
            return self.shapes_differ(case, actual, expected)
        same = int((actual.to(torch.float64) == expected.to(torch.float64)).sum())
        total = expected.numel()
        return CaseResult(self.name, case, f"{same} of {total} equal", same == total)

    def shapes_differ(self, case: str, actual: Tensor, expected: Tensor) -> CaseResult:
        """A miss because the shapes differ."""
        return CaseResult(
            self.name, case, f"shape {list(actual.shape)} instead of {list(expected.shape)}", False
        )


def largest_difference(actual: Tensor, expected: Tensor) -> float:
    """Largest absolute difference, NaN when either side has one; 0 for empty tensors."""
    if expected.numel() == 0:
        return 0.0
    return float((actual.to(torch.float64) - expected.to(torch.float64)).abs().max())
