"""Coupled verification: whatever is proposed, tokens and log-probabilities are those of one token a step (R10, R53)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from di_spec import SampledTokens, Sampler, SamplingParams, SamplingState, sample_tokens, verify_coupled
from di_spec.sampler import NOT_FINITE, NOTHING_TO_DRAW
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

VOCAB_SIZE = 40
EOS = 7
PROMPT = (1, 2, 3, 2)

VARIANTS: tuple[dict[str, object], ...] = (
    {"temperature": 1.3},
    {"temperature": 0.0, "logprobs": 3},
    {"logit_bias": {3: 4.0, 9: -100.0}, "top_k": 6, "logprobs": 0},
    {"repetition_penalty": 1.6, "frequency_penalty": 1.1, "presence_penalty": 0.4, "logprobs": 2},
    {"min_tokens": 4, "stop_token_ids": [3, 4, 5, 6, 8, 9, 10, 11, 12], "logit_bias": {EOS: 6.0}},
    {"golden_token_ids": [-1, 5, 5, -1, 6], "logprobs": 1},
)


PLAIN: tuple[dict[str, object], ...] = (
    {"temperature": 1.3},
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 6, "top_p": 0.9},
)
"""Whose tokens depend on nothing that a draft could change."""


def make_state(**params: object) -> SamplingState:
    return SamplingState(SamplingParams(**params), PROMPT, [EOS], vocab_size=VOCAB_SIZE)


def logits_behind(tokens: Sequence[int], seed: int) -> Tensor:
    """A row that depends on all tokens before it, as a model's does."""
    mixed = hash((seed, *tokens)) % (1 << 63)
    return 2 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(mixed))


Model = Callable[[Sequence[int]], Tensor]


def one_by_one(model: Model, state: SamplingState, steps: int) -> tuple[list[int], list[object], str | None]:
    """Tokens, log-probabilities and the error, if any, without speculation."""
    tokens: list[int] = []
    logprobs: list[object] = []
    for _ in range(steps):
        prefix = (*PROMPT, *tokens)
        output = Sampler().sample(model(prefix)[None], [state], [len(prefix)])
        if output.errors[0] is not None:
            return tokens, logprobs, output.errors[0]
        tokens.append(int(output.token_ids[0]))
        logprobs.append(output.logprobs[0])
        state.record(tokens[-1:])
    return tokens, logprobs, None


def verify(
    model: Model, states: Sequence[SamplingState], outputs: Sequence[list[int]], drafts: Sequence[list[int]]
) -> tuple[SampledTokens, ...]:
    """One verify step of sequences that hold ``outputs``, with ``drafts`` behind them."""
    rows, proposed, row_start = [], [], [0]
    for output, block in zip(outputs, drafts, strict=True):
        prefix = [*PROMPT, *output]
        rows += [model(prefix + block[:j]) for j in range(len(block) + 1)]
        proposed += [*block, -1]
        row_start.append(len(rows))
    return verify_coupled(
        Sampler(),
        torch.stack(rows),
        states,
        np.array(row_start),
        np.array([len(PROMPT) + len(output) for output in outputs]),
        np.array(proposed, np.int32),
    )


@settings(max_examples=60)
@given(st.data())
def test_speculation_changes_no_bit(data: st.DataObject) -> None:
    """Batches of sequences at different points, with right and wrong drafts of any length, to the end."""
    seed = data.draw(st.integers(0, 2**20))
    steps = 9
    kinds = data.draw(
        st.lists(st.sampled_from(VARIANTS + PLAIN), min_size=1, max_size=5)
        | st.lists(st.sampled_from(PLAIN), min_size=1, max_size=5)
    )

    def model(prefix: Sequence[int]) -> Tensor:
        return logits_behind(prefix, seed)

    truth = [one_by_one(model, make_state(seed=i, **kind), steps) for i, kind in enumerate(kinds)]
    states = [make_state(seed=i, **kind) for i, kind in enumerate(kinds)]
    outputs: list[list[int]] = [[] for _ in kinds]
    entries: list[list[object]] = [[] for _ in kinds]
    while min(map(len, outputs)) < steps:
        active = [i for i, output in enumerate(outputs) if len(output) < steps]
        drafts = []
        for i in active:
            block = truth[i][0][len(outputs[i]) : len(outputs[i]) + data.draw(st.integers(0, 4))]
            wrong = data.draw(st.none() | st.integers(0, 3))
            if wrong is not None and wrong < len(block):
                block[wrong] = (block[wrong] + 1) % VOCAB_SIZE
            drafts.append(block)
        before = [(states[i].num_output_tokens, _counts(states[i])) for i in active]
        results = verify(model, [states[i] for i in active], [outputs[i] for i in active], drafts)
        assert [(states[i].num_output_tokens, _counts(states[i])) for i in active] == before
        for i, block, result in zip(active, drafts, results, strict=True):
            right = _common(block, truth[i][0][len(outputs[i]) :])
            assert len(result.token_ids) == right + 1
            assert result.error is None
            outputs[i] += result.token_ids
            entries[i] += result.logprobs
            states[i].record(result.token_ids)
    for output, logprobs, (tokens, expected, _) in zip(outputs, entries, truth, strict=True):
        assert (output[:steps], logprobs[:steps]) == (tokens, expected)


def test_plain_sequences_take_one_call_of_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    def model(prefix: Sequence[int]) -> Tensor:
        return logits_behind(prefix, 6)

    truth = [one_by_one(model, make_state(seed=i, **kind), 5)[0] for i, kind in enumerate(PLAIN)]
    states = [make_state(seed=i, **kind) for i, kind in enumerate(PLAIN)]
    assert all(state.plain for state in states)
    calls, sample = [], Sampler.sample
    monkeypatch.setattr(Sampler, "sample", lambda *args: calls.append(args) or sample(*args))
    results = verify(model, states, [[] for _ in PLAIN], [tokens[:4] for tokens in truth])
    assert [list(result.token_ids) for result in results] == truth
    assert len(calls) == 1


def _counts(state: SamplingState) -> object:
    return state.counts and (state.counts.ids.tolist(), state.counts.counts.tolist())


def _common(block: Sequence[int], truth: Sequence[int]) -> int:
    return next((j for j, token in enumerate(block) if j >= len(truth) or token != truth[j]), len(block))


def test_variants_matter() -> None:
    """The parameters above change the output, so that equality shows that they are applied to the right history."""
    runs = {str(one_by_one(lambda p: logits_behind(p, 3), make_state(seed=1, **v), 9)[0]) for v in VARIANTS}
    assert len(runs) == len(VARIANTS)


@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_a_row_that_is_not_finite_ends_the_tokens_before_it(bad: int) -> None:
    """Without speculation the failure comes when the row is the first of its step; with it, not earlier."""

    def model(prefix: Sequence[int]) -> Tensor:
        broken = prefix[-1] != 9 and len(prefix) == len(PROMPT) + bad
        return logits_behind(prefix, 5) * (math.nan if broken else 1.0)

    tokens, _, error = one_by_one(model, make_state(temperature=0.0), 4)
    assert (len(tokens), error) == (bad, NOT_FINITE)
    failed, other = verify(
        model,
        [make_state(temperature=0.0), make_state(logit_bias={9: 100.0})],
        [[], [9]],
        [[*tokens, 0, 0, 0][:3], [9, 9, 9]],
    )
    assert other.token_ids == (9, 9, 9, 9)
    if bad:
        assert (failed.token_ids, failed.error) == (tuple(tokens), None)
    else:
        assert (failed.token_ids, failed.error, failed.finite) == ((), NOT_FINITE, False)


def test_a_sequence_with_nothing_to_draw_fails_alone() -> None:
    everything = {"stop_token_ids": range(VOCAB_SIZE), "min_tokens": 2}
    states = [make_state(**everything), make_state(temperature=0.0)]
    failed, other = verify(lambda prefix: logits_behind(prefix, 5), states, [[], []], [[1, 2], [0, 1]])
    assert (failed.token_ids, failed.error, failed.finite) == ((), NOTHING_TO_DRAW, True)
    assert len(other.token_ids) == 1


def test_a_step_without_drafts_is_a_verify_step_of_one_row_each() -> None:
    states = [make_state(seed=i, **variant) for i, variant in enumerate(VARIANTS)]
    logits = torch.stack([logits_behind(PROMPT, i) for i in range(len(states))])
    logits[1, 0] = math.nan
    positions, drafts = np.full(len(states), len(PROMPT)), np.full(len(states), -1)
    verified = verify_coupled(Sampler(), logits, states, np.arange(len(states) + 1), positions, drafts)
    assert sample_tokens(Sampler(), logits, states, positions) == verified
    assert [len(each.token_ids) for each in verified] == [1, 0, 1, 1, 1, 1]


def test_rejected_rows_may_hold_anything() -> None:
    def model(prefix: Sequence[int]) -> Tensor:
        return logits_behind(prefix, 5) * (math.nan if 39 in prefix else 1.0)

    (result,) = verify(model, [make_state(temperature=0.0)], [[]], [[39, 39]])
    assert result.token_ids == tuple(one_by_one(model, make_state(temperature=0.0), 1)[0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"row_start": np.array([0, 1])}, "row_start has shape"),
        ({"row_start": np.array([0, 3, 3])}, "row_start is"),
        ({"row_start": np.array([1, 2, 3])}, "row_start is"),
        ({"positions": np.array([4])}, "positions has shape"),
        ({"drafts": np.array([5, -1])}, "drafts has shape"),
        ({"drafts": np.array([5, 6, -1])}, "last row"),
    ],
)
def test_arguments_that_do_not_agree(change: dict[str, object], says: str) -> None:
    arguments: dict[str, object] = {
        "row_start": np.array([0, 2, 3]),
        "positions": np.array([4, 4]),
        "drafts": np.array([5, -1, -1]),
    }
    states = [make_state(), make_state()]
    verify_coupled(Sampler(), torch.zeros(3, VOCAB_SIZE), states, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        verify_coupled(Sampler(), torch.zeros(3, VOCAB_SIZE), states, **{**arguments, **change})  # type: ignore[arg-type]
