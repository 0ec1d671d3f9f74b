"""Generated training tasks whose answers can be checked. Every sample follows from its random generator alone.

A sample is a list of pieces of text, each with a mark whether it is an answer: answers weigh more in the loss and are
what exact match is counted on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from di_model.tokenizer import BOS_TOKEN, EOS_TOKEN

from examples.nano.corpus import Entry
from examples.nano.tokenizer import ASSISTANT, END_OF_THINKING, USER

OPENINGS = ("Now", "And now")
"""How a statement begins. Of one and of two tokens: were all statements as long, a value would always fall on the same
side of a pair of tokens, and a model would learn to read compressed pairs only."""


@dataclass(frozen=True)
class Piece:
    """A run of text; ``answer`` marks what the model is asked to produce."""

    text: str
    answer: bool = False


Sample = tuple[Piece, ...]


@dataclass(frozen=True)
class Vocabulary:
    """What recall and JSON samples are made of."""

    names: Sequence[str]
    values: Sequence[str]


@dataclass(frozen=True)
class RecallShape:
    """How hard recall is.

    Attributes:
        names: different names in a sample.
        statements: how often a name is given or asked for.
        filler: most characters of other text between two statements, 0 for none.
        link: text between a name and its value.
    """

    names: int
    statements: int
    filler: int = 0
    link: str = " has"


Filler = Callable[[Random, int], str]
"""Draws running text of about so many characters."""


def chat(question: str, answer: str) -> Sample:
    """One question and its answer in V4.1's prompt form without thinking."""
    prompt = f"{BOS_TOKEN}{USER}{question}{ASSISTANT}{END_OF_THINKING}"
    return Piece(prompt), Piece(answer + EOS_TOKEN, answer=True)


def recall(random: Random, words: Vocabulary, shape: RecallShape, filler: Filler) -> Sample:
    """Statements ``Now Anna has gold.`` among other text; what is said of a name again is the answer.

    A name keeps its value, so every later statement of it can be answered. Which name comes next is drawn anew each
    time: distances vary from one statement to the whole sample.
    """
    names = random.sample(list(words.names), shape.names)
    values = {name: random.choice(words.values) for name in names}
    pieces: list[Piece] = [Piece(BOS_TOKEN)]
    said: set[str] = set()
    for _ in range(shape.statements):
        name = random.choice(names)
        if shape.filler:
            pieces.append(Piece(filler(random, random.randint(0, shape.filler)) + "\n"))
        pieces += [Piece(random.choice(OPENINGS)), Piece(f" {name}{shape.link}")]
        pieces += [Piece(f" {values[name]}", answer=name in said), Piece(".\n")]
        said.add(name)
    return tuple(pieces)


def recall_at(random: Random, words: Vocabulary, distance: int, names: int, filler: Filler) -> Sample:
    """A chat prompt that gives ``names`` values, then about ``distance`` characters of text, then asks for one."""
    chosen = random.sample(list(words.names), names)
    values = {name: random.choice(words.values) for name in chosen}
    asked = random.choice(chosen)
    given = "".join(f"Now {name} has {values[name]}.\n" for name in chosen)
    text = filler(random, distance)
    return (
        Piece(f"{BOS_TOKEN}{given}{text}\nNow {asked} has"),
        Piece(f" {values[asked]}", answer=True),
        Piece(".\n"),
    )


def arithmetic(random: Random) -> Sample:
    """A sum or difference of numbers below 100, as a chat."""
    a, b = random.randint(0, 99), random.randint(0, 99)
    if random.random() < 0.5:
        return chat(f"{a} + {b} = ?", str(a + b))
    a, b = max(a, b), min(a, b)
    return chat(f"{a} - {b} = ?", str(a - b))


def json_extraction(random: Random, words: Vocabulary) -> Sample:
    """A sentence about a purchase, to be written as JSON."""
    name, item = random.choice(words.names), random.choice(words.values)
    count, place = random.randint(2, 99), random.choice(words.names)
    sentence = random.choice(
        (
            f"{name} bought {count} pieces of {item} in {place}.",
            f"In {place}, {name} paid for {count} pieces of {item}.",
            f"{count} pieces of {item} were sold to {name} in {place}.",
        )
    )
    answer = json.dumps({"name": name, "item": item, "count": count, "place": place})
    return chat(f"Write as JSON: {sentence}", answer)


def definition(random: Random, entries: Sequence[Entry]) -> Sample:
    """A chat that asks what a word means."""
    return define(random.choice(entries))


def define(entry: Entry) -> Sample:
    """The one chat of a word, whose answer is its definition."""
    return chat(f'What does the word "{entry.word}" mean?', entry.gloss)
