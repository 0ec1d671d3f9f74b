"""Data-parallel lockstep: properties 33 to 35 of the scheduler spec, 17, and what its findings 4, 5 and 24 ask for."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from di_scheduler import ConfigError, Scheduler, SchedulerConfig, SequenceLimits
from di_scheduler.config import StepKind
from di_scheduler.lockstep import (
    BoundedWaits,
    GroupIdle,
    GroupState,
    GroupStopped,
    LockstepPlanner,
    PlannedStep,
    PrefillRule,
    ReferenceIntervals,
    StepHistory,
)
from di_scheduler.voting import InProcessVote, VoteMismatchError
from hypothesis import given
from hypothesis import strategies as st

from .ranks import CounterScheduler, Events, Rank, run_ranks

TURNS = 60


def arrival(chunks: int, tokens: int) -> Events:
    return lambda scheduler, _: scheduler.prompts.append((chunks, tokens))


def abort_all() -> Events:
    return lambda scheduler, _: scheduler.abort_all()


def assign(name: str, value: object) -> Events:
    return lambda scheduler, _: setattr(scheduler, name, value)


arrivals = st.builds(arrival, st.integers(1, 6), st.integers(1, 25))
troubles = st.one_of(
    st.just(abort_all()),
    st.builds(assign, st.sampled_from(["over_watermark", "empty_handed"]), st.booleans()),
    st.builds(assign, st.just("not_ready"), st.integers(0, 1)),
)


@st.composite
def scripts(draw: st.DrawFn, *, troubled: bool) -> list[list[list[Events]]]:
    """`script[rank][turn]`: what happens on a rank before a turn."""
    event = st.one_of(arrivals, arrivals, troubles) if troubled else arrivals
    ranks = []
    for _ in range(draw(st.integers(2, 4))):
        turns: list[list[Events]] = [[] for _ in range(TURNS)]
        for turn in draw(st.lists(st.integers(0, TURNS - 1), max_size=12)):
            turns[turn].append(draw(event))
        ranks.append(turns)
    return ranks


rules = st.one_of(
    st.builds(BoundedWaits, st.integers(0, 10), st.integers(1, 4)),
    st.builds(ReferenceIntervals, st.integers(1, 12), st.integers(1, 20)),
)


@given(script=scripts(troubled=True), rule=rules)
def test_all_ranks_make_the_same_steps_with_as_many_votes(
    script: list[list[list[Events]]], rule: PrefillRule
) -> None:
    """Property 33."""
    ranks = run_ranks(script, rule)
    for turns in zip(*(rank.turns for rank in ranks), strict=True):
        assert len({(turn.outcome, turn.kind, turn.votes, turn.decode_run) for turn in turns}) == 1
    for name in ("votes", "prefill_steps", "decode_steps", "idle_turns", "failed_prefills"):
        assert len({getattr(rank.planner.stats(), name) for rank in ranks}) == 1


@given(script=scripts(troubled=True), rule=rules)
def test_when_nobody_has_a_prefill_the_group_decodes_in_the_same_step(
    script: list[list[list[Events]]], rule: PrefillRule
) -> None:
    """Property 34: a turn has a few votes and a step at its end, of decodes unless a rank has a prefill."""
    ranks = run_ranks(script, rule)
    for turns in zip(*(rank.turns for rank in ranks), strict=True):
        anybody_decodes = any(turn.had_decodes for turn in turns)
        assert turns[0].votes <= (2 if anybody_decodes else 3)
        if turns[0].kind is StepKind.PREFILL:
            assert any(turn.num_seqs for turn in turns)
        elif anybody_decodes:
            assert turns[0].kind is StepKind.DECODE
            for turn in turns:
                assert bool(turn.num_seqs) == turn.had_decodes
        elif isinstance(rule, BoundedWaits):  # the reference runs steps of placeholders only (finding 4)
            assert turns[0].outcome is GroupIdle


def longest_delay(rank: Rank) -> int:
    """Most decode steps in a row for which a rank wanted a prefill step in vain, attempts that failed not counted."""
    longest = delay = 0
    for turn in rank.turns:
        delay = delay + 1 if turn.wanted and turn.kind is StepKind.DECODE else 0
        longest = max(longest, delay)
    return longest


@given(
    script=scripts(troubled=False),
    rule=st.one_of(
        st.builds(BoundedWaits, st.integers(0, 10), st.integers(1, 4)),
        st.builds(ReferenceIntervals, st.just(1000), st.integers(1, 20)),
    ),
)
def test_a_prompt_that_could_start_does_so_within_the_bound(
    script: list[list[list[Events]]], rule: BoundedWaits | ReferenceIntervals
) -> None:
    """Property 35, with resources enough: every attempt of a rank that wants succeeds."""
    bound = rule.any_every if isinstance(rule, ReferenceIntervals) else max(rule.max_prefill_wait, 1)
    for rank in run_ranks(script, rule):
        assert longest_delay(rank) <= bound


@given(script=scripts(troubled=True), rule=st.builds(BoundedWaits, st.integers(0, 10), st.integers(1, 4)))
def test_a_decode_waits_for_a_bounded_number_of_prefill_steps(
    script: list[list[list[Events]]], rule: BoundedWaits
) -> None:
    """R61: prompts without end on one rank do not keep others, or itself, from decoding."""
    for rank in run_ranks(script, rule):
        run = 0
        for turn in rank.turns:
            run = run + 1 if turn.kind is StepKind.PREFILL and turn.had_decodes else 0
            assert run <= rule.max_decode_wait


def group_state(*, wants: Sequence[bool], decodes: Sequence[bool], longest_wait: int = 0) -> GroupState:
    pairs = list(zip(wants, decodes, strict=True))
    return GroupState(
        any_wants=any(wants),
        all_want=all(wants),
        any_decodes=any(decodes),
        any_objects=any(decode and not want for want, decode in pairs),
        longest_wait=longest_wait,
        any_unfinished=True,
        all_stop=False,
    )


@pytest.mark.parametrize(
    ("wants", "decodes", "wait", "run", "expected"),
    [
        ([1, 1], [1, 1], 0, 0, True),  # all want
        ([1, 0], [1, 1], 7, 0, False),  # rank 1 would idle
        ([1, 0], [1, 1], 8, 0, True),  # the bound
        ([1, 0], [1, 0], 0, 0, True),  # rank 1 idles anyway
        ([1, 0], [0, 0], 0, 5, True),  # nobody decodes
        ([1, 1], [1, 0], 9, 1, False),  # decodes had to wait once
        ([0, 0], [1, 0], 0, 0, False),  # nobody wants
    ],
)
def test_bounded_waits(wants: list[int], decodes: list[int], wait: int, run: int, expected: bool) -> None:
    group = group_state(wants=list(map(bool, wants)), decodes=list(map(bool, decodes)), longest_wait=wait)
    assert BoundedWaits().chooses_prefill(group, StepHistory(prefill_run=run)) is expected


@pytest.mark.parametrize(
    ("wants", "decode_run", "expected"),
    [
        ([1, 1], 0, True),
        ([1, 0], 0, False),
        ([1, 1], 69, False),
        ([1, 1], 70, True),
        ([1, 0], 70, False),
        ([1, 0], 100, True),
        ([0, 0], 100, False),
        ([1, 0], 700, True),  # both points coincide: ANY comes first
    ],
)
def test_the_reference_rule(wants: list[int], decode_run: int, expected: bool) -> None:
    group = group_state(wants=list(map(bool, wants)), decodes=[True, True])
    assert ReferenceIntervals().chooses_prefill(group, StepHistory(decode_run=decode_run)) is expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: BoundedWaits(max_prefill_wait=-1),
        lambda: BoundedWaits(max_decode_wait=0),
        lambda: ReferenceIntervals(all_every=0),
        lambda: ReferenceIntervals(any_every=0),
        lambda: LockstepPlanner(CounterScheduler(), idle_interval_s=0.0),
    ],
)
def test_settings_out_of_range_are_named(make: object) -> None:
    with pytest.raises(ConfigError, match=r"_wait must|_every must|idle_interval_s must"):
        make()  # type: ignore[operator]


def kinds(rank: Rank) -> str:
    """One letter a turn: Prefill, Decode, Idle, Stopped."""
    letters = {GroupIdle: "I", GroupStopped: "S"}
    return "".join(letters.get(turn.outcome) or turn.kind.name[0] for turn in rank.turns)


def test_one_rank_takes_turns_while_both_kinds_have_work() -> None:
    (rank,) = run_ranks([[[arrival(1, 9), arrival(3, 2)], *[[] for _ in range(9)]]], BoundedWaits())
    assert kinds(rank) == "PDPDPDPDDD"


def test_nothing_running_means_prefill_at_once() -> None:
    """Finding 4: prompts of one token each follow each other, whatever happened before."""
    (rank,) = run_ranks([[[arrival(1, 2)], [], [arrival(1, 1)] * 3, [], []]], BoundedWaits())
    assert kinds(rank) == "PDPPP"


def test_an_open_chunk_waits_for_the_bound_once() -> None:
    """Finding 5: the rule of the reference makes an isolated rank wait for every chunk."""
    busy = [[arrival(1, 100)], *[[] for _ in range(39)]]
    isolated: list[list[Events]] = [[] for _ in range(40)]
    isolated[5] = [arrival(4, 1)]
    ours, _ = run_ranks([busy, isolated], BoundedWaits(max_prefill_wait=8))
    assert kinds(ours) == "P" + "D" * 12 + "PDPDPDP" + "D" * 20
    # All want at step 7, which is also what rank 0 waited for; from then on each chunk takes 10 decode steps.
    reference, _ = run_ranks([busy, isolated], ReferenceIntervals(all_every=7, any_every=10))
    assert [i for i, kind in enumerate(kinds(reference)) if kind == "P"] == [7, 18, 29]


def test_the_wait_begins_anew_when_a_prompt_is_done() -> None:
    busy = [[arrival(1, 100)], *[[] for _ in range(29)]]
    isolated: list[list[Events]] = [[], [arrival(1, 1), arrival(1, 1)], *[[] for _ in range(28)]]
    rank, _ = run_ranks([busy, isolated], BoundedWaits(max_prefill_wait=5))
    assert kinds(rank) == "P" + "D" * 5 + "P" + "D" * 5 + "P" + "D" * 17


def test_a_rank_over_its_watermark_does_not_want_but_continues_an_open_chunk() -> None:
    turns: list[list[Events]] = [[arrival(3, 1)], [assign("over_watermark", True), arrival(1, 1)], [], []]
    turns += [[assign("over_watermark", False)]]
    (rank,) = run_ranks([turns], BoundedWaits())
    assert kinds(rank) == "PPPIP"


def test_a_failed_attempt_is_not_repeated_before_the_bound() -> None:
    """Each costs the group a vote."""
    turns: list[list[Events]] = [[arrival(1, 30)], [arrival(1, 1), assign("empty_handed", True)]]
    turns += [[] for _ in range(18)]
    other = [[arrival(1, 100)], *[[] for _ in range(19)]]
    rank, _ = run_ranks([turns, other], BoundedWaits(max_prefill_wait=5))
    assert kinds(rank) == "P" + "D" * 19
    assert [i for i, turn in enumerate(rank.turns) if turn.votes == 2] == [0, 6, 12, 18]


def test_a_rank_that_is_done_takes_part_until_all_are() -> None:
    stop: Events = lambda _, planner: planner.request_stop()  # noqa: E731
    early = [[arrival(1, 2)], [], [stop], *[[] for _ in range(17)]]
    late = [[arrival(1, 9), stop], *[[] for _ in range(19)]]
    ranks = run_ranks([early, late], BoundedWaits())
    assert [kinds(rank) for rank in ranks] == ["P" + "D" * 8 + "S"] * 2
    assert ranks[0].planner.stats().empty_steps == 7


def test_an_idle_group_votes_once_an_interval() -> None:
    votes = InProcessVote.group(2, deadline_s=10)
    planners = [LockstepPlanner(CounterScheduler(), vote, idle_interval_s=0.05) for vote in votes]

    def run(planner: LockstepPlanner) -> None:
        for _ in range(5):
            assert isinstance(planner.plan(), GroupIdle)

    begin = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, planners))
    assert time.monotonic() - begin >= 5 * 0.05 * 0.9
    assert [planner.stats().votes for planner in planners] == [5, 5]


def test_an_arrival_ends_the_sleep() -> None:
    scheduler = CounterScheduler()
    planner = LockstepPlanner(scheduler, idle_interval_s=30.0)
    timer = threading.Timer(0.05, planner.wake)
    begin = time.monotonic()
    timer.start()
    assert isinstance(planner.plan(), GroupIdle)
    assert time.monotonic() - begin < 10
    scheduler.prompts.append((1, 1))
    assert isinstance(planner.plan(), PlannedStep)
    timer.join()


def test_a_stop_request_ends_the_sleep() -> None:
    planner = LockstepPlanner(CounterScheduler(), idle_interval_s=30.0)
    timer = threading.Timer(0.05, planner.request_stop)
    timer.start()
    assert isinstance(planner.plan(), GroupIdle)
    assert isinstance(planner.plan(), GroupStopped)
    timer.join()


def test_nobody_sleeps_on_a_commit_of_its_own() -> None:
    scheduler = CounterScheduler()
    scheduler.open_plans, scheduler.not_ready = 1, 1
    begin = time.monotonic()
    assert isinstance(LockstepPlanner(scheduler, idle_interval_s=30.0).plan(), GroupIdle)
    assert time.monotonic() - begin < 10


def test_what_cannot_run_can_still_end_by_its_deadline() -> None:
    scheduler = CounterScheduler()
    scheduler.not_ready, scheduler.events = 1, [7]
    result = LockstepPlanner(scheduler, idle_interval_s=1e-4).plan()
    assert isinstance(result, GroupIdle)
    assert result.plan is not None
    assert result.plan.expired.tolist() == [7]


def test_events_of_a_failed_attempt_are_passed_on() -> None:
    scheduler = CounterScheduler()
    scheduler.decodes, scheduler.empty_handed, scheduler.events = [3], True, [7]
    scheduler.prompts.append((1, 1))
    result = LockstepPlanner(scheduler).plan()
    assert isinstance(result, PlannedStep)
    assert scheduler.calls == [StepKind.PREFILL, StepKind.DECODE]
    assert (result.kind, result.plan.expired.tolist()) == (StepKind.DECODE, [7])


class LateDecodes(CounterScheduler):
    """A sequence becomes ready on another thread just after the first vote."""

    def plan(self, now: float = 0.0, kind: StepKind = StepKind.ANY):  # type: ignore[no-untyped-def]
        self.decodes, self.not_ready = [2], 0
        return super().plan(now, kind)


def test_what_becomes_ready_during_a_vote_runs_on_all_ranks() -> None:
    votes = InProcessVote.group(2, deadline_s=10)
    late, idle = LateDecodes(), CounterScheduler()
    late.not_ready = 1
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(LockstepPlanner(scheduler, vote).plan)
            for scheduler, vote in zip((late, idle), votes, strict=True)
        ]
        first, second = (future.result() for future in futures)
    assert isinstance(first, PlannedStep)
    assert isinstance(second, PlannedStep)
    assert (first.kind, second.kind) == (StepKind.DECODE, StepKind.DECODE)
    assert (first.plan.num_seqs, second.plan.num_seqs) == (1, 0)


class LockedScheduler(CounterScheduler):
    """Every call takes the same lock, as a scheduler that several threads use does."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def plan(self, now: float = 0.0, kind: StepKind = StepKind.ANY):  # type: ignore[no-untyped-def]
        with self.lock:
            return super().plan(now, kind)


class WatchingVote:
    """A vote of one rank during which another thread uses the scheduler."""

    size, rank = 1, 0

    def __init__(self, scheduler: LockedScheduler) -> None:
        self.scheduler = scheduler
        self.was_free: list[bool] = []

    def minimum(self, values: Sequence[int]) -> list[int]:
        other = threading.Thread(target=self.use_scheduler)
        other.start()
        other.join()
        return list(values)

    def use_scheduler(self) -> None:
        free = self.scheduler.lock.acquire(timeout=5)
        self.was_free.append(free)
        if free:
            self.scheduler.lock.release()


def test_the_scheduler_is_free_during_votes() -> None:
    """Finding 24."""
    scheduler = LockedScheduler()
    scheduler.prompts.append((1, 1))
    vote = WatchingVote(scheduler)
    assert isinstance(LockstepPlanner(scheduler, vote).plan(), PlannedStep)
    assert vote.was_free == [True, True]


def test_ranks_out_of_step_are_found_out() -> None:
    votes = InProcessVote.group(2, deadline_s=10)
    ahead = LockstepPlanner(CounterScheduler(), votes[0], idle_interval_s=1e-4)
    behind = LockstepPlanner(CounterScheduler(), votes[1], idle_interval_s=1e-4)
    with ThreadPoolExecutor(2) as pool:
        missed = pool.submit(votes[1].minimum, [0] * 9)  # a vote that its planner does not know of
        ahead.plan()
        missed.result()
        futures = [pool.submit(planner.plan) for planner in (ahead, behind)]
        for future in futures:
            with pytest.raises(VoteMismatchError, match="all ranks must be at the same vote"):
                future.result()


def serve(planner: LockstepPlanner, scheduler: Scheduler, prompts: list[tuple[int, int]]) -> list[str]:
    """Runs a real scheduler to its end; the kinds of its steps, with `-` where its plan was empty."""
    for seq_id, (tokens, answer) in enumerate(prompts):
        scheduler.add(seq_id, np.zeros(tokens, np.int32), SequenceLimits(max_tokens=answer))
    steps = []
    while not isinstance(result := planner.plan(), GroupStopped):
        if not scheduler.has_unfinished():
            planner.request_stop()
        if isinstance(result, PlannedStep):
            plan = result.plan
            assert (plan.decodes == (result.kind is StepKind.DECODE)).all()
            steps.append(result.kind.name[0] if plan.num_seqs else "-" + result.kind.name[0])
            if plan.num_seqs:
                count = len(plan.sampling)
                scheduler.commit(np.zeros(count, np.int32), np.ones(count, np.int32))
    return steps


@given(
    work=st.lists(
        st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), max_size=6), min_size=2, max_size=3
    ),
    rule=st.builds(BoundedWaits, st.integers(0, 10), st.integers(1, 4)),
)
def test_real_schedulers_serve_everything_in_step(
    work: list[list[tuple[int, int]]], rule: BoundedWaits
) -> None:
    """Small pools, so that sequences are preempted and attempts fail; each rank leaves with the others."""
    sizes = SchedulerConfig(
        num_blocks=16, num_slots=5, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=56
    )
    schedulers = [Scheduler(sizes) for _ in work]
    votes = InProcessVote.group(len(work), deadline_s=20.0)
    planners = [
        LockstepPlanner(scheduler, vote, rule=rule, idle_interval_s=1e-4)
        for scheduler, vote in zip(schedulers, votes, strict=True)
    ]
    with ThreadPoolExecutor(len(work)) as pool:
        histories = list(pool.map(serve, planners, schedulers, work))
    assert len({tuple(step[-1] for step in history) for history in histories}) == 1
    assert len({planner.stats().votes for planner in planners}) == 1
    for scheduler, prompts in zip(schedulers, work, strict=True):
        stats = scheduler.stats()
        assert (stats.waiting, stats.running, stats.used_blocks) == (0, 0, 0)
        assert stats.tokens_committed == sum(answer for _, answer in prompts)


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    run_ranks([[[arrival(1, 3)], [], []], [[], [], []]], BoundedWaits())
    assert threading.active_count() == before
