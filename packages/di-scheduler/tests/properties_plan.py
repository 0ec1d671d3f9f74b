"""The properties of a plan, and of a plan once it is resolved. See `properties.py`."""

from collections.abc import Callable, Sequence

import numpy as np
from di_scheduler import EngineKind, FinishReason, StepKind, StepPolicy

from .observation import Observation, Request, Rows, Step, queue_before
from .properties import length_limit


def check_homogeneity(o: Observation, step: Step) -> None:
    """11: no step mixes the kinds unless the policy allows it and nobody asked for one kind."""
    kinds = {rows.decode for rows in step.groups}
    if o.config.policy is StepPolicy.HOMOGENEOUS:
        assert len(kinds) <= 1
    if step.kind is not StepKind.ANY:
        assert kinds <= {step.kind is StepKind.DECODE}
    assert sorted(kinds, reverse=True) == list(dict.fromkeys(rows.decode for rows in step.groups))


def check_budgets(o: Observation, step: Step) -> None:
    """12: rows of a step (prefill aligned), of a decode, of a chunk; sequences; summed context."""
    config, align = o.config, o.config.chunk_align
    prefill = [rows for rows in step.groups if not rows.decode]
    decode = [rows for rows in step.groups if rows.decode]
    aligned = sum(-(-rows.rows // align) * align for rows in prefill)
    assert aligned + sum(rows.rows for rows in decode) <= config.max_num_batched_tokens
    assert len(step.groups) <= config.max_num_seqs
    assert all(1 <= rows.rows <= 1 + config.max_draft_tokens for rows in decode)
    assert all(1 <= rows.rows <= (config.max_chunk_tokens or rows.rows) for rows in prefill)
    if config.max_step_context is not None and len(prefill) > 1:
        assert sum(rows.end for rows in prefill) <= config.max_step_context


def check_coverage(o: Observation, step: Step) -> None:
    """13: positions are computed in order, each once per (re)start, with the right tokens around them."""
    at = 0
    for index, rows in enumerate(step.groups):
        request = rows.request
        assert rows.start == expected_start(request, rows)
        assert rows.positions == list(range(rows.start, rows.end))
        known = request.tokens
        inside = known[rows.start : rows.end]
        assert rows.tokens[: len(inside)] == inside
        if rows.source >= 0:
            assert set(rows.tokens) == {-1}
        assert rows.decode or (rows.end <= len(known) and rows.samples == (rows.end == len(known)))
        assert rows.samples or not rows.decode
        padded = [-1] * o.config.lookback + known
        assert rows.context == padded[rows.start : rows.start + o.config.lookback][::-1]
        generated = len(request.delivered) + (rows.source >= 0)
        assert (rows.prompt_len, rows.output_len) == (len(request.prompt), generated)
        assert rows.params == request.options.params
        assert step.plan.row_start[index] == at
        at += rows.rows
    assert step.plan.row_start[-1] == at == step.plan.num_rows
    assert step.plan.sampling.tolist() == np.flatnonzero(step.plan.samples).tolist()


def expected_start(request: Request, rows: Rows) -> int:
    """Behind the rows of the plan before it, with one token of that kept."""
    before = [other for other in request.rows_in_flight if other is not rows]
    if not before:
        return request.computed
    return len(request.tokens) if before[-1].samples else before[-1].end


def check_images(o: Observation, step: Step) -> None:
    """14: no chunk ends strictly inside an image."""
    for rows in step.groups:
        for first, tokens in rows.request.options.images:
            assert not first < rows.end < first + tokens


def check_checkpoints(o: Observation, step: Step) -> None:
    """15: no chunk goes past a checkpoint."""
    for rows in step.groups:
        assert rows.decode or not any(rows.start < c < rows.end for c in rows.request.options.checkpoints)


def check_alignment(o: Observation, step: Step) -> None:
    """16: a chunk that stops short is a multiple of `chunk_align`, but for checkpoints and images."""
    for rows in step.groups:
        options = rows.request.options
        edges = {edge for first, tokens in options.images for edge in (first, first + tokens)}
        if rows.decode or rows.samples or rows.end in edges | set(options.checkpoints):
            continue
        assert rows.rows % o.config.chunk_align == 0


def check_admission_order(o: Observation, step: Step) -> None:
    """17: within a class and user nobody starts before an earlier request that is ready, whatever their sizes.

    And nobody at all starts while a more urgent class has somebody ready whom nothing holds up.
    """
    assert o.before is not None
    admitted = [o.live[i] for i in o.running if i in o.before.waiting]
    for seq_id in o.waiting:
        request = o.live[seq_id]
        if not request.ready or request.seq_id not in o.before.waiting:
            continue
        if any(not p.ready and p.overtaken >= o.config.max_overtakes for p in queue_before(o, request)):
            continue
        for other in admitted:
            same = other.options.user == request.options.user
            assert other.options.priority <= request.options.priority
            if same and other.options.priority == request.options.priority:
                assert other.order < request.order


def check_tables(o: Observation, step: Step) -> None:
    """18, 19: every row that may be written has a place, and no block is held for more than that."""
    size = o.config.block_size
    for rows in step.groups:
        assert len(rows.table) * size >= min(rows.end, length_limit(o.config))
        assert len(rows.table) <= -(-rows.request.reach // size)
        info = o.infos.get(rows.request.seq_id)
        if info is not None and o.live[rows.request.seq_id] is rows.request:
            assert rows.table == info.block_table.tolist()
            assert rows.slot == info.slot
    width = max((len(rows.table) for rows in step.groups), default=0)
    assert step.plan.block_table.shape[0] == len(step.groups)
    assert step.plan.block_table.shape[1] >= width


def check_preemption(o: Observation, step: Step) -> None:
    """20: only when somebody needs a block that is not there, or somebody more urgent came.

    The oldest is never a victim of its equals, and nobody is admitted in a plan that preempted for blocks.
    """
    assert o.before is not None
    victims = [seq_id for seq_id in step.plan.preempted.tolist() if seq_id in o.before.running]
    if not victims or o.config.kind is EngineKind.DECODE_ONLY:
        return
    came = [o.live[i] for i in o.running if i not in o.before.running]
    # One more urgent may wait for victims in flight, which are only marked, while others gave way at once. It may
    # have come to wait in this very plan, as an import whose lease ended.
    held = [o.live[i] for i in o.waiting if o.steps and i not in victims and o.live[i].ready]
    if any(all(r.options.priority < o.live[v].options.priority for v in victims) for r in came + held):
        return
    assert o.before.running[0] not in victims
    assert not came
    needy = [seq_id for seq_id in o.before.running if seq_id in o.live and missing_blocks(o, seq_id) > 0]
    assert needy
    grown = sum(
        len(o.infos[seq_id].block_table) - len(o.before.infos[seq_id].block_table)
        for seq_id in o.running
        if seq_id in o.before.running
    )
    planned = {rows.request.seq_id for rows in step.groups}
    assert grown >= o.before.stats.free_blocks or any(seq_id not in planned for seq_id in needy)


def missing_blocks(o: Observation, seq_id: int) -> int:
    """Blocks that a running sequence lacked before the plan for the rows that it must have at least."""
    assert o.before is not None
    info, request = o.before.infos[seq_id], o.live[seq_id]
    open_rows = [rows for step in o.steps for rows in step.groups if rows.request is request]
    if open_rows and open_rows[-1].samples:
        positions = min(info.length + open_rows[-1].most_tokens, length_limit(o.config))
    else:
        start = open_rows[-1].end if open_rows else info.num_computed
        images = [tokens for first, tokens in request.options.images if first <= start < first + tokens]
        positions = min(start + max([*images, o.config.chunk_align]), info.length)
    return -(-positions // o.config.block_size) - len(info.block_table)


def check_positions(o: Observation, step: Step) -> None:
    """24: no position of a step that is computed lies beyond the model length or the pool."""
    limit = length_limit(o.config)
    for rows in step.groups:
        assert rows.source >= 0 or rows.end <= limit
        assert rows.start <= limit


def check_liveness(o: Observation, step: Step) -> None:
    """36: with nothing in flight, and whatever may run asked for, somebody moves.

    Excused: all that is left waits for its owner (grammar, transfers), or lacks what a transfer or a prompt that
    waits for its transfer holds.
    """
    if step.groups or step.kind is not StepKind.ANY or o.steps:
        return
    outside = o.stats.prompted + o.stats.receiving + len(o.ghosts)
    ready = [seq_id for seq_id in o.waiting if o.live[seq_id].ready]
    assert not o.running or outside
    if ready and not outside and o.config.max_overtakes > 0:
        blocked = [r for i in ready if (r := o.live[i]) and not held_back(o, r)]
        assert not blocked


def held_back(o: Observation, request: Request) -> bool:
    return any(not p.ready and p.overtaken >= o.config.max_overtakes for p in queue_before(o, request))


def check_oldest_moves(o: Observation, step: Step) -> None:
    """36: under MIXED the oldest running sequence is in every plan, unless it waits for the plan before."""
    if o.config.policy is not StepPolicy.MIXED or step.kind is not StepKind.ANY or o.steps:
        return
    assert o.before is not None
    if (
        o.running
        and o.running[0] in o.before.running
        and not (o.stats.prompted or o.stats.receiving or o.ghosts)
    ):
        assert o.running[0] in {rows.request.seq_id for rows in step.groups}


def check_watermark(o: Observation, step: Step) -> None:
    """37: a new allocation leaves the watermark free; the continuation of an old one is never stopped by it."""
    assert o.before is not None
    came = [i for i in o.running if i not in o.before.running]
    if not came or o.stats.used_slots == len(came) or not o.config.watermark:
        return
    last = max(o.live[i].place for i in came)
    if any(o.live[i].place > last for i in o.running):
        return  # who is behind may have taken some since
    reserve = int(o.config.watermark * (o.config.num_blocks - 1))
    assert o.stats.free_blocks >= reserve + len(o.running) - 1


def check_copies(o: Observation, step: Step) -> None:
    """40: a fork's copies are in exactly one plan, the next with rows."""
    pins = o.copying[-1] if step.groups and o.copying else []
    blocks = [list(pair) for pin in pins for pair in pin.blocks]
    assert step.plan.copy_blocks.tolist() == blocks
    assert step.plan.copy_slots.tolist() == [list(pin.slots) for pin in pins]


AFTER_PLAN: dict[str, Callable[[Observation, Step], None]] = {
    "11 homogeneity": check_homogeneity,
    "12 budgets": check_budgets,
    "13 chunk coverage": check_coverage,
    "14 images": check_images,
    "15 checkpoints": check_checkpoints,
    "16 alignment": check_alignment,
    "17 FIFO": check_admission_order,
    "18, 19 tables": check_tables,
    "20 preemption": check_preemption,
    "24 position bound": check_positions,
    "36 liveness": check_liveness,
    "36 the oldest moves": check_oldest_moves,
    "37 watermark": check_watermark,
    "40 copies": check_copies,
}


def check_failures(before: dict[Request, int], broken: Sequence[Request]) -> None:
    """41: a failure ends its own sequence and takes nothing from the others of the step."""
    for request, delivered in before.items():
        if request in broken:
            assert len(request.delivered) == delivered
        elif FinishReason.ERROR in request.finishes:
            raise AssertionError(f"request {request.order} ended with ERROR for another's failure")


def check_resolved(
    o: Observation,
    before: Sequence[Rows],
    after: Sequence[Rows],
    sources: dict[Request, Rows],
    offers: dict[Rows, list[int]],
) -> None:
    """13, 24, 25: a resolved plan computes what a plan made now would: the next positions, behind the kept tokens."""
    planned = {rows.request: rows for rows in before}
    for rows in after:
        request, source = rows.request, sources.get(rows.request)
        assert rows.source == -1
        if source is None:
            assert (rows.start, rows.tokens) == (planned[request].start, planned[request].tokens)
            continue
        known = request.tokens + offers[source]
        assert 1 <= len(offers[source]) <= source.most_tokens
        assert rows.start == len(known) - 1 < length_limit(o.config)
        assert rows.tokens[0] == known[-1]
        assert rows.end <= length_limit(o.config)
        assert rows.end <= len(rows.table) * o.config.block_size
        padded = [-1] * o.config.lookback + known
        assert rows.context == padded[rows.start : rows.start + o.config.lookback][::-1]
        assert rows.output_len == len(request.delivered) + len(offers[source])
    assert sum(rows.rows for rows in after) <= sum(rows.rows for rows in before)
    stay = {rows.request for rows in after}
    for request, source in sources.items():
        offer = offers[source]
        certain = not 1 <= len(offer) <= source.most_tokens or min(offer) < 0
        certain = certain or len(request.tokens) + len(offer) - 1 >= length_limit(o.config)
        assert (request not in stay) == certain
