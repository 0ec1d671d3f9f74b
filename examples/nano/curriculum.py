"""The stages of nano's training: recall alone and short first, longer only once learnt, then text beside it.

Recall from far away does not appear by itself at this size and budget. What works: a dense task, few names, answers
that weigh more, and growth by what has been learnt instead of by a clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """What batches look like, and when the next stage begins.

    Attributes:
        name: for the log.
        lengths: tokens of a row, one after another by step.
        tokens: of a batch.
        link: what stands between a name and its value. Nothing is easiest: the value is what followed the name.
        names: different names in a recall row.
        filler: most characters of other text between two statements of a recall row.
        text: share of rows that are running text.
        tasks: share of rows that are packed chats (arithmetic, JSON, definitions); the rest is recall.
        sparse: attend to selected entries only.
        index: train the indexer.
        pairs: let layers of ratio 2 see their entries. An entry that happens to hold a name and its value is a short
            cut that keeps a model from learning to look one token back.
        accuracy: running exact match of recall without which the stage goes on.
        steps: least steps of the stage.
        decay: let the learning rate fall to a tenth over these steps.
    """

    name: str
    lengths: tuple[int, ...]
    names: int
    tokens: int = 4096
    link: str = " has"
    filler: int = 0
    text: float = 0.0
    tasks: float = 0.0
    sparse: bool = False
    index: bool = False
    pairs: bool = True
    accuracy: float = 0.0
    steps: int = 50
    decay: bool = False

    def length(self, step: int) -> int:
        """Tokens of a row in that step of the run."""
        return self.lengths[step % len(self.lengths)]


STAGES = (
    Stage("4 names, values follow at once", (128,), 4, tokens=2048, link="", pairs=False, accuracy=0.85),
    Stage("4 names in 128 tokens", (128,), 4, tokens=2048, pairs=False, accuracy=0.85),
    Stage("12 names in 128 tokens", (128,), 12, tokens=2048, pairs=False, accuracy=0.8),
    Stage("24 names in 256 tokens", (256,), 24, tokens=2048, pairs=False, accuracy=0.8),
    Stage("48 names in 512 tokens", (512,), 48, index=True, accuracy=0.8),
    Stage("text beside it", (512,), 8, filler=120, text=0.4, tasks=0.2, index=True, steps=800),
    Stage("1,024 tokens", (1024,), 12, filler=120, text=0.5, tasks=0.2, index=True, steps=300),
    Stage(
        "selected entries", (1024,), 12, filler=120, text=0.5, tasks=0.2, index=True, sparse=True, steps=300
    ),
    Stage(
        "4,096 tokens, falling rate",
        (1024, 1024, 4096),
        16,
        filler=120,
        text=0.5,
        tasks=0.2,
        index=True,
        sparse=True,
        steps=600,
        decay=True,
    ),
)
