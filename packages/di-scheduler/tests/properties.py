"""The properties of the scheduler specification, section 17, that apply to one synchronous scheduler.

Each check looks at the native scheduler through its public interface only; none asks the Python model. The tables at
the end map the numbers of the specification to checks; 4 to 7 are about the pool alone (`test_block_pool.py`) and 21,
36, 38 and 44 about whole histories (`test_transparency.py`, `test_lifecycle.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from di_scheduler import (
    FinishReason,
    Scheduler,
    SchedulerConfig,
    SequenceInfo,
    SequenceLimits,
    SequenceState,
    StepPlan,
    StepPolicy,
)


@dataclass
class Request:
    """What the outside world knows of one request."""

    prompt: list[int]
    limits: SequenceLimits
    order: int
    delivered: list[int] = field(default_factory=list)
    finishes: list[FinishReason] = field(default_factory=list)
    rows_seen: int = 0  # positions computed since the last (re)start
    preemptions: int = 0


@dataclass
class Observation:
    """The native scheduler at one moment, with all that was told to the outside so far."""

    config: SchedulerConfig
    scheduler: Scheduler
    live: dict[int, Request]  # by id
    ended: list[Request]
    in_flight_ended: list[SequenceInfo]  # ended while the open plan has rows of them
    free_before: int = 0  # blocks, when the plan was asked for
    held_before: dict[int, int] = field(default_factory=dict)  # blocks held then, by id

    def info(self, seq_id: int) -> SequenceInfo:
        return self.scheduler.describe(seq_id)

    def holders(self) -> list[SequenceInfo]:
        infos = [self.info(seq_id) for seq_id in self.live]
        return [info for info in infos + self.in_flight_ended if len(info.block_table) or info.slot]


def usable(table: Iterable[int]) -> list[int]:
    return [block for block in table if block]


# After every operation.


def check_conservation(o: Observation) -> None:
    """1: free blocks and distinct held blocks add up to the pool."""
    held = {block for info in o.holders() for block in info.block_table.tolist()}
    stats = o.scheduler.stats()
    assert stats.free_blocks + len(held) == o.config.num_blocks - 1
    assert stats.used_blocks == len(held)


def check_references(o: Observation) -> None:
    """2: without prefix sharing, a block stands in one table once."""
    held = [block for info in o.holders() for block in info.block_table.tolist()]
    assert len(held) == len(set(held))


def check_null_index(o: Observation) -> None:
    """3: index 0 is never handed out."""
    for info in o.holders():
        assert all(0 < block < o.config.num_blocks for block in info.block_table.tolist())
        assert 0 < info.slot < o.config.num_slots


def check_slots(o: Observation) -> None:
    """8, 9: who holds blocks holds exactly one slot, and no two hold the same."""
    slots = [info.slot for info in o.holders()]
    assert len(slots) == len(set(slots)) == o.scheduler.stats().used_slots
    assert len(slots) <= o.config.max_num_seqs


def check_exclusivity(o: Observation) -> None:
    """10: every live sequence is in exactly one queue, and each queue is in arrival order."""
    waiting, running = o.scheduler.waiting_ids().tolist(), o.scheduler.running_ids().tolist()
    assert sorted(waiting + running) == sorted(o.live)
    for queue, state in ((waiting, SequenceState.WAITING), (running, SequenceState.RUNNING)):
        assert all(o.info(seq_id).state == state for seq_id in queue)
        orders = [o.live[seq_id].order for seq_id in queue]
        assert orders == sorted(orders)
    for seq_id in waiting:
        info = o.info(seq_id)
        assert (len(info.block_table), info.slot, info.num_computed) == (0, 0, 0)


def check_outputs(o: Observation) -> None:
    """22, 23: one end per request, what was delivered is what is stored, and no rule of ending was missed."""
    for seq_id, request in o.live.items():
        assert request.finishes == []
        assert request.delivered == o.scheduler.output_tokens(seq_id).tolist()
        assert o.info(seq_id).length == len(request.prompt) + len(request.delivered)
        assert first_stop(o.config, request) is None
    for request in o.ended:
        assert len(request.finishes) == 1
        stop = first_stop(o.config, request)
        if request.finishes[0] in (FinishReason.STOP, FinishReason.STOP_TOKEN, FinishReason.LENGTH):
            assert stop == (len(request.delivered), request.finishes[0])
        else:
            assert stop is None


def first_stop(config: SchedulerConfig, request: Request) -> tuple[int, FinishReason] | None:
    """The output length at which a request must end by itself, and why."""
    limits = request.limits
    pool = (config.num_blocks - 1) * config.block_size
    room = min(limits.max_tokens, min(config.max_model_len, pool) - len(request.prompt))
    for count, token in enumerate(request.delivered, start=1):
        if count > limits.min_tokens:
            if token in limits.eos_token_ids and not limits.ignore_eos:
                return count, FinishReason.STOP
            if token in limits.stop_token_ids:
                return count, FinishReason.STOP_TOKEN
        if count >= room:
            return count, FinishReason.LENGTH
    return None


# After every plan.


def is_decode(plan: StepPlan, i: int) -> bool:
    return bool(plan.q_len[i] == 1 and plan.samples[i] and plan.q_start[i] > 0)


def check_homogeneity(o: Observation, plan: StepPlan) -> None:
    """11: with that policy no step has both kinds."""
    if o.config.policy is StepPolicy.HOMOGENEOUS:
        decodes = [is_decode(plan, i) for i in range(plan.num_seqs)]
        assert all(decodes) or not any(decodes)


def check_budgets(o: Observation, plan: StepPlan) -> None:
    """12: rows of a step, of a chunk, and sequences."""
    assert plan.num_rows == plan.q_len.sum() <= o.config.max_num_batched_tokens
    assert plan.num_seqs <= o.config.max_num_seqs
    assert plan.q_len.max(initial=0) <= (o.config.max_chunk_tokens or o.config.max_num_batched_tokens)
    assert plan.q_len.min(initial=1) >= 1


def check_coverage(o: Observation, plan: StepPlan) -> None:
    """13: positions are computed in order, each once per (re)start, with the right tokens around them."""
    for i, seq_id in enumerate(plan.seq_ids.tolist()):
        request = o.live[seq_id]
        tokens = request.prompt + request.delivered
        start, end = int(plan.q_start[i]), int(plan.q_start[i] + plan.q_len[i])
        rows = slice(plan.row_start[i], plan.row_start[i + 1])
        assert start == request.rows_seen
        assert plan.token_ids[rows].tolist() == tokens[start:end]
        assert plan.positions[rows].tolist() == list(range(start, end))
        assert plan.samples[i] == (end == len(tokens))
        padded = [-1] * o.config.lookback + tokens
        before = padded[start : start + o.config.lookback]
        assert plan.context[i].tolist() == before[::-1]
        assert (plan.prompt_len[i], plan.output_len[i]) == (len(request.prompt), len(request.delivered))
    assert plan.sampling.tolist() == np.flatnonzero(plan.samples).tolist()


def check_admission_order(o: Observation, plan: StepPlan) -> None:
    """17: nobody starts before an earlier request; where chunks are not capped, first tokens come in order too."""
    orders = [o.live[seq_id].order for seq_id in o.scheduler.running_ids().tolist()]
    waiting = [o.live[seq_id].order for seq_id in o.scheduler.waiting_ids().tolist()]
    assert max(orders, default=-1) < min(waiting, default=2**63)
    if o.config.max_chunk_tokens is not None:
        return
    fresh = [r for r in o.live.values() if r.preemptions == 0 and not r.delivered]
    yielding = set(plan.seq_ids[plan.sampling].tolist())
    first = [r.order for seq_id, r in o.live.items() if r in fresh and seq_id in yielding]
    silent = [r.order for seq_id, r in o.live.items() if r in fresh and seq_id not in yielding]
    assert max(first, default=-1) < min(silent, default=2**63)


def check_tables(o: Observation, plan: StepPlan) -> None:
    """18, 19: every row has a place, and no block is held in advance."""
    assert plan.block_table.shape == (plan.num_seqs, max(map(len, map(usable, plan.block_table)), default=0))
    for i, seq_id in enumerate(plan.seq_ids.tolist()):
        table, info = usable(plan.block_table[i].tolist()), o.info(seq_id)
        assert len(table) == -(-int(plan.q_start[i] + plan.q_len[i]) // o.config.block_size)
        assert table == info.block_table.tolist()
        assert plan.slots[i] == info.slot


def check_preemption(o: Observation, plan: StepPlan) -> None:
    """20: only when the free blocks were used up by running sequences, and the latest first."""
    victims = [o.live[seq_id].order for seq_id in plan.preempted.tolist()]
    survivors = [o.live[seq_id].order for seq_id in o.scheduler.running_ids().tolist()]
    assert victims == sorted(victims, reverse=True)
    assert min(victims, default=2**63) > max(survivors, default=-1)
    if victims:
        growth = {i: len(o.info(i).block_table) - o.held_before[i] for i in plan.seq_ids.tolist()}
        assert sum(growth.values()) >= o.free_before
        assert all(seq_id in o.held_before for seq_id in growth), (
            "admitted a sequence in a step that preempted"
        )


def check_positions(o: Observation, plan: StepPlan) -> None:
    """24: no position lies beyond the model length or the pool."""
    pool = (o.config.num_blocks - 1) * o.config.block_size
    assert plan.positions.max(initial=0) < min(o.config.max_model_len, pool)


def check_progress(o: Observation, plan: StepPlan) -> None:
    """36, step by step: there is a plan while there is work; under MIXED the oldest sequence is in it."""
    assert (plan.num_seqs > 0) == bool(o.live)
    if o.live and o.config.policy is StepPolicy.MIXED:
        oldest = min(o.live, key=lambda seq_id: o.live[seq_id].order)
        assert oldest in plan.seq_ids


ALWAYS: dict[str, Callable[[Observation], None]] = {
    "1 conservation": check_conservation,
    "2 reference counts": check_references,
    "3 index 0": check_null_index,
    "8, 9 slots": check_slots,
    "10 exclusivity": check_exclusivity,
    "22, 23 outputs and stop rules": check_outputs,
}

AFTER_PLAN: dict[str, Callable[[Observation, StepPlan], None]] = {
    "11 homogeneity": check_homogeneity,
    "12 budgets": check_budgets,
    "13 chunk coverage": check_coverage,
    "17 FIFO": check_admission_order,
    "18, 19 tables": check_tables,
    "20 preemption": check_preemption,
    "24 position bound": check_positions,
    "36 progress": check_progress,
}
