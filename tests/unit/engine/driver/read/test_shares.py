"""Partitions stay with their read tasks while these read ahead, unless the shares become uneven."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.engine.driver.read.shares import UNEVEN, Shares
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.model import OffsetRange

MB = 10**6


def rules(sizes: dict[int, int]) -> list[RangeRules]:
    return [RangeRules(OffsetRange("t", number, 0, 10**9, size, "id"), MB, False, False) for number, size in sizes.items()]


def numbers(dealt: Sequence[tuple[int, Sequence[RangeRules]]]) -> dict[int, set[int]]:
    return {index: {each.range.partition for each in share} for index, share in dealt}


def test_partitions_stay_though_their_sizes_change() -> None:
    shares = Shares()
    first = numbers(shares.deal(rules({0: 9 * MB, 1: 8 * MB, 2: 7 * MB, 3: 6 * MB}), 2, stay=True))
    assert first == {0: {0, 3}, 1: {1, 2}}
    assert numbers(shares.deal(rules({0: 6 * MB, 1: 9 * MB, 2: 8 * MB, 3: 7 * MB}), 2, stay=True)) == first
    fresh = numbers(shares.deal(rules({0: 6 * MB, 1: 9 * MB, 2: 8 * MB, 3: 7 * MB}), 2, stay=False))
    assert fresh != first, "what is read ahead by nobody is dealt anew"


def test_a_task_keeps_its_index_when_another_has_nothing() -> None:
    shares = Shares()
    first = numbers(shares.deal(rules({0: MB, 1: MB}), 2, stay=True))
    assert numbers(shares.deal(rules({1: MB}), 2, stay=True)) == {index: share for index, share in first.items() if share == {1}}
    assert numbers(shares.deal(rules({0: MB, 1: MB}), 2, stay=True)) == first


def test_a_new_partition_goes_to_the_lightest_share() -> None:
    shares = Shares()
    shares.deal(rules({0: 3 * MB, 1: 2 * MB}), 2, stay=True)
    assert numbers(shares.deal(rules({0: 3 * MB, 1: 2 * MB, 2: MB}), 2, stay=True)) == {0: {0}, 1: {1, 2}}


def test_uneven_shares_are_dealt_anew() -> None:
    shares = Shares()
    shares.deal(rules({number: MB for number in range(4)}), 2, stay=True)
    dealt = shares.deal(rules({0: 10 * MB, 1: MB, 2: 10 * MB, 3: MB}), 2, stay=True)
    assert sorted(sum(each.range.max_bytes for each in share) for _, share in dealt) == [11 * MB, 11 * MB]


def test_another_number_of_tasks_is_dealt_anew() -> None:
    shares = Shares()
    shares.deal(rules({number: MB for number in range(4)}), 2, stay=True)
    assert len(shares.deal(rules({number: MB for number in range(4)}), 4, stay=True)) == 4


def test_each_read_loop_has_a_name_of_its_own() -> None:
    assert Shares().reader != Shares().reader


@given(st.lists(st.tuples(st.dictionaries(st.integers(0, 9), st.integers(1, 100), min_size=1), st.integers(1, 4)), min_size=1, max_size=8))
def test_every_range_is_dealt_once_and_no_share_is_far_above_a_fair_one(rounds: list[tuple[dict[int, int], int]]) -> None:
    shares = Shares()
    for sizes, tasks in rounds:
        dealt = shares.deal(rules(sizes), tasks, stay=True)
        fresh = Shares().deal(rules(sizes), tasks, stay=False)
        assert sorted(each.range.partition for _, share in dealt for each in share) == sorted(sizes)
        assert all(share for _, share in dealt) and len({index for index, _ in dealt}) == len(dealt) <= tasks
        heaviest, fair = (max(sum(each.range.max_bytes for each in share) for _, share in deal) for deal in (dealt, fresh))
        assert heaviest <= UNEVEN * fair
