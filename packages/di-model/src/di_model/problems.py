"""What can be wrong with a checkpoint, collected so that one error names everything at once."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHOWN_PER_KIND = 20
"""Problems of one kind that an error message spells out; the rest are counted."""
SHOWN_CHARACTERS = 400
"""Of a name or a detail: both may come from a damaged file."""


class ProblemKind(enum.Enum):
    """Kind of a checkpoint problem, in the words of the error message."""

    UNREADABLE_INDEX = "unreadable index"
    MISSING_SHARD = "missing shard"
    UNREADABLE_SHARD = "unreadable shard"
    TRUNCATED_SHARD = "truncated shard"
    BAD_HEADER = "shard header contradicts itself or its file"
    WRONG_SHARD = "tensor not in the shard that the index names"
    UNINDEXED = "tensor in a shard but not in the index"
    DUPLICATE = "tensor named twice"
    FOLDED_NORM = "norm that this family folds into hc_*_fn"
    MISSING = "missing tensor"
    UNEXPECTED = "unexpected tensor"
    WRONG_DTYPE = "wrong dtype"
    WRONG_SHAPE = "wrong shape"
    BAD_LISTING = "unreadable listing"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the tensor or file, and what was found and expected.

    ``shard`` is set for a tensor that is missing only because this shard cannot be read.
    """

    kind: ProblemKind
    subject: str
    detail: str = ""
    shard: str | None = None

    def __str__(self) -> str:
        subject = _printable(self.subject)
        return f"{subject} ({_printable(self.detail)})" if self.detail else subject


def _printable(text: str) -> str:
    """``text`` on one line that every output can encode, cut to ``SHOWN_CHARACTERS``."""
    shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
    return shown if shown.isprintable() else repr(shown)[1:-1]


class CheckpointError(ValueError):
    """A checkpoint that does not hold exactly the model of its configuration.

    ``problems`` has every problem found; the message shows up to SHOWN_PER_KIND of each kind and counts the rest, and
    counts the tensors that an unreadable shard takes along.
    """

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        self.source = source
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__(source, self.problems)

    def __str__(self) -> str:
        return _message(self.source, self.problems)


def _message(source: str, problems: Sequence[Problem]) -> str:
    grouped: dict[ProblemKind, list[Problem]] = defaultdict(list)
    for problem in problems:
        grouped[problem.kind].append(problem)
    lines = [f"{source}: {len(problems)} problem(s)"]
    for kind in ProblemKind:
        found = grouped.get(kind, [])
        if found:
            items = _folded(found)
            rest = len(items) - SHOWN_PER_KIND
            shown = ", ".join(items[:SHOWN_PER_KIND])
            lines.append(
                f"  {kind.value} ({len(found)}): {shown}" + (f" and {rest} more" if rest > 0 else "")
            )
    return "\n".join(lines)


def _folded(problems: Sequence[Problem]) -> list[str]:
    """Texts of the problems; tensors that a shard takes along are one item together."""
    lost = Counter(problem.shard for problem in problems)
    lost[None] = 1  # tensors with a fault of their own
    texts = (
        f"{lost[problem.shard]} in {problem.shard}" if lost[problem.shard] > 1 else str(problem)
        for problem in problems
    )
    return list(dict.fromkeys(texts))
