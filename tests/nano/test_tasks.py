"""Tasks: answers follow from what stands before them, and samples from their random generator alone."""

from __future__ import annotations

import itertools
import json
import re
from random import Random

import pytest

from examples.nano.corpus import Entry
from examples.nano.tasks import (
    RecallShape,
    Sample,
    Vocabulary,
    arithmetic,
    define,
    json_extraction,
    recall,
    recall_at,
)

WORDS = Vocabulary(names=("Anna", "Emma", "Ruth", "Saul", "David"), values=("gold", "salt", "wood", "iron"))


def _filler(random: Random, characters: int) -> str:
    return "and so on "[:characters] * (characters > 0)


def _text(sample: Sample) -> str:
    return "".join(piece.text for piece in sample)


@pytest.mark.parametrize("seed", range(20))
def test_recall_answers_repeat_what_was_said(seed: int) -> None:
    sample = recall(Random(seed), WORDS, RecallShape(names=3, statements=12, filler=20), _filler)
    said: dict[str, str] = {}
    for before, piece in itertools.pairwise(sample):
        if match := re.fullmatch(r" (\w+) has", before.text):
            assert piece.answer == (match[1] in said)
            assert said.setdefault(match[1], piece.text) == piece.text
    assert 1 <= len(said) <= 3


@pytest.mark.parametrize("seed", range(20))
def test_recall_at_a_distance_asks_for_one_value(seed: int) -> None:
    prompt, answer, _ = recall_at(Random(seed), WORDS, 300, 4, lambda random, n: "x" * n)
    name = prompt.text.rsplit("\nNow ", 1)[1].removesuffix(" has")
    assert f"Now {name} has{answer.text}." in prompt.text
    assert "x" * 300 in prompt.text


@pytest.mark.parametrize("seed", range(20))
def test_arithmetic_is_right(seed: int) -> None:
    question, answer = arithmetic(Random(seed))
    match = re.search(r"(\d+) ([+-]) (\d+) = \?", question.text)
    assert match is not None
    a, b = int(match[1]), int(match[3])
    assert int(answer.text.split("<")[0]) == (a + b if match[2] == "+" else a - b) >= 0


@pytest.mark.parametrize("seed", range(20))
def test_json_holds_what_the_sentence_says(seed: int) -> None:
    question, answer = json_extraction(Random(seed), WORDS)
    found = json.loads(answer.text.split("<")[0])
    assert set(found) == {"name", "item", "count", "place"}
    for value in found.values():
        assert str(value) in question.text


def test_definitions_are_chats_in_the_prompt_form_of_the_release() -> None:
    sample = define(Entry("river", "noun", "a large natural stream of water"))
    assert _text(sample) == (
        '<｜begin▁of▁sentence｜><｜User｜>What does the word "river" mean?<｜Assistant｜></think>'
        "a large natural stream of water<｜end▁of▁sentence｜>"
    )


def test_samples_follow_from_their_generator() -> None:
    shape = RecallShape(names=3, statements=12, filler=20)
    first, second, other = (recall(Random(s), WORDS, shape, _filler) for s in (1, 1, 2))
    assert first == second != other
