"""Scoring one model through the LLM interface: bits per byte, and exact match under greedy decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from di_spec import LogprobEntry, SamplingParams

from di_engine.evaluation.dataset import HeldOutText, Question, RecallDocument
from di_engine.llm import LLM

SPARE_TOKENS = 4
"""How many more tokens than the right answer an answer may have before it is cut off; it is wrong by then."""
READ = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)

Progress = Callable[[int], object]
"""Called with the number of prompt tokens that were just read."""


class EvaluationError(ValueError):
    """The engine refused a prompt of the evaluation set: the model, or its tokenizer, does not fit the set."""


@dataclass(frozen=True)
class PieceScore:
    """What predicting a piece of a text cost.

    Attributes:
        num_bytes: UTF-8 bytes that were predicted.
        num_tokens: tokens that they are.
        bits: sum of -log2 of the probability of each token.
    """

    num_bytes: int
    num_tokens: int
    bits: float


@dataclass(frozen=True)
class TaskScore:
    """How many answers of a task, or of recall at one distance, were right."""

    task: str
    distance: int | None
    cases: int
    correct: int

    @property
    def share(self) -> float:
        return self.correct / self.cases


def score_text(
    llm: LLM,
    text: HeldOutText,
    context: int,
    limit: int | None = None,
    progress: Progress = lambda tokens: None,
) -> tuple[PieceScore, ...]:
    """Bits that the tokens of ``text`` take, piece by piece.

    The text's tokens are cut into consecutive pieces of ``context - 2``, each read behind BOS in a context of its own
    (the last place is for the token that a request generates). Every token is predicted once, from its piece alone.

    Args:
        llm: the model.
        text: the text.
        context: tokens of a context.
        limit: how many pieces, from the beginning on; None: all.
        progress: told of every piece.

    Raises:
        EvaluationError: the engine refused a piece.
    """
    tokenizer = llm.get_tokenizer()
    ids, size = tokenizer.encode(text.text), context - 2
    pieces = [ids[start : start + size] for start in range(0, len(ids), size)][:limit]
    return tuple(
        _piece_score(_prompt_logprobs(llm, [tokenizer.bos_token_id, *piece], progress)) for piece in pieces
    )


def _piece_score(entries: Sequence[LogprobEntry]) -> PieceScore:
    bits = -math.fsum(entry.logprob for entry in entries) / math.log(2)
    return PieceScore(sum(len(entry.bytes) for entry in entries), len(entries), bits)


def score_recall(
    llm: LLM, documents: Iterable[RecallDocument], progress: Progress = lambda tokens: None
) -> tuple[TaskScore, ...]:
    """Answers whose every token is what greedy decoding would say there, by distance.

    A document is read once: its answers stand in it, and a token of rank 1 is the one that greedy decoding takes.

    Raises:
        EvaluationError: the engine refused a document.
    """
    cases: dict[int, int] = {}
    correct: dict[int, int] = {}
    for document in documents:
        ids, answers = _encode_parts(llm, document.parts)
        entries = _prompt_logprobs(llm, ids, progress)
        right = [all(entries[place - 1].rank == 1 for place in answer) for answer in answers]
        cases[document.distance] = cases.get(document.distance, 0) + len(right)
        correct[document.distance] = correct.get(document.distance, 0) + sum(right)
    return tuple(TaskScore("recall", distance, cases[distance], correct[distance]) for distance in cases)


def score_questions(
    llm: LLM, task: str, questions: Sequence[Question], progress: Progress = lambda tokens: None
) -> TaskScore:
    """Questions whose answer is exact, end of text included, decoded greedily.

    Raises:
        EvaluationError: the engine refused a question.
    """
    encode = llm.get_tokenizer().encode
    params = [
        SamplingParams(
            temperature=0, max_tokens=len(encode(q.answer)) + SPARE_TOKENS, skip_special_tokens=False
        )
        for q in questions
    ]
    results = llm.generate([question.prompt for question in questions], params, use_tqdm=False)
    correct = 0
    for question, result in zip(questions, results, strict=True):
        if result.error is not None:
            raise EvaluationError(f"{task}: {question.prompt!r}: {result.error}")
        correct += list(result.token_ids) == encode(question.answer)
        progress(result.usage.prompt_tokens)
    return TaskScore(task, None, len(questions), correct)


def _encode_parts(llm: LLM, parts: Sequence[str]) -> tuple[list[int], list[range]]:
    """Token ids of text and answers in turn, and the places of each answer's tokens."""
    ids: list[int] = []
    answers: list[range] = []
    for index, part in enumerate(parts):
        tokens = llm.get_tokenizer().encode(part)
        if index % 2:
            answers.append(range(len(ids), len(ids) + len(tokens)))
        ids += tokens
    return ids, answers


def _prompt_logprobs(llm: LLM, ids: list[int], progress: Progress) -> tuple[LogprobEntry, ...]:
    """Log-probabilities of the tokens of ``ids`` from the second on."""
    (result,) = llm.generate([ids], READ, use_tqdm=False)
    if result.error is not None or result.prompt_logprobs is None:
        raise EvaluationError(f"a prompt of {len(ids)} tokens: {result.error}")
    progress(len(ids))
    return result.prompt_logprobs


def combined(pieces: Iterable[PieceScore]) -> float:
    """Bits per byte of several pieces together."""
    listed = list(pieces)
    return math.fsum(piece.bits for piece in listed) / sum(piece.num_bytes for piece in listed)
