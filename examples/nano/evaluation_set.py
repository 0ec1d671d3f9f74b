"""Writing the evaluation set that di-engine ships: held-out texts, recall by distance, questions, n-gram figures.

    .venv/bin/python -m examples.nano.evaluation_set

The same packages, tokenizer and seed give the same file.
"""

from __future__ import annotations

import argparse
from bisect import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from di_engine.evaluation import EvaluationSet, HeldOutText, Question, RecallDocument
from di_engine.evaluation.dataset import FILE
from di_model.tokenizer import BOS_TOKEN
from tokenizers import Tokenizer

from examples.nano.corpus import HELD_OUT_NOVEL, PACKAGES, Entry
from examples.nano.ngram import ORDER, NgramModel
from examples.nano.tasks import OPENINGS, Sample, Vocabulary, arithmetic, define, json_extraction
from examples.nano.texts import TrainingData, load_training_data

SEED = 20
DOCUMENTS = {20: 22, 60: 8, 120: 8, 250: 10, 400: 10, 500: 10, 900: 8, 1800: 8, 3000: 8}
"""How many documents for each distance in tokens; each asks for all values that it gives."""
VALUES_GIVEN, VALUES_GIVEN_NEAR = 8, 3
"""Values of a document. More would not fit between giving and asking at the shortest distance."""
NEAR = 48
LINE_CHARACTERS = 100
"""Length of a line of the text between giving and asking, about that of training."""
QUESTIONS = {"arithmetic": 100, "json": 60, "dictionary": 100}


def evaluation_set(data: TrainingData, seed: int = SEED) -> EvaluationSet:
    """The whole set, drawn with ``seed`` from what training never sees, except for words and definitions."""
    random = Random(seed)
    ngram = NgramModel(document.text.encode() for document in data.corpus.training)
    texts = tuple(
        HeldOutText(document.source, document.text, round(ngram.bits_per_byte(document.text.encode()), 4))
        for document in data.corpus.held_out
    )
    return EvaluationSet(
        texts=texts,
        recall=tuple(recall_documents(random, data)),
        questions={task: tuple(questions(random, data, task, QUESTIONS[task])) for task in QUESTIONS},
        provenance=(
            f"Texts and definitions from the Debian packages {', '.join(PACKAGES)} (Debian 12); n-gram figures from a "
            f"byte model of {ORDER} bytes of context, interpolated modified Kneser-Ney, trained on the "
            f"{sum(len(d.text.encode()) for d in data.corpus.training):,} bytes that nano is trained on; "
            f"tasks drawn with seed {seed}."
        ),
    )


def recall_documents(random: Random, data: TrainingData) -> Iterator[RecallDocument]:
    """Documents of every distance; what stands in between is held-out prose."""
    (novel,) = (d.text for d in data.corpus.held_out if d.source == HELD_OUT_NOVEL)
    prose = " ".join(novel.split())
    for distance, count in DOCUMENTS.items():
        for _ in range(count):
            yield recall_document(random, data.words, distance, data.tokenizer, prose)


def recall_document(
    random: Random, words: Vocabulary, distance: int, tokenizer: Tokenizer, prose: str
) -> RecallDocument:
    """Values given to names one after another, lines of ``prose``, then all of them asked for in the same order.

    So each value stands about ``distance`` tokens before the place where it is asked for. Values of a document differ.
    """
    count = VALUES_GIVEN_NEAR if distance < NEAR else VALUES_GIVEN
    names, values = random.sample(list(words.names), count), random.sample(list(words.values), count)
    pairs = list(zip(names, values, strict=True))
    given = "".join(f"{random.choice(OPENINGS)} {name} has {value}.\n" for name, value in pairs)
    between = _lines(random, tokenizer, prose, distance - _length(tokenizer, given))
    parts = [f"{BOS_TOKEN}{given}{between}"]
    for name, value in pairs:
        parts[-1] += f"{random.choice(OPENINGS)} {name} has"
        parts += [f" {value}", ".\n"]
    return RecallDocument(distance, tuple(parts[:-1]))


def _lines(random: Random, tokenizer: Tokenizer, prose: str, tokens: int) -> str:
    """Whole words of running text from a random place, as many as fit ``tokens`` tokens, in lines; may be empty."""
    characters = 8 * max(tokens, 0)  # more than so many tokens ever have
    start = prose.index(" ", random.randrange(len(prose) - characters - LINE_CHARACTERS)) + 1
    words = prose[start : start + characters].split(" ")
    fitting = bisect(range(1, len(words) + 1), tokens, key=lambda n: _length(tokenizer, _wrapped(words[:n])))
    return _wrapped(words[:fitting])


def _wrapped(words: Sequence[str]) -> str:
    """Lines that end in a line break; no words: no line."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) < LINE_CHARACTERS:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "".join(f"{line}\n" for line in lines)


def _length(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def questions(random: Random, data: TrainingData, task: str, count: int) -> Iterator[Question]:
    """``count`` questions of a task; definitions are of words that training asks for."""
    for entry in random.sample(data.entries, count):
        prompt, answer = _question(random, data, task, entry)
        yield Question(prompt.text, answer.text)


def _question(random: Random, data: TrainingData, task: str, entry: Entry) -> Sample:
    if task == "arithmetic":
        return arithmetic(random)
    if task == "json":
        return json_extraction(random, data.words)
    return define(entry)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the evaluation set that di-engine ships.")
    parser.add_argument("--root", type=Path, default=Path(".cache/nano/debian"))
    parser.add_argument("--work", type=Path, default=Path(".cache/nano"))
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    options.out.write_bytes(evaluation_set(load_training_data(options.root, options.work)).to_bytes())


if __name__ == "__main__":
    main()
