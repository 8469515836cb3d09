from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.engine.driver.plan import (
    LEAST_RANGE_BYTES,
    SHORT_TURN_BYTES,
    SHORT_TURN_SECONDS,
    TURN_SECONDS,
    PartitionView,
    assign,
    budget_of,
    plan_ranges,
    turn_seconds,
)
from mirror_pipeline.execution.placement import INLINE_BYTES, WORTH_A_START

MB, GB = 10**6, 10**9

views = st.lists(
    st.builds(
        lambda partition, start, lag, size, hard: PartitionView("t", partition, "id", start, start + lag, size, hard),
        partition=st.integers(0, 10_000),
        start=st.integers(0, 2**40),
        lag=st.integers(0, 10**9),
        size=st.floats(1, 10**6),
        hard=st.booleans(),
    ),
    max_size=50,
    unique_by=lambda view: view.partition,
)


@given(views, st.integers(1, 10**9))
def test_every_lagging_partition_gets_a_range_and_no_other(found: list[PartitionView], budget: int) -> None:
    planned = {r.partition: r for r in plan_ranges(found, budget_bytes=budget)}
    assert set(planned) == {v.partition for v in found if v.next < v.end}
    for view in found:
        if view.partition in planned:
            made = planned[view.partition]
            assert (made.start, made.end, made.hard_end) == (view.next, view.end, view.hard_end)
            assert made.max_bytes >= 1


@given(views, st.integers(1, 10**9))
def test_the_budget_holds_but_for_the_least_share(found: list[PartitionView], budget: int) -> None:
    planned = plan_ranges(found, budget_bytes=budget)
    assert sum(r.max_bytes for r in planned) <= budget + len(planned) * LEAST_RANGE_BYTES


def test_what_small_partitions_leave_goes_to_the_large_one() -> None:
    small = [PartitionView("t", n, "id", 0, 1, 1000.0) for n in range(3)]
    large = PartitionView("t", 9, "id", 0, 10**6, 1000.0)
    planned = {r.partition: r for r in plan_ranges([large, *small], budget_bytes=100_000_000)}
    assert planned[9].max_bytes > 90_000_000


def test_a_hot_partition_leaves_the_others_their_share() -> None:
    hot = PartitionView("t", 0, "id", 0, 10**9, 1000.0)
    others = [PartitionView("t", n, "id", 0, 10**5, 1000.0) for n in range(1, 4)]
    planned = {r.partition: r for r in plan_ranges([hot, *others], budget_bytes=40_000_000)}
    assert all(planned[n].max_bytes >= 9_000_000 for n in planned)


@given(st.lists(st.tuples(st.integers(), st.floats(0, 1e9)), max_size=60), st.integers(1, 8))
def test_assign_deals_every_item_once_and_leaves_no_task_empty(items: list[tuple[int, float]], tasks: int) -> None:
    dealt = assign(items, tasks)
    assert sorted(i for share in dealt for i in share) == sorted(i for i, _ in items)
    assert len(dealt) <= tasks
    assert all(dealt)


def test_assign_balances() -> None:
    dealt = assign([(n, 1.0) for n in range(12)], 2)
    assert [len(share) for share in dealt] == [6, 6]


@pytest.mark.parametrize(
    ("reach", "cap", "far", "expected"),
    [
        (1, 50 * GB, False, 128 * MB),
        (4, 50 * GB, False, 512 * MB),
        (4, 4 * GB, False, 250 * MB),  # a sixteenth of the buffer
        (4, 1 * GB, False, 128 * MB),  # no larger than usual in a small buffer
        (4, 400 * MB, False, 100 * MB),
        (8, 4 * GB, True, 1000 * MB),  # over a long link a quarter of it
        (2, 50 * GB, True, 256 * MB),
    ],
)
def test_large_micro_batches_leave_room_in_the_buffer(reach: int, cap: int, far: bool, expected: int) -> None:
    assert budget_of(128 * MB, reach, cap, far=far, waiting=1000 * GB) == expected


@pytest.mark.parametrize(
    ("waiting", "far", "expected"),
    [(0, False, 128 * MB), (700 * MB, False, 256 * MB), (1024 * MB, False, 512 * MB), (0, True, 512 * MB)],
)
def test_micro_batches_become_smaller_towards_the_end_of_a_backlog(waiting: int, far: bool, expected: int) -> None:
    assert budget_of(128 * MB, 4, 50 * GB, far=far, waiting=waiting) == expected


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_more_a_small_micro_batch_holds_the_sooner_comes_the_next(one: int, other: int) -> None:
    assert SHORT_TURN_SECONDS <= turn_seconds(max(one, other)) <= turn_seconds(min(one, other)) <= TURN_SECONDS
    assert (turn_seconds(0), turn_seconds(SHORT_TURN_BYTES)) == (TURN_SECONDS, SHORT_TURN_SECONDS)


def test_what_surely_waits_is_known_of_partitions_that_were_read() -> None:
    """2.5 million records of 100 bytes are not taken for the 2 GB that are worth a start of Spark."""
    unread = PartitionView("t", 0, "id", 0, 2_500_000)
    assert unread.wanted_bytes > WORTH_A_START * INLINE_BYTES > 10 * unread.least_bytes
    read = PartitionView("t", 0, "id", 0, 2_500_000, 110.0, bytes_per_batch=16_000.0)
    assert read.least_bytes == read.wanted_bytes == 275_000_000
