"""The corpus and the tokenizer as training reads them, kept in a working directory: built once, then loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from examples.nano.corpus import Corpus, Entry, dictionary, read_corpus
from examples.nano.tasks import Vocabulary
from examples.nano.tokenizer import single_tokens, train_tokenizer
from examples.nano.words import NAMES, VALUES

DICTIONARY_WORDS = 1000
WORD_REPETITIONS = 400
"""How often each name and value stands in the tokenizer's text, so that it becomes one token."""
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Everything that samples are drawn from; ``words`` are those that are one token each."""

    tokenizer: Tokenizer
    corpus: Corpus
    tokens: Ids
    """Token ids of all training documents, one after another."""
    entries: list[Entry]
    words: Vocabulary

    def window(self, random: Random, length: int) -> Ids:
        """``length`` consecutive training tokens from a random place."""
        start = random.randrange(len(self.tokens) - length)
        return self.tokens[start : start + length]

    def filler(self, random: Random, characters: int) -> str:
        """Running text of a training novel or book, about so many characters, without line breaks."""
        documents = self.prose
        text = documents[random.randrange(len(documents))]
        start = random.randrange(max(1, len(text) - characters))
        return " ".join(text[start : start + characters].split())

    @property
    def prose(self) -> list[str]:
        """Texts that filler is taken from: the training novels."""
        return [document.text for document in self.corpus.training[:5]]


def load_training_data(root: Path, work: Path) -> TrainingData:
    """Reads the corpus below ``root``; tokenizer and token ids are made in ``work`` when they are not there yet.

    Raises CorpusMissingError when a package is not unpacked below ``root``.
    """
    corpus = read_corpus(root)
    work.mkdir(parents=True, exist_ok=True)
    file = work / "tokenizer.json"
    if not file.is_file():
        words = "".join(f" {word}" for word in (*NAMES, *VALUES))
        train_tokenizer([*(d.text for d in corpus.training), *[words] * WORD_REPETITIONS]).save(str(file))
    tokenizer = Tokenizer.from_file(str(file))
    tokens = work / "tokens.npy"
    if not tokens.is_file():
        encoded = tokenizer.encode_batch([d.text for d in corpus.training], add_special_tokens=False)
        np.save(tokens, np.concatenate([np.array(e.ids, dtype=np.int32) for e in encoded]))
    return TrainingData(
        tokenizer=tokenizer,
        corpus=corpus,
        tokens=np.load(tokens),
        entries=dictionary(root, DICTIONARY_WORDS),
        words=Vocabulary(single_tokens(tokenizer, NAMES), single_tokens(tokenizer, VALUES)),
    )
