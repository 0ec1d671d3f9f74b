"""``di verify equality`` passes on the engine, and finds an engine whose bits depend on the batch."""

import dataclasses
import json
import re

import pytest
from di_cache import CacheLayout
from di_engine import EngineConfig, load_model
from di_engine.cli import run
from di_engine.stats import EngineCounters, EngineStats
from di_engine.verify import Coverage, EqualityCheck
from di_engine.verify.cases import CaseGenerator
from di_engine.verify.equality import Outcome, first_difference
from di_model.cache_spec import cache_spec
from di_model.config import ModelConfig
from di_model.numerics import Numerics
from di_model.packed import WeightLayout
from di_scheduler import SchedulerStats
from di_spec import Alternative, LogprobEntry


@pytest.fixture(scope="module")
def loaded(checkpoint):
    return load_model(EngineConfig(model=checkpoint, max_num_seqs=1))


class BatchDependentModel:
    """A model whose logits move in the last place when a step has more than one row."""

    def __init__(self, model):
        self._model = model

    def forward(self, batch, cache):
        return self._model.forward(batch, cache)

    def logits(self, hidden):
        logits = self._model.logits(hidden)
        return logits if hidden.shape[0] == 1 else logits * (1 + 2**-22)


def test_engine_gives_equal_bits_under_every_disturbance(checkpoint, loaded):
    report = EqualityCheck(checkpoint, seed=3, loaded=loaded).run(14)
    assert report.difference is None
    assert report.coverage.absent == ()
    assert report.passed
    assert 0 < report.distinct_requests < report.coverage.requests


@pytest.mark.parametrize("layout", WeightLayout)
def test_schedules_in_every_layout_equal_the_weights_as_stored(checkpoint, layout):
    check = EqualityCheck(checkpoint, seed=3, weight_layout=layout)
    packed = {
        loaded: loaded.model.weights.layers[0].attn.wq_a.is_packed
        for loaded in (check._loaded, check._loaded_alone)
    }
    assert packed == {check._loaded: layout is not WeightLayout.STORED, check._loaded_alone: False}
    assert len(packed) == (1 if layout is WeightLayout.STORED else 2)  # loaded once each
    assert check.run(2).difference is None


def test_same_seed_runs_the_same_cases(checkpoint, loaded):
    first, second = (EqualityCheck(checkpoint, seed=5, loaded=loaded).run(2) for _ in range(2))
    assert first == second


def test_engine_whose_bits_depend_on_the_batch_is_found(checkpoint, loaded):
    broken = dataclasses.replace(loaded, model=BatchDependentModel(loaded.model))
    report = EqualityCheck(checkpoint, seed=3, loaded=broken).run(14)
    assert report.difference is not None
    # Where two tokens are nearly equal, the token differs.
    assert re.match(r"(logprobs|token_ids)\[", report.difference.what)
    assert not report.passed


def test_command_reports_what_occurred(capsys, checkpoint):
    assert (
        run(["verify", "equality", "--checkpoint", str(checkpoint), "--cases", "14", "--seed", "3", "--json"])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["cases"] == 14
    assert min(report[name] for name in ("preemptions", "chunks", "mixed_steps", "aborts")) > 0


@pytest.mark.parametrize("what", ["equality", "golden"])
def test_layouts_are_checked(capsys, checkpoint, what):
    command = {"equality": ["--cases", "1", "--checkpoint"], "golden": [str(checkpoint), "--checkpoints"]}
    arguments = ["verify", what, *command[what], str(checkpoint), "--weight-layout", "round"]
    assert run(arguments) == 2
    assert "--weight-layout: got 'round', allowed: auto, stored, packed" in capsys.readouterr().err


def test_command_fails_when_something_never_occurred(capsys, checkpoint):
    command = ["verify", "equality", "--checkpoint", str(checkpoint), "--cases", "1", "--seed", "2"]
    assert run([*command, "--weight-layout", "stored"]) == 1
    assert "NOT SHOWN: no " in capsys.readouterr().out


def test_command_needs_a_checkpoint(capsys, tmp_path):
    assert run(["verify", "equality", "--checkpoint", str(tmp_path / "none"), "--cases", "1"]) == 2
    assert capsys.readouterr().err.startswith("di: ")


def test_coverage_names_what_is_absent():
    full = Coverage(**dict.fromkeys((field.name for field in dataclasses.fields(Coverage)), 1))
    assert full.absent == ()
    assert dataclasses.replace(full, preemptions=0, mixed_steps=0).absent == ("preemptions", "mixed_steps")


def test_coverage_adds_each_count_to_itself(checkpoint, loaded):
    case = CaseGenerator(loaded.config, loaded.capacity.layout, seed=1, instruction_sets=("portable",)).draw(
        0
    )
    counts = {field.name: number for number, field in enumerate(dataclasses.fields(SchedulerStats), 1)}
    stats = EngineStats(EngineCounters(overlapped_steps=1000), SchedulerStats(**counts))
    coverage = dataclasses.asdict(Coverage().plus(case, stats).plus(case, stats))
    assert (coverage["overlapped_steps"], coverage["requests"]) == (2000, 2 * len(case.arrivals))
    shared = coverage.keys() & counts.keys()
    assert len(shared) == 8
    assert {name: coverage[name] for name in shared} == {name: 2 * counts[name] for name in shared}


def entry(token, logprob):
    return LogprobEntry(token, logprob, 1, b"", (Alternative(token, logprob, b""),))


BASELINE = Outcome(
    (5, 6, 7), "abc", (entry(5, -0.5), entry(6, -1.0), entry(7, -0.0)), (entry(3, -2.0),), "length", None
)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, None),
        ({"finish_reason": "abort", "token_ids": (5,), "logprobs": BASELINE.logprobs[:1], "text": ""}, None),
        ({"finish_reason": "abort", "token_ids": (), "logprobs": (), "prompt_logprobs": None}, None),
        ({"finish_reason": "abort", "token_ids": (6,), "logprobs": BASELINE.logprobs[:1]}, "token_ids[0]"),
        ({"token_ids": (5, 6)}, "token_ids[2]"),
        ({"token_ids": (5, 9, 7)}, "token_ids[1]"),
        ({"logprobs": (*BASELINE.logprobs[:2], entry(7, 0.0))}, "logprobs[2]"),
        ({"logprobs": BASELINE.logprobs[:2]}, "logprobs[2]"),
        ({"prompt_logprobs": None}, "prompt_logprobs[0]"),
        ({"prompt_logprobs": (entry(3, -2.0000000000000004),)}, "prompt_logprobs[0]"),
        ({"text": "abd"}, "text 'abd'"),
        ({"finish_reason": "error", "error": "lost"}, "lost"),
    ],
)
def test_first_difference(change, found):
    what = first_difference(dataclasses.replace(BASELINE, **change), BASELINE)
    assert (what is None) == (found is None)
    assert found is None or found in what


def test_failed_baseline_is_a_difference():
    failed = dataclasses.replace(BASELINE, error="logits are not finite", finish_reason="error")
    assert "alone, the request failed" in first_difference(failed, failed)


def test_cases_cover_the_space(checkpoint):
    config = ModelConfig.from_file(checkpoint)
    layout = CacheLayout.from_spec(cache_spec(config, Numerics.RELEASE))
    generator = CaseGenerator(config, layout, seed=1, instruction_sets=("portable",))
    cases = [generator.draw(index) for index in range(150)]
    arrivals = [arrival for case in cases for arrival in case.arrivals]
    lengths = {len(arrival.request.prompt) for arrival in arrivals}
    window = config.text.sliding_window
    for border in (window, layout.window_cells, 64, 128):
        assert {border - 1, border, border + 1} <= lengths
    params = [arrival.request.params for arrival in arrivals]
    assert {p.greedy for p in params} == {p.penalised for p in params} == {True, False}
    assert any(p.prompt_logprobs is not None for p in params)
    assert {case.num_threads for case in cases} == {1, 2}
    assert len({case.policy for case in cases}) == 2
    assert any(arrival.abort_at is not None for arrival in arrivals)
    assert {arrival.priority for arrival in arrivals} == {-1, 0, 1}
    assert {arrival.user for arrival in arrivals} == {0, 1}
    assert {case.max_draft_tokens for case in cases} == {0, 1, 3, 5}
    assert {(case.async_scheduling, case.priced) for case in cases} == {
        (a, b) for a in (0, 1) for b in (0, 1)
    }
    for case in cases:
        longest = max(arrival.request.max_tokens for arrival in case.arrivals)
        assert (case.num_blocks - 1) * case.block_size >= longest
