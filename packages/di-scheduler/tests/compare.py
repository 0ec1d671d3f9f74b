"""Native results beside those of the Python model."""

import math

from di_scheduler import CommitResult, SchedulerStats, SequenceInfo, SequenceState, StepPlan

from .model import ModelScheduler
from .model_commit import Outcome
from .model_core import Counts
from .model_state import ModelPlan


def compare_plan(plan: StepPlan, model: ModelPlan, *, resolved: bool = False) -> None:
    pieces = model.pieces
    assert plan.seq_ids.tolist() == [p.sequence.seq_id for p in pieces]
    assert plan.decodes.tolist() == [p.decode for p in pieces]
    assert plan.q_start.tolist() == [p.start for p in pieces]
    assert plan.q_len.tolist() == [p.rows for p in pieces]
    assert plan.samples.tolist() == [p.samples for p in pieces]
    assert plan.output_len.tolist() == [p.output_len for p in pieces]
    assert plan.token_ids.tolist() == [token for p in pieces for token in p.row_tokens()]
    assert (plan.source >= 0).tolist() == [p.source is not None for p in pieces]
    if not resolved:  # what has ended since holds nothing in the model
        assert plan.slots.tolist() == [p.sequence.slot for p in pieces]
        tables = [[block for block in row if block] for row in plan.block_table.tolist()]
        assert tables == [p.sequence.blocks for p in pieces]
    assert plan.preempted.tolist() == model.preempted
    assert plan.expired.tolist() == model.expired
    assert plan.copy_blocks.tolist() == [list(pair) for copy in model.copies for pair in copy.blocks]
    assert plan.copy_slots.tolist() == [list(copy.slots) for copy in model.copies]
    compare_shortcuts(plan)


def compare_shortcuts(plan: StepPlan) -> None:
    """Counts and buffers say what the arrays say."""
    assert (plan.num_seqs, plan.num_rows) == (len(plan.seq_ids), len(plan.token_ids))
    assert (plan.num_sampling, plan.num_expired) == (len(plan.sampling), len(plan.expired))
    assert plan.num_copies == len(plan.copy_blocks) + len(plan.copy_slots)
    arrays = (plan.token_ids, plan.q_start, plan.q_len, plan.slots, plan.block_table, plan.context)
    for buffer, array in zip(plan.inputs, arrays, strict=True):
        assert (buffer.readonly, buffer.shape, buffer.itemsize) == (True, array.shape, 4)
        assert buffer.tobytes() == array.tobytes()


def compare_result(result: CommitResult, outcomes: list[Outcome]) -> None:
    assert result.seq_ids.tolist() == [o.seq_id for o in outcomes]
    assert result.num_committed.tolist() == [o.kept for o in outcomes]
    assert result.finish.tolist() == [o.finish for o in outcomes]
    assert result.ends == [(o.seq_id, o.kept, o.finish) for o in outcomes]
    waits = [None if math.isnan(wait) else wait for wait in result.first_token_wait.tolist()]
    assert waits == [o.first_token_wait for o in outcomes]


COUNTERS = tuple(Counts.__dataclass_fields__)


def compare_stats(stats: SchedulerStats, model: ModelScheduler) -> None:
    core = model.core
    assert stats.free_blocks == len(core.blocks.free)
    assert stats.free_slots == len(core.slots.free)
    assert (stats.waiting, stats.running) == (len(core.queue.sequences), len(core.running))
    for name in COUNTERS:
        assert getattr(stats, name) == getattr(core.counts, name), name
    arrivals = [sequence.arrival for sequence in core.queue.sequences]
    assert stats.oldest_waiting_arrival == min(arrivals, default=None)


def compare_sequences(infos: dict[int, SequenceInfo], model: ModelScheduler) -> None:
    assert infos.keys() == model.core.live.keys()
    for seq_id, info in infos.items():
        sequence = model.core.live[seq_id]
        assert info.state == sequence.state
        assert info.block_table.tolist() == sequence.blocks
        assert info.slot == sequence.slot
        assert info.num_preemptions == sequence.preemptions
        if info.state != SequenceState.RECEIVING:
            assert info.num_computed == sequence.computed
