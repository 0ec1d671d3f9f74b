"""The 45 properties of the scheduler specification, section 17, as they hold for docs/interfaces.md.

The checks look at the native scheduler through its public methods only; none asks the Python model. Here are those
that hold after every operation, those of a commit, and the table of all numbers; `properties_plan.py` has those of a
plan. Whole-history properties are tests of their own.
"""

from collections import defaultdict
from collections.abc import Callable

from di_scheduler import EngineKind, FinishReason, SchedulerConfig, SequenceState

from .observation import Observation, Request

LIVE_STATES = (
    SequenceState.WAITING,
    SequenceState.RUNNING,
    SequenceState.PROMPTED,
    SequenceState.RECEIVING,
)


def check_conservation(o: Observation) -> None:
    """1: free blocks and distinct held blocks (copies' sources too) add up to the pool."""
    held = {block for _, table, _ in o.tables() for block in table}
    held |= {source for pin in o.pins() for source, _ in pin.blocks}
    assert o.stats.free_blocks + len(held) == o.config.num_blocks - 1
    assert o.stats.used_blocks == len(held)


def check_references(o: Observation) -> None:
    """2: a block stands in two tables only where one was forked from the other, at the same place."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for request, table, _ in o.tables():
        assert len(set(table)) == len(table)
        for place, block in enumerate(table):
            places[block].append((request.family, place))
    assert all(len(set(found)) == 1 for found in places.values())


def check_null_index(o: Observation) -> None:
    """3: index 0 is never handed out, and nothing beyond the pools."""
    for _, table, slot in o.tables():
        assert all(0 < block < o.config.num_blocks for block in table)
        assert 0 < slot < o.config.num_slots


def check_slots(o: Observation) -> None:
    """8, 9: who holds blocks holds exactly one slot, nobody another's; `max_num_seqs` at most hold one.

    The state slot is the draft slot: there is no second kind.
    """
    slots = [slot for _, _, slot in o.tables()]
    assert len(slots) == len(set(slots))
    used = set(slots) | {pin.slots[0] for pin in o.pins()}
    assert o.stats.used_slots == len(used) <= o.config.max_num_seqs
    assert o.stats.free_slots + len(used) == o.config.num_slots - 1
    for info in o.infos.values():
        assert (info.slot > 0) == (info.state != SequenceState.WAITING)


def check_exclusivity(o: Observation) -> None:
    """10: every live sequence is in exactly one state, the queues are in order, waiting ones hold nothing."""
    ids = {state: o.in_state(state) for state in LIVE_STATES}
    assert sorted(seq_id for found in ids.values() for seq_id in found) == sorted(o.live)
    for queue, state in ((o.waiting, SequenceState.WAITING), (o.running, SequenceState.RUNNING)):
        assert sorted(queue) == sorted(ids[state])
        places = [o.live[seq_id].place for seq_id in queue]
        assert places == sorted(places)
    stats = o.stats
    counted = (stats.waiting, stats.running, stats.prompted, stats.receiving)
    assert counted == tuple(len(ids[state]) for state in LIVE_STATES)
    assert stats.not_ready == sum(not o.live[seq_id].ready for seq_id in o.waiting)
    for seq_id in o.waiting:
        info = o.infos[seq_id]
        assert (len(info.block_table), info.slot, info.num_computed) == (0, 0, 0)


def check_outputs(o: Observation) -> None:
    """22, 23: one end per request, what was delivered is what is stored, and no rule of ending was missed."""
    for seq_id, request in o.live.items():
        assert request.finishes == []
        assert o.infos[seq_id].length == len(request.prompt) + len(request.delivered)
        assert o.scheduler.output_tokens(seq_id).tolist() == request.delivered
        assert first_stop(o.config, request) is None
    for request in o.ended:
        assert len(request.finishes) == 1
        stop = first_stop(o.config, request)
        if request.finishes[0] in (FinishReason.STOP, FinishReason.STOP_TOKEN, FinishReason.LENGTH):
            assert stop == (len(request.delivered), request.finishes[0])
        else:
            assert stop is None
    o.ended.clear()


def first_stop(config: SchedulerConfig, request: Request) -> tuple[int, FinishReason] | None:
    """The output length at which a request must end by itself, and why."""
    limits = request.limits
    room = min(limits.max_tokens, length_limit(config) - len(request.prompt))
    for count, token in enumerate(request.delivered, start=1):
        if count > limits.min_tokens:
            if token in limits.eos_token_ids and not limits.ignore_eos:
                return count, FinishReason.STOP
            if token in limits.stop_token_ids:
                return count, FinishReason.STOP_TOKEN
        if count >= room:
            return count, FinishReason.LENGTH
    return None


def length_limit(config: SchedulerConfig) -> int:
    return min(config.max_model_len, (config.num_blocks - 1) * config.block_size)


def check_flights(o: Observation) -> None:
    """26, 28: rows in flight stand for our counters: at most one group a plan, at most as many plans as allowed."""
    assert o.scheduler.num_open_plans() == len(o.steps) <= o.config.max_steps_in_flight
    assert o.scheduler.has_unfinished() == bool(o.live or o.steps)
    for request in o.live.values():
        assert len(request.rows_in_flight) <= len(o.steps)
        assert all(
            rows.rows <= 1 + o.config.max_draft_tokens for rows in request.rows_in_flight if rows.decode
        )


def check_progress_kept(o: Observation) -> None:
    """27: what is computed is what was committed; a sequence that yields is one position short of its length."""
    for seq_id, request in o.live.items():
        info = o.infos[seq_id]
        if info.state == SequenceState.RUNNING:
            assert info.num_computed == request.computed < info.length
        if info.state == SequenceState.PROMPTED:
            assert o.config.kind is EngineKind.PREFILL_ONLY
            assert info.num_computed == info.length - 1


def check_fork_isolation(o: Observation) -> None:
    """39: where anybody may still write, nobody else looks."""
    readers: dict[int, list[Request]] = defaultdict(list)
    for request, table, _ in o.tables():
        for block in table:
            readers[block].append(request)
    for request, table, _ in o.tables():
        for block in table[request.computed // o.config.block_size :]:
            assert readers[block] == [request]


def check_memory(o: Observation) -> None:
    """42: arrays own their memory, so that no later step changes an earlier plan."""
    for step in o.steps:
        for name, content in step.bytes_at_birth.items():
            assert getattr(step.plan, name).tobytes() == content


def check_accounting(o: Observation) -> None:
    """45: the counters are what the outside saw."""
    assert o.stats.aborts == o.aborted
    assert o.stats.refusals == o.refusals
    assert o.stats.preemptions == o.preempted
    assert o.stats.tokens_committed == o.kept


ALWAYS: dict[str, Callable[[Observation], None]] = {
    "1 conservation": check_conservation,
    "2 reference counts": check_references,
    "3 index 0": check_null_index,
    "8, 9 slots": check_slots,
    "10 exclusivity": check_exclusivity,
    "22, 23 outputs and stop rules": check_outputs,
    "26, 28 flights": check_flights,
    "27 progress": check_progress_kept,
    "39 fork isolation": check_fork_isolation,
    "42 memory": check_memory,
    "45 accounting": check_accounting,
}

WHERE: dict[int, str] = {
    1: "properties.py::check_conservation",
    2: "properties.py::check_references",
    3: "properties.py::check_null_index",
    4: "test_block_pool.py::PoolHistory.same",
    5: "test_block_pool.py::test_frees_the_tail_of_a_table_first",
    6: "test_block_pool.py::PoolHistory",
    7: "test_block_pool.py::PoolHistory.allocate",
    8: "properties.py::check_slots",
    9: "properties.py::check_slots",
    10: "properties.py::check_exclusivity",
    11: "properties_plan.py::check_homogeneity",
    12: "properties_plan.py::check_budgets",
    13: "properties_plan.py::check_coverage",
    14: "properties_plan.py::check_images",
    15: "properties_plan.py::check_checkpoints",
    16: "properties_plan.py::check_alignment",
    17: "properties_plan.py::check_admission_order",
    18: "properties_plan.py::check_tables",
    19: "properties_plan.py::check_tables",
    20: "properties_plan.py::check_preemption",
    21: "test_transparency.py::test_outputs_do_not_depend_on_the_schedule",
    22: "properties.py::check_outputs",
    23: "properties.py::check_outputs",
    24: "properties_plan.py::check_positions",
    25: "test_transparency.py::test_asynchronous_steps_change_nothing",
    26: "properties.py::check_flights",
    27: "properties.py::check_progress_kept",
    28: "properties.py::check_flights",
    29: "test_speculation.py",
    30: "test_speculation.py",
    31: "test_speculation.py",
    32: "test_medians.py",
    33: "test_lockstep.py",
    34: "test_lockstep.py",
    35: "test_lockstep.py",
    36: "properties_plan.py::check_liveness",
    37: "properties_plan.py::check_watermark",
    38: "test_against_model.py::History.teardown",
    39: "properties.py::check_fork_isolation",
    40: "properties_plan.py::check_copies",
    41: "properties_plan.py::check_failures",
    42: "properties.py::check_memory",
    43: "test_flops.py",
    44: "test_lifecycle.py",
    45: "properties.py::check_accounting",
}
