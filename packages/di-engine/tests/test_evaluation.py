"""Scores are what their definitions say: counted by hand on scripted models, and run whole on a written one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from di_engine import LLM, EngineConfig, cli
from di_engine.evaluation import (
    VARIANTS,
    EvaluationError,
    EvaluationSet,
    HeldOutText,
    Question,
    RecallDocument,
    evaluate,
)
from di_engine.evaluation.scores import combined, score_questions, score_recall, score_text
from di_engine.testing import BACKGROUND, NextLogits, scripted_model
from di_model.testing import tiny_config, write_checkpoint

WORDS = (" Emma", " has", " gold", " salt", " stop")
FIRST = 320
EMMA, HAS, GOLD, SALT, STOP = range(FIRST, FIRST + len(WORDS))
END = "<｜end▁of▁sentence｜>"
SMALL = EvaluationSet(
    texts=(HeldOutText("a text", "It was a fine evening, and nobody spoke. " * 30, 2.5),),
    recall=(
        RecallDocument(20, ("Emma has gold. Emma has", " gold")),
        RecallDocument(60, ("Emma has gold. Ruth has salt. Emma has", " gold", ". Ruth has", " salt")),
    ),
    questions={"sum": (Question("1 + 1 = ?", f"2{END}"), Question("2 + 2 = ?", f"4{END}"))},
    provenance="written for a test",
)


def scripted(next_logits: NextLogits, max_position_embeddings: int = 4096) -> LLM:
    config = EngineConfig.from_dict({"model": "scripted", "max_num_seqs": 4})
    loaded = scripted_model(
        config, next_logits, extra_tokens=WORDS, max_position_embeddings=max_position_embeddings
    )
    return LLM("scripted", loaded=loaded, max_num_seqs=4)


def after_has(prefix: tuple[int, ...]) -> Mapping[int, float]:
    """Gold after "has", and nothing else worth mentioning."""
    return {GOLD: 0.0} if prefix[-1] == HAS else {STOP: 0.0}


@pytest.fixture
def sure() -> Iterator[LLM]:
    with scripted(after_has) as llm:
        yield llm


def test_an_answer_counts_when_every_token_ranks_first(sure: LLM) -> None:
    documents = (
        RecallDocument(20, (" Emma has", " gold", " Emma has", " salt")),
        RecallDocument(60, (" Emma has", " gold stop")),
        RecallDocument(60, (" Emma has", " gold gold")),
        RecallDocument(20, (" has", " gold")),
    )
    near, far = score_recall(sure, documents)
    assert (near.distance, near.cases, near.correct, near.share) == (20, 3, 2, 2 / 3)
    assert (far.distance, far.cases, far.correct) == (60, 2, 1)


def test_text_is_scored_once_a_token_in_pieces_with_contexts_of_their_own() -> None:
    def only_behind_bos(prefix: tuple[int, ...]) -> Mapping[int, float]:
        return {GOLD: 0.0, SALT: 0.0} if len(prefix) == 1 and prefix[0] == 0 else {SALT: 0.0}

    text = HeldOutText("text", " gold salt salt gold salt", 0.0)
    with scripted(only_behind_bos) as llm:
        pieces = score_text(llm, text, context=5)
        assert [(p.num_tokens, p.num_bytes) for p in pieces] == [(3, 15), (2, 10)]
        for piece in pieces:
            assert piece.bits == pytest.approx(1.0, abs=1e-6)
        assert combined(pieces) == pytest.approx(2 / 25)
        assert score_text(llm, text, context=5, limit=1) == pieces[:1]
        ruled_out = score_text(
            llm,
            replace(text, text=" gold stop"),
            context=5,
        )
    assert ruled_out[0].bits == pytest.approx(1 - BACKGROUND / math.log(2), rel=1e-6)


def test_questions_are_right_with_their_end_only() -> None:
    answers = {
        " gold": (GOLD, 1),
        " salt": (SALT, STOP, 1),
        " Emma": (EMMA, HAS, HAS, HAS, HAS, HAS, HAS, HAS),
    }

    def answer(prefix: tuple[int, ...]) -> Mapping[int, float]:
        if len(prefix) == 1:  # BOS, whose row nobody reads
            return {}
        said = answers[WORDS[prefix[1] - FIRST]]
        return {said[min(len(prefix) - 2, len(said) - 1)]: 0.0}

    with scripted(answer) as llm:
        questions = [Question(word, word + END) for word in answers]
        score = score_questions(llm, "repeat", questions)
    assert (score.task, score.distance, score.cases, score.correct) == ("repeat", None, 3, 1)


def test_a_prompt_that_does_not_fit_is_an_error() -> None:
    with scripted(after_has, max_position_embeddings=8) as llm:
        with pytest.raises(EvaluationError, match="a prompt of 10 tokens: prompt: got 10 tokens"):
            score_recall(llm, [RecallDocument(20, (" has" * 9, " gold"))])
        with pytest.raises(EvaluationError, match="repeat"):
            score_questions(llm, "repeat", [Question(" has" * 9, " gold")])


def test_a_set_survives_its_file_and_has_a_quick_part() -> None:
    assert EvaluationSet.from_bytes(SMALL.to_bytes()) == SMALL
    assert SMALL.to_bytes() == SMALL.to_bytes()
    quick = replace(SMALL, recall=SMALL.recall * 8).quick()
    assert [document.distance for document in quick.recall] == [20, 20, 60, 60]
    assert len(quick.questions["sum"]) == 1
    assert quick.texts == SMALL.texts


def test_the_shipped_set_holds_what_it_should() -> None:
    data = EvaluationSet.shipped()
    assert {text.name for text in data.texts} >= {"persuasion", "tutorial/classes.rst.txt"}
    assert all(1.5 < text.ngram_bits_per_byte < 2.2 < text.xz_bits_per_byte < 3 for text in data.texts)
    cases: dict[int, int] = {}
    for document in data.recall:
        answers = document.parts[1::2]
        assert len(document.parts) == 2 * len(answers)
        given = document.parts[0]
        for asked, value in zip(document.parts[::2], answers, strict=True):
            name = asked.rsplit(" ", 2)[-2]
            assert f"{name} has{value}." in given
        cases[document.distance] = cases.get(document.distance, 0) + len(answers)
    assert list(cases) == [20, 60, 120, 250, 400, 500, 900, 1800, 3000]
    assert all(count >= 60 for count in cases.values())
    assert set(data.questions) == {"arithmetic", "json", "dictionary"}
    for question in data.questions["arithmetic"]:
        a, sign, b = question.prompt.split("<｜User｜>")[1].split(" = ")[0].split(" ")
        assert question.answer == f"{int(a) + int(b) if sign == '+' else int(a) - int(b)}{END}"


@pytest.fixture(scope="module")
def long_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config(text={"max_position_embeddings": 4096})
    return write_checkpoint(tmp_path_factory.mktemp("long"), config)


def test_an_evaluation_has_every_variant_and_number_format(long_checkpoint: Path, tmp_path: Path) -> None:
    spoken: list[str] = []
    found = evaluate(long_checkpoint, SMALL, num_threads=1, report=lambda what, tokens: spoken.append(what))
    assert [variant.name for variant in found.variants] == [variant.name for variant in VARIANTS]
    whole, *others = found.variants
    assert [(task.task, task.distance, task.cases) for task in whole.tasks] == [
        ("recall", 20, 1),
        ("recall", 60, 2),
        ("sum", None, 2),
    ]
    assert len({whole.bits_per_byte, *(variant.bits_per_byte for variant in others)}) == len(VARIANTS)
    (text,) = found.texts
    assert (text.num_bytes, text.ngram) == (len(SMALL.texts[0].text), 2.5)
    assert text.model == pytest.approx(whole.bits_per_byte)
    assert found.formats.release == whole.bits_per_byte
    assert found.formats.float32 == pytest.approx(whole.bits_per_byte, rel=0.1)
    assert found.formats.trained is None
    assert {*spoken} == {variant.name for variant in VARIANTS} | {"float32"}


def test_the_recorded_loss_stands_beside_it(long_checkpoint: Path) -> None:
    record = long_checkpoint / "training.json"
    record.write_text(json.dumps({"float32_bits_per_byte": 1.25}))
    text_only = replace(SMALL, recall=SMALL.recall[:1], questions={})
    try:
        assert evaluate(long_checkpoint, text_only, num_threads=1).formats.trained == 1.25
    finally:
        record.unlink()


def test_the_command_prints_tables_or_json(
    long_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EvaluationSet, "shipped", lambda: SMALL)
    assert cli.run(["eval", str(long_checkpoint), "--quick", "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    for expected in ("a text", "recall, 20 tokens back", "window only", "float32 numerics", "2.500"):
        assert expected in shown
    assert cli.run(["eval", str(long_checkpoint), "--quick", "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["variants"][3]["name"] == "window only"
    assert found["texts"][0]["xz"] > 0


def test_a_model_that_does_not_fit_is_refused_in_one_line(
    long_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = replace(SMALL, recall=(RecallDocument(3000, ("Emma has gold. " * 600, " gold")),))
    monkeypatch.setattr(EvaluationSet, "shipped", lambda: long)
    write_checkpoint(tmp_path, tiny_config(text={"max_position_embeddings": 256}))
    assert cli.run(["eval", str(tmp_path), "--quick"]) == 2
    assert "max_model_len: got 4096, allowed: at most the model's max_position" in capsys.readouterr().err
    assert cli.run(["eval", str(long_checkpoint), "--quick", "--threads", "1"]) == 1
    assert "tokens, allowed: at most 4095" in capsys.readouterr().err
