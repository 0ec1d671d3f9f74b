"""The FLOPs estimator against sums over single rows, layers and keys (scheduler spec, 15 and property 43)."""

import dataclasses
import sys
from typing import NamedTuple

import numpy as np
import pytest
from di_scheduler import ConfigError, Scheduler, SchedulerConfig, SequenceLimits
from di_scheduler.flops import (
    FlopsEstimator,
    LayerShape,
    ModelShape,
    PairCount,
    Precision,
    PrefillTruncation,
)
from di_scheduler.mfu import MfuMeter
from hypothesis import given
from hypothesis import strategies as st

LAYERS = (
    LayerShape(0, has_engram=True),
    LayerShape(2, stores_kv=True, computes_index=True, stores_index_keys=True),
    LayerShape(2),
    LayerShape(1, stores_kv=True, computes_index=True, stores_index_keys=True),
    LayerShape(1, computes_index=True, uses_candidates=True),
)
SMALL = ModelShape(
    layers=LAYERS,
    producer_layers=3,
    hidden_size=7,
    vocab_size=31,
    num_heads=3,
    head_dim=5,
    q_lora_rank=4,
    o_lora_rank=2,
    o_groups=3,
    window=6,
    index_topk=4,
    index_heads=2,
    index_head_dim=3,
    candidate_blocks=3,
    candidate_block_size=4,
    expert_width=8,
    experts_per_token=2,
    shared_experts=1,
    routed_experts=9,
    hc_streams=4,
    engram_width=11,
)


class Piece(NamedTuple):
    """Rows `context - rows .. context - 1` of one sequence."""

    rows: int
    context: int
    prefill: bool
    known: int
    window_start: int


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    rows = draw(st.integers(1, 30))
    start = draw(st.integers(0, 90))
    known = start + rows + draw(st.integers(0, 20))
    return Piece(rows, start + rows, draw(st.booleans()), known, draw(st.integers(0, start)))


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    truncation = draw(st.sampled_from(PrefillTruncation))
    fp8 = draw(st.booleans())
    return dataclasses.replace(
        SMALL,
        producer_layers=draw(st.sampled_from([3, 5])),
        window=draw(st.integers(1, 12)),
        index_topk=draw(st.integers(0, 9)),
        candidate_blocks=draw(st.integers(1, 9)),
        candidate_block_size=draw(st.integers(1, 5)),
        hc_streams=draw(st.sampled_from([0, 1, 4])),
        hc_shifted=draw(st.booleans()),
        attention_precision=Precision.FP8 if fp8 else Precision.BF16,
        expert_precision=Precision.FP8 if fp8 else Precision.BF16,
        index_precision=draw(st.sampled_from([Precision.FP4, Precision.FP8])),
        truncation=truncation,
        keep_tokens=0 if truncation is PrefillTruncation.OFF else draw(st.integers(1, 25)),
    )


class BruteForce:
    """Every term on its own: a layer, a row and a key at a time."""

    def __init__(self, shape: ModelShape, piece: Piece) -> None:
        self.shape = shape
        self.piece = piece
        self.rows = range(piece.context - piece.rows, piece.context)
        self.truncates = piece.prefill and shape.truncation is not PrefillTruncation.OFF
        self.compacts = piece.prefill and shape.truncation is PrefillTruncation.COMPACT

    def consumer_rows(self) -> list[int]:
        if not self.compacts:
            return list(self.rows)
        first_kept = self.piece.known - self.shape.keep_tokens
        return [p for p in self.rows if p >= first_kept] or [self.rows[-1]]

    def layer_rows(self, index: int) -> list[int]:
        return self.consumer_rows() if index >= self.shape.producer_layers else list(self.rows)

    def window_keys(self, p: int, index: int) -> int:
        first = max(p - self.shape.window + 1, 0, self.piece.window_start)
        if self.truncates and index >= self.shape.producer_layers:
            first = max(first, self.piece.known - self.shape.keep_tokens)
        return len([key for key in range(p + 1) if key >= first])

    def scored(self, p: int, layer: LayerShape) -> int:
        entries = (p + 1) // layer.ratio
        if not layer.uses_candidates:
            return entries
        size = self.shape.candidate_block_size
        begun = len(range(0, entries, size))
        return min(begun, self.shape.candidate_blocks) * size

    def pairs(self) -> int:
        shape, total = self.shape, 0
        for index, layer in enumerate(shape.layers):
            for p in self.layer_rows(index):
                keys = self.window_keys(p, index)
                if layer.ratio:
                    entries = (p + 1) // layer.ratio
                    keys += min(entries, shape.index_topk) if shape.index_topk else entries
                total += 4 * shape.num_heads * 2 * shape.head_dim * keys
                if layer.computes_index:
                    cost = shape.index_precision * shape.index_heads * shape.index_head_dim
                    total += cost * self.scored(p, layer)
        return total

    def projections(self) -> int:
        s, total = self.shape, 0
        a = s.attention_precision
        for index, layer in enumerate(s.layers):
            row = a * s.hidden_size * s.q_lora_rank + a * s.hidden_size * s.head_dim
            row += a * s.q_lora_rank * s.num_heads * s.head_dim
            row += (
                2 * s.num_heads * s.head_dim * s.o_lora_rank + a * s.o_groups * s.o_lora_rank * s.hidden_size
            )
            if layer.computes_index:
                row += (
                    a * s.q_lora_rank * s.index_heads * s.index_head_dim + 4 * s.hidden_size * s.index_heads
                )
            total += row * len(self.layer_rows(index))
            if layer.stores_kv:
                total += 4 * s.hidden_size * s.head_dim * min(layer.ratio, 2) * len(self.rows)
            if layer.stores_index_keys:
                ended = [p for p in self.rows if (p + 1) % layer.ratio == 0]
                made = max(len(ended), 1) if self.piece.prefill else len(self.rows)
                total += 4 * s.head_dim * s.index_head_dim * made
        return total

    def others(self) -> int:
        s, total = self.shape, 0
        stream = 8 * s.hc_streams * s.hidden_size
        pre = stream * s.hc_streams * (s.hc_streams + 2) + stream
        post = stream * (s.hc_streams + 1)
        for index, layer in enumerate(s.layers):
            row = (
                s.expert_precision
                * 3
                * s.hidden_size
                * s.expert_width
                * (s.experts_per_token + s.shared_experts)
            )
            row += 4 * s.hidden_size * s.routed_experts + 2 * (pre + post)
            if layer.has_engram:
                row += s.engram_precision * s.engram_width * s.hidden_size * (s.hc_streams + 1) + stream
            total += row * len(self.layer_rows(index))
        kept = len(self.consumer_rows())
        total += stream * kept if s.hc_shifted else (stream + stream * s.hc_streams) * kept
        if s.hc_shifted:
            total -= stream * len(self.rows)
        if s.truncation is PrefillTruncation.COMPACT and s.producer_layers < len(s.layers):
            total += pre * (len(self.rows) - kept)
        return total + 4 * s.hidden_size * s.vocab_size * (1 if self.piece.prefill else len(self.rows))

    def attention(self) -> int:
        return self.pairs() + self.projections()

    def total(self) -> int:
        return self.attention() + self.others()


def estimate(shape: ModelShape, batch: list[Piece]):  # type: ignore[no-untyped-def]
    rows, context, prefill, known, window_start = zip(*batch, strict=True)
    return FlopsEstimator(shape).estimate(rows, context, prefill, known=known, window_start=window_start)


@given(ratio=st.integers(1, 40), cap=st.integers(0, 9), shift=st.integers(0, 39), length=st.integers(0, 300))
def test_a_pair_count_is_the_sum_over_its_rows(ratio: int, cap: int, shift: int, length: int) -> None:
    shift %= ratio
    seen = [(t + shift) // ratio for t in range(1, length + 1)]
    expected = sum(min(keys, cap) if cap else keys for keys in seen)
    assert PairCount(ratio, cap, shift).up_to(np.array([length])).tolist() == [expected]


@given(shape=shapes(), batch=st.lists(pieces(), min_size=1, max_size=5))
def test_closed_forms_equal_brute_force(shape: ModelShape, batch: list[Piece]) -> None:
    found = estimate(shape, batch)
    one_by_one = [BruteForce(shape, piece) for piece in batch]
    assert found.pairs.tolist() == [brute.pairs() for brute in one_by_one]
    assert found.attention.tolist() == [brute.attention() for brute in one_by_one]
    assert found.total.tolist() == [brute.total() for brute in one_by_one]


@pytest.mark.parametrize(
    ("rows", "context", "known", "kept"),
    [(256, 256, 300, 96), (44, 300, 300, 44), (512, 512, 1000, 1), (488, 1000, 1000, 140)],
)
@pytest.mark.parametrize("mode", PrefillTruncation)
def test_truncated_chunks(mode: PrefillTruncation, rows: int, context: int, known: int, kept: int) -> None:
    """The chunks of the attention spec, 12.4: 140 tokens kept of prompts of 300 and 1000."""
    keep = 0 if mode is PrefillTruncation.OFF else 140
    shape = dataclasses.replace(SMALL, window=128, truncation=mode, keep_tokens=keep)
    piece = Piece(rows, context, True, known, 0)
    brute = BruteForce(shape, piece)
    assert len(brute.consumer_rows()) == (kept if mode is PrefillTruncation.COMPACT else rows)
    assert estimate(shape, [piece]).total.tolist() == [brute.total()]


@given(piece=pieces(), shape=shapes(), cuts=st.lists(st.integers(1, 29), max_size=4, unique=True))
def test_pair_terms_add_up_over_chunks(piece: Piece, shape: ModelShape, cuts: list[int]) -> None:
    shape = dataclasses.replace(shape, truncation=PrefillTruncation.OFF, keep_tokens=0)
    start = piece.context - piece.rows
    ends = [start + cut for cut in sorted(cuts) if cut < piece.rows] + [piece.context]
    begins = [start, *ends[:-1]]
    chunks = [piece._replace(rows=end - begin, context=end) for begin, end in zip(begins, ends, strict=True)]
    assert estimate(shape, chunks).pairs.sum() == estimate(shape, [piece]).pairs[0]


@given(piece=pieces(), shape=shapes())
def test_more_rows_or_more_context_never_cost_less(piece: Piece, shape: ModelShape) -> None:
    """By the context only without truncation and from entry to entry: a chunk of 3 rows ends one or two of ratio 2."""
    piece = piece._replace(window_start=0)
    longer = piece._replace(rows=piece.rows + 1, context=piece.context + 1, known=piece.known + 1)
    earlier = piece._replace(rows=min(piece.rows + 1, piece.context))
    untruncated = dataclasses.replace(shape, truncation=PrefillTruncation.OFF, keep_tokens=0)
    later = piece._replace(context=piece.context + 2, known=piece.known + 2)
    for smaller, larger in (
        (estimate(untruncated, [piece]), estimate(untruncated, [longer])),
        (estimate(untruncated, [piece]), estimate(untruncated, [later])),
        (estimate(shape, [piece]), estimate(shape, [earlier])),
    ):
        assert 0 < smaller.pairs[0] <= larger.pairs[0]
        assert smaller.pairs[0] < smaller.attention[0] <= larger.attention[0]
        assert smaller.attention[0] < smaller.total[0] <= larger.total[0]


def test_a_decode_row_by_hand() -> None:
    """One window-only layer and nothing optional: each term of the formula once, in decimal."""
    shape = ModelShape(
        layers=(LayerShape(),),
        producer_layers=1,
        hidden_size=10,
        vocab_size=100,
        num_heads=2,
        head_dim=8,
        q_lora_rank=4,
        o_lora_rank=3,
        o_groups=2,
        window=5,
        expert_width=6,
        experts_per_token=2,
        shared_experts=1,
        routed_experts=7,
    )
    found = FlopsEstimator(shape).estimate([1], [9], [False])
    assert found.pairs.tolist() == [4 * 2 * 2 * 8 * 5]
    projections = 2 * 10 * (4 + 8) + 2 * 4 * 2 * 8 + 2 * 2 * 8 * 3 + 2 * 2 * 3 * 10
    assert found.attention.tolist() == [640 + projections]
    assert found.total.tolist() == [640 + projections + 2 * 3 * 10 * 6 * 3 + 4 * 10 * 7 + 4 * 10 * 100]


def test_a_plan_is_estimated_by_what_its_rows_are() -> None:
    sizes = SchedulerConfig(
        num_blocks=30, num_slots=5, block_size=4, max_num_seqs=4, max_num_batched_tokens=8
    )
    scheduler = Scheduler(sizes)
    estimator = FlopsEstimator(SMALL)
    scheduler.add(0, np.arange(6, dtype=np.int32), SequenceLimits(max_tokens=4))
    assert (
        estimator.of_plan(scheduler.plan()).total.tolist()
        == estimator.estimate([6], [6], [True]).total.tolist()
    )
    scheduler.commit(np.ones(1, np.int32), np.ones(1, np.int32))
    scheduler.add(1, np.arange(11, dtype=np.int32), SequenceLimits(max_tokens=4))
    plan = scheduler.plan()
    assert plan.q_len.tolist() == [1, 7]
    expected = estimator.estimate([1, 7], [7, 7], [False, True], known=[7, 11])
    assert estimator.of_plan(plan).total.tolist() == expected.total.tolist()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([0], [5], [True]), r"rows\[0\] must be from 1 to 5, got 0"),
        (([1, 6], [5, 5], [True, True]), r"rows\[1\] must be from 1 to 5, got 6"),
        (([1], [10**7], [True]), r"context\[0\] must be from 1 to 2097152, got 10000000"),
        (([1, 1], [5], [True]), r"context must have the shape of rows, \(2,\), got \(1,\)"),
        ((1, 5, True), r"rows must be 1-dimensional, got shape \(\)"),
    ],
)
def test_impossible_pieces_are_named(arguments: tuple[object, ...], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        FlopsEstimator(SMALL).estimate(*arguments)  # type: ignore[arg-type]


def test_known_and_window_start_are_checked() -> None:
    with pytest.raises(ValueError, match=r"known\[0\] must be from 5 to 2097152, got 4"):
        FlopsEstimator(SMALL).estimate([1], [5], [True], known=[4])
    with pytest.raises(ValueError, match=r"window_start\[0\] must be from 0 to 3, got 4"):
        FlopsEstimator(SMALL).estimate([2], [5], [True], window_start=[4])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": 0}, "hidden_size must be an integer from 1"),
        ({"layers": ()}, "layers must hold at least one layer"),
        ({"producer_layers": 6}, "producer_layers must be an integer from 0 to 5"),
        ({"candidate_blocks": 0}, "candidate_blocks must be an integer from 1"),
        ({"truncation": PrefillTruncation.MASK}, "keep_tokens must be an integer from 1"),
    ],
)
def test_impossible_shapes_are_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        dataclasses.replace(SMALL, **changes)


def test_a_layer_without_entries_has_nothing_to_index() -> None:
    with pytest.raises(ConfigError, match="ratio must be at least 1"):
        LayerShape(0, computes_index=True)
    with pytest.raises(ConfigError, match="computes_index must be True"):
        LayerShape(1, uses_candidates=True)


def test_counts_that_would_leave_64_bits_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_context must be at most about"):
        FlopsEstimator(dataclasses.replace(SMALL, num_heads=10**9, head_dim=10**6))


def test_the_largest_context_does_not_overflow() -> None:
    estimator = FlopsEstimator(SMALL)
    whole = estimator.estimate([estimator.max_context], [estimator.max_context], [True])
    assert whole.pairs[0] == sum(
        estimator.estimate([half], [end], [True]).pairs[0] for half, end in ((2**20, 2**20), (2**20, 2**21))
    )
    assert whole.total[0] > whole.pairs[0] > 0


def test_no_sequence_is_looked_at_by_itself() -> None:
    """The calls of an estimate are as many for a thousand sequences as for two: it works on whole arrays."""
    generator = np.random.default_rng(0)
    estimator = FlopsEstimator(dataclasses.replace(SMALL, layers=LAYERS * 8, producer_layers=24))

    def calls(count: int) -> int:
        context = generator.integers(20, 100_000, count)
        rows, prefill = generator.integers(1, 20, count), np.arange(count) % 2 == 0
        seen = []
        sys.setprofile(lambda frame, event, argument: seen.append(event))
        try:
            estimator.estimate(rows, context, prefill)
        finally:
            sys.setprofile(None)
        return len(seen)

    assert calls(1024) == calls(2)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_utilization_is_of_the_window_without_its_first_step() -> None:
    clock = Clock()
    meter = MfuMeter(1000.0, devices=2, window=2, clock=clock)
    assert meter.utilization is None
    for seconds, flops in ((0.0, 9e9), (0.5, 400.0), (1.5, 600.0)):
        clock.now += seconds
        meter.record(flops)
    assert meter.flops_per_second == (400 + 600) / 2.0
    assert meter.utilization == 500 / 2 / 1000
    clock.now += 0.5
    meter.record(800.0)  # the step of 9e9 leaves the window, the one of 400 begins it
    assert meter.flops_per_second == (600 + 800) / 2.0


def test_a_meter_knows_nothing_before_time_has_passed() -> None:
    clock = Clock()
    meter = MfuMeter(1000.0, clock=clock)
    meter.record(1.0)
    meter.record(1.0)
    assert meter.flops_per_second is None
    clock.now += 1.0
    meter.record(5.0)
    assert meter.flops_per_second == 6.0
    meter.restart()
    assert meter.utilization is None


@pytest.mark.parametrize("peak", [0.0, -1.0, float("inf"), float("nan")])
def test_a_peak_must_be_positive(peak: float) -> None:
    with pytest.raises(ConfigError, match="peak_flops must be a positive number"):
        MfuMeter(peak)


def test_negative_flops_are_refused() -> None:
    with pytest.raises(ValueError, match="flops must be at least 0"):
        MfuMeter(1.0).record(-1.0)
