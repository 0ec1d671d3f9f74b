"""Errors cross process borders: each public one keeps its message and its fields through pickle."""

from __future__ import annotations

import pickle

import pytest
from di_cache import CacheConfigError, CacheLayoutError, SlotMapError
from di_engine.errors import EngineClosedError, EngineConfigError, RequestError
from di_kernels import KernelUnavailableError
from di_model.checkpoint import CheckpointError
from di_model.config import AnotherModelError, ConfigError, MissingKeysError, UnreadableConfigError
from di_model.problems import Problem, ProblemKind
from di_model.tokenizer import TokenizerError
from di_scheduler import AdmissionError, FinishReason
from di_spec import FinishReason as OutputFinishReason
from di_spec import InvalidParameterError

ERRORS = [
    KernelUnavailableError("linear", "linear", "cuda", "move the tensors to the CPU"),
    CacheConfigError("block_size is 1; allowed: 2 or more"),
    CacheLayoutError("layer 3 owns no main KV"),
    SlotMapError("width is 9; allowed: at most 8"),
    AdmissionError("empty_prompt", "prompt has no tokens"),
    ConfigError("hidden_act", "gelu", "only 'silu'"),
    AnotherModelError("model_type", "llama", "only 'deepseek_v41'"),
    UnreadableConfigError("config.json", "Expecting value"),
    MissingKeysError(("hidden_size", "head_dim")),
    CheckpointError("model", [Problem(ProblemKind.MISSING, "norm.weight")]),
    TokenizerError("no padding token"),
    InvalidParameterError("top_p", 0.0, "above 0, at most 1"),
    EngineConfigError("num_blocks", 1, "at least 2"),
    RequestError("prompt", "it is empty"),
    EngineClosedError(),
]


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_message_repeats_no_more_than_the_beginning_of_a_value() -> None:
    for error in (
        EngineConfigError("model", "x" * 10**6, "a path"),
        InvalidParameterError("stop", "x" * 10**6, "a string"),
        ConfigError("hidden_act", "x" * 10**6, "silu"),
    ):
        assert "(1000002 characters)" in str(error)
        assert len(str(error)) < 300


def test_a_value_without_a_spelling_is_named_by_its_type() -> None:
    assert "a value of type int" in str(InvalidParameterError("seed", 10**5000, "64 bits"))
    assert "a value of type Unspeakable" in str(EngineConfigError("model", Unspeakable(), "a path"))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) != ""
    assert vars(copy) == vars(error)


def test_the_two_lists_of_finish_reasons_have_equal_numbers() -> None:
    assert {reason.name: reason.value for reason in FinishReason} == {
        reason.name: reason.value for reason in OutputFinishReason
    }
