"""The index pool alone: properties 1 to 7 of the specification."""

import numpy as np
import pytest
from di_scheduler import AllocStatus, BlockPool, BlockPoolError
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_hands_out_in_order_and_never_index_0() -> None:
    pool = BlockPool(5)
    assert (pool.num_blocks, pool.num_free, pool.num_used) == (5, 4, 0)
    taken = pool.allocate(3)
    assert taken.dtype == np.int32
    assert taken.tolist() == [1, 2, 3]
    assert pool.allocate(0).tolist() == []
    assert pool.allocate(1).tolist() == [4]
    with pytest.raises(BlockPoolError, match="cannot allocate 1"):
        pool.allocate(1)


def test_frees_the_tail_of_a_table_first() -> None:
    pool = BlockPool(5)
    pool.free(pool.allocate(4))
    assert pool.allocate(4).tolist() == [4, 3, 2, 1]


def test_first_freed_is_first_reused() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    pool.free(ids(2))
    pool.free(ids(1))
    assert pool.allocate(2).tolist() == [2, 1]


def test_a_pinned_index_outlives_one_owner() -> None:
    pool = BlockPool(3)
    block = pool.allocate(1)
    pool.pin(block)
    assert pool.ref_count(1) == 2
    pool.free(block)
    assert pool.free_list().tolist() == [2]
    pool.free(block)
    assert pool.free_list().tolist() == [2, 1]


@pytest.mark.parametrize("table", [[1, 1], [1, 3], [1, 0], [1, 9], [1, -1]])
def test_a_refused_free_changes_nothing(table: list[int]) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(BlockPoolError):
        pool.free(ids(*table))
    assert [pool.ref_count(i) for i in (1, 2, 3)] == [1, 1, 0]
    assert pool.free_list().tolist() == [3]


@pytest.mark.parametrize("table", [[1, 3], [1, 0], [1, 9], [1, -1]])
def test_a_refused_pin_changes_nothing(table: list[int]) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(BlockPoolError):
        pool.pin(ids(*table))
    assert [pool.ref_count(i) for i in (1, 2, 3)] == [1, 1, 0]


def test_a_double_free_of_the_only_free_index_is_seen() -> None:
    pool = BlockPool(2)
    pool.free(pool.allocate(1))
    with pytest.raises(BlockPoolError, match="cannot free 1"):
        pool.free(ids(1))
    assert pool.free_list().tolist() == [1]


def test_allocation_status() -> None:
    pool = BlockPool(4)
    assert [pool.can_allocate(n) for n in (0, 3, 4, 2**40)] == [
        AllocStatus.OK,
        AllocStatus.OK,
        AllocStatus.NEVER,
        AllocStatus.NEVER,
    ]
    pool.allocate(2)
    assert [pool.can_allocate(n) for n in (1, 2, 3, 4)] == [
        AllocStatus.OK,
        AllocStatus.LATER,
        AllocStatus.LATER,
        AllocStatus.NEVER,
    ]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(BlockPoolError, match="at least 0, got -1"):
        BlockPool(4).can_allocate(-1)


@pytest.mark.parametrize("size", [1, 0, -3])
def test_a_pool_needs_a_usable_index(size: int) -> None:
    with pytest.raises(BlockPoolError, match="num_blocks"):
        BlockPool(size)


@pytest.mark.parametrize("count", [-1, 5])
def test_a_refused_allocation_changes_nothing(count: int) -> None:
    pool = BlockPool(5)
    with pytest.raises(BlockPoolError, match="cannot allocate"):
        pool.allocate(count)
    assert pool.free_list().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "bad",
    [
        [1],
        np.array([1], np.int64),
        np.zeros(4, np.int32)[::2],
        ids(1).reshape(1, 1),
        np.frombuffer(bytes(9), np.int32, offset=1),
    ],
)
def test_arrays_are_taken_as_they_are_or_not_at_all(bad: object) -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(TypeError):
        pool.free(bad)  # type: ignore[arg-type]
    assert pool.num_used == 3


class PoolHistory(RuleBasedStateMachine):
    """The pool against a list of free indices and a dictionary of counts."""

    @initialize(size=st.integers(2, 8))
    def start(self, size: int) -> None:
        self.pool = BlockPool(size)
        self.size = size
        self.free = list(range(1, size))
        self.refs = dict.fromkeys(range(1, size), 0)

    @rule(count=st.integers(0, 8))
    def allocate(self, count: int) -> None:
        status = self.pool.can_allocate(count)
        assert (status is AllocStatus.NEVER) == (count >= self.size)
        assert (status is AllocStatus.OK) == (count <= len(self.free))
        if status is not AllocStatus.OK:
            with pytest.raises(BlockPoolError):
                self.pool.allocate(count)
            return
        expected, self.free = self.free[:count], self.free[count:]
        assert self.pool.allocate(count).tolist() == expected
        self.refs.update(dict.fromkeys(expected, 1))

    @rule(table=st.lists(st.integers(-1, 9), max_size=5))
    def pin(self, table: list[int]) -> None:
        if all(self.refs.get(i, 0) > 0 for i in table):
            self.pool.pin(ids(*table))
            for i in table:
                self.refs[i] += 1
        else:
            with pytest.raises(BlockPoolError):
                self.pool.pin(ids(*table))

    @rule(table=st.lists(st.integers(-1, 9), max_size=5))
    def release(self, table: list[int]) -> None:
        if all(table.count(i) <= self.refs.get(i, 0) for i in table):
            self.pool.free(ids(*table))
            for i in reversed(table):
                self.refs[i] -= 1
                if self.refs[i] == 0:
                    self.free.append(i)
        else:
            with pytest.raises(BlockPoolError):
                self.pool.free(ids(*table))

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "pool"):
            return
        walk = self.pool.free_list().tolist()
        assert walk == self.free
        assert walk == self.pool.free_list_backwards().tolist()[::-1]
        assert len(set(walk)) == self.pool.num_free == self.size - 1 - self.pool.num_used
        assert {i: self.pool.ref_count(i) for i in self.refs} == self.refs
        assert all(self.refs[i] == 0 for i in walk)


TestPoolHistory = PoolHistory.TestCase
