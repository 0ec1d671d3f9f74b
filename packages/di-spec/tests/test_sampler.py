"""A sampling step: order of the stages, isolation of rows, seeds (R19, R22, R53, R64, R65)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from di_kernels.ops import sampling as ops
from di_kernels.testing import threads
from di_spec import (
    NonFiniteLogitsError,
    Sampler,
    SamplingParams,
    SamplingState,
    prompt_logprobs,
)
from di_spec.sampler import NOT_FINITE, NOTHING_TO_DRAW
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

VOCAB_SIZE = 50
EOS = 7


def state(prompt: Sequence[int] = (1, 2, 3), **params: object) -> SamplingState:
    return SamplingState(SamplingParams(**params), prompt, [EOS], vocab_size=VOCAB_SIZE)


def random_logits(rows: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def peaked(*peaks: int) -> Tensor:
    """One row per peak, whose largest logit is 5 there; the others fall from 1 by 0.01 a column."""
    logits = (1.0 - 0.01 * torch.arange(VOCAB_SIZE)).repeat(len(peaks), 1)
    logits[torch.arange(len(peaks)), list(peaks)] = 5.0
    return logits


def generate(model_seed: int, sampling: SamplingState, steps: int) -> list[int]:
    """Tokens of a request alone, from logits that depend on the position only."""
    tokens = []
    for position in range(3, 3 + steps):
        output = Sampler().sample(random_logits(1, 1000 * model_seed + position), [sampling], [position])
        tokens.append(int(output.token_ids[0]))
        sampling.record(tokens[-1:])
    return tokens


# ---- seeds -----------------------------------------------------------------------------------------


def test_seeded_request_does_not_see_its_neighbours() -> None:
    alone = generate(1, state(seed=42), 12)
    makers = [
        lambda: state(seed=42),
        lambda: state(seed=None),
        lambda: state(seed=7),
        lambda: state(seed=42, temperature=0.0),
        lambda: state(seed=42, top_p=0.5, presence_penalty=1.0, logprobs=3),
    ]
    for order in ([0], [0, 1, 2], [4, 3, 0, 1], [1, 1, 1, 1, 1, 1, 1, 1, 0]):
        states = [makers[index]() for index in order]
        row = order.index(0)
        tokens = []
        for position in range(3, 15):
            logits = random_logits(len(order), 5)
            logits[row] = random_logits(1, 1000 + position)[0]
            output = Sampler().sample(
                logits, states, [position + 100 * (i != row) for i in range(len(order))]
            )
            for i, one in enumerate(states):
                one.record([int(output.token_ids[i])])
            tokens.append(int(output.token_ids[row]))
        assert tokens == alone


def test_draws_depend_on_seed_and_position() -> None:
    by_seed = {tuple(generate(2, state(seed=seed, temperature=2.0), 6)) for seed in range(8)}
    assert len(by_seed) == 8
    flat = torch.zeros(1, VOCAB_SIZE)
    by_position = {
        int(Sampler().sample(flat, [state(seed=3)], [position]).token_ids[0]) for position in range(40)
    }
    assert len(by_position) > 10


def test_seeds_are_64_bits_wide() -> None:
    seeds = (5, 2**62 + 5, 2**63 + 5, 2**64 - 1, -1)
    draws = [tuple(generate(2, state(seed=seed, temperature=2.0), 6)) for seed in seeds]
    assert draws[3] == draws[4]
    assert len(set(draws)) == 4


def test_children_of_one_request_differ_and_are_stable() -> None:
    def run() -> list[tuple[int, ...]]:
        children = SamplingParams(n=8, seed=3, temperature=1.2).children()
        return [
            tuple(generate(4, SamplingState(child, (1,), vocab_size=VOCAB_SIZE), 10)) for child in children
        ]

    first = run()
    assert len(set(first)) == 8
    assert first == run()


def test_unseeded_requests_differ() -> None:
    assert state().seed != state().seed


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(0, 2**32), st.sampled_from([1, 2]))
def test_rows_are_independent_bit_for_bit(rows: int, seed: int, count: int) -> None:
    variants = (
        {},
        {"temperature": 0.0, "logprobs": 2},
        {"top_k": 5, "min_p": 0.01, "logit_bias": {3: 4.0}, "logprobs": 0},
        {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "min_tokens": 2, "logprobs": 5},
    )
    logits = random_logits(rows, seed)
    states = [state(seed=row, **variants[row % 4]) for row in range(rows)]
    states[-1].record([5, 5, 8])
    positions = list(range(10, 10 + rows))
    with threads(count):
        together = Sampler().sample(logits, states, positions)
    with threads(1):
        for row in range(rows):
            alone = Sampler().sample(logits[row : row + 1], states[row : row + 1], positions[row : row + 1])
            assert alone.token_ids[0] == together.token_ids[row]
            assert alone.logprobs[0] == together.logprobs[row]


def test_rows_may_be_chosen_in_any_order() -> None:
    """Which rows of a larger tensor are read changes nothing, whatever mix of requests reads them."""
    variants: list[dict[str, object]] = [
        {},
        {"logprobs": 2},
        {"logit_bias": {3: 4.0}, "logprobs": 1},
        {"golden_token_ids": [4]},
    ]
    logits, rows = random_logits(7), np.array([5, 0, 6, 3])
    for count in (1, 2, 4):
        states = [state(seed=i, **variants[i]) for i in range(count)]
        chosen = Sampler().sample(logits, states, np.arange(count, dtype=np.int32), rows[:count])
        copied = Sampler().sample(logits[rows[:count]], states, list(range(count)))
        assert chosen.token_ids.tolist() == copied.token_ids.tolist()
        assert chosen.logprobs == copied.logprobs
    with pytest.raises(ValueError, match="3 rows for 4 states"):
        Sampler().sample(logits, states, range(4), rows[:3])


# ---- stages ----------------------------------------------------------------------------------------


def test_greedy_takes_the_lowest_of_equal_maxima() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [9, 4, 30]] = 2.0
    assert Sampler().sample(logits, [state(temperature=0.0)], [3]).token_ids.tolist() == [4]


def test_bias_moves_the_choice_but_not_the_logprobs() -> None:
    logits = peaked(9)
    before = logits.clone()
    output = Sampler().sample(logits, [state(temperature=0, logit_bias={9: -100, 20: 10}, logprobs=2)], [3])
    assert output.token_ids.tolist() == [20]
    entry = output.logprobs[0]
    assert entry is not None
    assert (entry.token_id, entry.top_ids, entry.rank) == (20, (9, 0), 21)
    assert entry.logprob == float(ops.log_softmax(before)[0, 20])
    assert entry.top_logprobs[0] == float(ops.log_softmax(before)[0, 9])
    assert torch.equal(logits, before)


def test_penalties_follow_the_committed_tokens() -> None:
    sampling = state(temperature=0.0, frequency_penalty=1.5, prompt=[9])
    chosen = []
    for step in range(6):
        logits = peaked(9)
        logits[0, 20] = 3.0
        chosen.append(int(Sampler().sample(logits, [sampling], [step]).token_ids[0]))
        sampling.record(chosen[-1:])
    # 9 costs 1.5 per use: 5, 3.5, then 2 (below 20 at 3), which then costs 1.5; a prompt token alone costs nothing.
    assert chosen == [9, 9, 20, 9, 20, 0]


def test_tokens_of_one_commit_count_each() -> None:
    sampling = state(temperature=0.0, frequency_penalty=1.5)
    sampling.record([9, 9, 9])  # 5 - 4.5 is less than the 1 of token 0
    assert Sampler().sample(peaked(9), [sampling], [3]).token_ids.tolist() == [0]


def test_repetition_penalty_counts_the_prompt() -> None:
    logits = peaked(9)
    assert (
        Sampler().sample(logits, [state([9], temperature=0, repetition_penalty=10.0)], [3]).token_ids[0] == 0
    )
    assert (
        Sampler().sample(logits, [state([8], temperature=0, repetition_penalty=10.0)], [3]).token_ids[0] == 9
    )


@pytest.mark.parametrize("min_tokens", range(7))
@pytest.mark.parametrize("wanted", [EOS, 21])
def test_min_tokens(min_tokens: int, wanted: int) -> None:
    sampling = state(temperature=0.0, min_tokens=min_tokens, stop_token_ids=[21])
    logits = peaked(wanted)
    logits[0, EOS + 21 - wanted] = 4.0  # the other end is wanted next
    tokens = []
    for position in range(min_tokens + 1):
        tokens.append(int(Sampler().sample(logits, [sampling], [position]).token_ids[0]))
        sampling.record(tokens[-1:])
    assert tokens == [0] * min_tokens + [wanted]


def test_bias_and_min_tokens_keep_apart() -> None:
    sampling = state(temperature=0.0, min_tokens=1, logit_bias={EOS: 100, 20: 10})
    assert Sampler().sample(peaked(EOS), [sampling], [3]).token_ids.tolist() == [20]


@pytest.mark.parametrize("penalty", [2.0**-126, (2 - 2.0**-23) * 2.0**127])
def test_extreme_repetition_penalties_make_no_nan_of_a_zero(penalty: float) -> None:
    logits = torch.full((1, VOCAB_SIZE), -1.0)
    logits[0, 9] = 0.0
    sampling = state([9], temperature=0.0, repetition_penalty=penalty)
    assert Sampler().sample(logits, [sampling], [3]).token_ids.tolist() == [9]


@pytest.mark.parametrize("eos", [-1, VOCAB_SIZE])
def test_an_end_token_outside_the_vocabulary_needs_no_mask(eos: int) -> None:
    sampling = SamplingState(SamplingParams(temperature=0.0, min_tokens=1), [1], [eos], vocab_size=VOCAB_SIZE)
    assert Sampler().sample(peaked(9), [sampling], [1]).token_ids.tolist() == [9]


def test_ignored_eos_is_an_ordinary_token() -> None:
    sampling = state(temperature=0.0, min_tokens=5, ignore_eos=True)
    assert Sampler().sample(peaked(EOS), [sampling], [3]).token_ids.tolist() == [EOS]


def test_golden_tokens_are_forced_and_described() -> None:
    sampling = state(temperature=0.0, golden_token_ids=[30, -1, 31], logprobs=1)
    chosen = []
    for step in range(4):
        output = Sampler().sample(peaked(9), [sampling], [step])
        chosen.append(int(output.token_ids[0]))
        entry = output.logprobs[0]
        assert entry is not None
        assert entry.logprob == float(ops.log_softmax(peaked(9))[0, chosen[-1]])
        sampling.record(chosen[-1:])
    assert chosen == [30, 9, 31, 9]


# ---- rows that fail --------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.0}, {"golden_token_ids": [4]}, {"logit_bias": {3: 1.0}}]
)
def test_row_that_is_not_finite_fails_alone(bad: float, params: dict[str, object]) -> None:
    logits = random_logits(3)
    sampler = Sampler()
    clean = sampler.sample(logits, [state(seed=row, logprobs=2) for row in range(3)], [5, 6, 7])
    logits[1, 11] = bad
    states = [state(seed=0, logprobs=2), state(seed=1, logprobs=2, **params), state(seed=2, logprobs=2)]
    output = sampler.sample(logits, states, [5, 6, 7])
    assert output.failed.tolist() == [False, True, False]
    assert output.finite.tolist() == [True, False, True]
    assert output.errors == (None, NOT_FINITE, None)
    assert output.token_ids[[0, 2]].tolist() == clean.token_ids[[0, 2]].tolist()
    assert output.logprobs == (clean.logprobs[0], None, clean.logprobs[2])


def test_request_that_forbids_every_token_fails_alone() -> None:
    everything = SamplingParams(stop_token_ids=list(range(VOCAB_SIZE)), min_tokens=1)
    states = [state(temperature=0), SamplingState(everything, vocab_size=VOCAB_SIZE)]
    sampler = Sampler()
    output = sampler.sample(peaked(9, 9), states, [3, 3])
    assert output.token_ids.tolist() == [9, -1]
    assert output.errors == (None, NOTHING_TO_DRAW)
    states[1].record([5])
    assert sampler.sample(peaked(9, 9), states, [3, 4]).token_ids[1] >= 0


def test_empty_step_and_disagreeing_lengths() -> None:
    output = Sampler().sample(torch.empty(0, VOCAB_SIZE), [], [])
    assert (len(output.token_ids), output.errors, output.logprobs) == (0, (), ())
    with pytest.raises(ValueError, match="2 rows for 1 states"):
        Sampler().sample(torch.zeros(2, VOCAB_SIZE), [state()], [3])


# ---- prompt log-probabilities ----------------------------------------------------------------------


def test_prompt_logprobs_are_those_of_sampled_tokens() -> None:
    logits = random_logits(6, seed=9)
    labels = [int(token) for token in np.arange(6) * 7 % VOCAB_SIZE]
    whole = prompt_logprobs(logits, labels, 3)
    for row, label in enumerate(labels):
        forced = state(golden_token_ids=[label], logprobs=3, logit_bias={label: -50})
        assert Sampler().sample(logits[row : row + 1], [forced], [row]).logprobs[0] == whole[row]
        assert prompt_logprobs(logits[row : row + 1], [label], 3) == [whole[row]]
    assert [entry.rank for entry in prompt_logprobs(logits, ops.argmax(logits).tolist(), 0)] == [1] * 6
    assert len(prompt_logprobs(logits, labels, 1000)[0].top_ids) == VOCAB_SIZE


def test_prompt_logprobs_of_a_row_that_is_not_finite() -> None:
    logits = random_logits(3)
    logits[2, 0] = math.nan
    with pytest.raises(NonFiniteLogitsError, match="prompt row 2"):
        prompt_logprobs(logits, [1, 2, 3], 0)


def test_prompt_logprobs_of_no_rows() -> None:
    assert prompt_logprobs(torch.empty(0, VOCAB_SIZE), [], 3) == []
