"""Sampling parameters: every bad value is refused on construction, by name (R26, R64)."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from di_spec import InvalidParameterError, SamplingParams, SamplingState, child_seed
from hypothesis import given
from hypothesis import strategies as st

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, NAN, INF, 10**400, True, "1", None]),
        ("top_p", [0, 0.0, 1.5, -1, NAN, False]),
        ("top_k", [-2, 1.0, True, "5", None]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("repetition_penalty", [0.0, -1.0, NAN, INF, 1e-300, 1e300]),
        ("presence_penalty", [-2.1, 2.1, NAN, -INF]),
        ("frequency_penalty", [-2.1, 2.1, NAN, True]),
        ("max_tokens", [0, -1, 1.5, True, "16"]),
        ("min_tokens", [-1, 17, None, 0.0]),
        ("seed", [1.0, True, "7", 2**64, -(2**63) - 1]),
        ("n", [0, -1, 129, True, 1.0]),
        ("logprobs", [-1, 1001, True, 1.0]),
        ("prompt_logprobs", [-1, 1001, False]),
        ("stop", ["", [""], ["a", ""], 5, [5], b"a", {"a"}, [None]]),
        ("stop_token_ids", [5, "5", ["5"], [1.0], [True], [-1]]),
        ("golden_token_ids", [5, "5", [None], [-2], [True]]),
        ("ignore_eos", [1, None, "yes"]),
        ("include_stop_str_in_output", [0]),
        ("skip_special_tokens", [None]),
        ("detokenize", ["false"]),
        (
            "logit_bias",
            [{"abc": 1.0}, {-1: 1.0}, {1: INF}, {1: -INF}, {1: NAN}, {1: 101.0}, {1: "1"}, {True: 1.0}],
        ),
        ("logit_bias", [[(1, 1.0)], 5, dict.fromkeys(range(300), 1.0)]),
    ],
)
def test_bad_values_are_refused_by_name(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=field) as caught:
            SamplingParams(**{field: value})
        assert isinstance(caught.value, InvalidParameterError)
        assert caught.value.field.startswith(field)
        assert "allowed: " in str(caught.value)


def test_values_become_plain_types() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(0),
        stop="end",
        stop_token_ids=[np.int32(3), 4],
        logit_bias={np.int64(7): -100},
        golden_token_ids=[1, -1],
        seed=-1,
    )
    assert (params.stop, params.stop_token_ids, params.golden_token_ids) == (("end",), (3, 4), (1, -1))
    assert params.logit_bias == {7: -100.0}
    assert type(params.top_k) is int
    assert type(params.temperature) is float
    assert pickle.loads(pickle.dumps(params)) == params
    assert hash(params) == hash(pickle.loads(pickle.dumps(params)))


def test_an_error_survives_pickling() -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(top_p=2.0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.field, copy.value, copy.allowed) == ("top_p", 2.0, caught.value.allowed)
    assert str(copy) == str(caught.value)


def test_caller_cannot_change_a_request_afterwards() -> None:
    bias, stops = {1: 1.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stops)
    bias[2] = 5.0
    stops.append("b")
    assert params.logit_bias == {1: 1.0}
    assert params.stop_strings == ("a",)


def test_limits_that_depend_on_each_other() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=1000).min_tokens == 1000
    with pytest.raises(ValueError, match=r"min_tokens: got 5, allowed: at most max_tokens \(4\)"):
        SamplingParams(max_tokens=4, min_tokens=5)
    with pytest.raises(ValueError, match="stop"):
        SamplingParams(stop="x", detokenize=False)


@pytest.mark.parametrize("token", [100, 101, 2**31 - 1])
@pytest.mark.parametrize(
    "make",
    [
        lambda token: {"logit_bias": {token: 1.0}},
        lambda token: {"stop_token_ids": [0, token]},
        lambda token: {"golden_token_ids": [-1, token]},
    ],
)
def test_ids_outside_the_vocabulary(make: object, token: int) -> None:
    fields = make(token)  # type: ignore[operator]
    with pytest.raises(
        InvalidParameterError, match=rf"{next(iter(fields))}: got {token}, allowed: token ids 0\.\.99"
    ):
        SamplingParams(**fields).validate_for(100)
    with pytest.raises(InvalidParameterError):
        SamplingState(SamplingParams(**fields), vocab_size=100)
    SamplingParams(**make(99)).validate_for(100)  # type: ignore[operator]


def test_state_refuses_what_would_break_a_batch() -> None:
    with pytest.raises(InvalidParameterError, match="prompt_ids"):
        SamplingState(SamplingParams(), [5, 100], vocab_size=100)
    with pytest.raises(InvalidParameterError, match="n: got 2"):
        SamplingState(SamplingParams(n=2), vocab_size=100)


def test_from_dict() -> None:
    assert SamplingParams.from_dict({"temperature": 0, "stop": None}) == SamplingParams(temperature=0.0)
    with pytest.raises(InvalidParameterError, match=r"\['best_of', 'temprature'\]"):
        SamplingParams.from_dict({"temprature": 1.0, "best_of": 2, "top_p": 0.5})


@given(st.integers(-(2**63), 2**64 - 1))
def test_children_have_distinct_stable_seeds(seed: int) -> None:
    params = SamplingParams(n=128, seed=seed, temperature=1.2)
    seeds = [child.seed for child in params.children()]
    assert seeds[0] == seed % 2**64
    assert len(set(seeds)) == 128
    assert seeds == [child.seed for child in params.children()]
    assert all(child.n == 1 and child.temperature == 1.2 for child in params.children())


def test_child_seed_is_pinned() -> None:
    # SplitMix64 from state 0: its published first outputs.
    assert [child_seed(0, index) for index in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert {child.seed for child in SamplingParams(n=3).children()} == {None}
