"""Which read task gets which partitions."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from mirror_pipeline.engine.driver.plan import assign
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.model import TopicPartition

# Partitions stay with their tasks until the heaviest share is this many times the one of a new deal.
UNEVEN = 1.5


class Shares:
    """Deals the ranges of a read loop's micro-batches to tasks. ``reader`` names the loop among all others of an executor."""

    def __init__(self) -> None:
        self.reader = uuid4().hex
        self._tasks = 0
        self._last: dict[TopicPartition, int] = {}

    def deal(self, rules: Sequence[RangeRules], tasks: int, *, stay: bool) -> list[tuple[int, list[RangeRules]]]:
        """Shares of about the same size, at most ``tasks``, by the index of their task.

        Args:
            rules: the ranges.
            tasks: the most there may be.
            stay: each partition goes to the task that had it last, which may have read ahead, unless shares become uneven.
        """
        fresh = assign([(each, _weight(each)) for each in rules], tasks)
        if not stay:
            return list(enumerate(fresh))
        dealt = self._stayed(rules, tasks) if tasks == self._tasks else {}
        if not dealt or max(map(_total, dealt.values())) > UNEVEN * max(map(_total, fresh)):
            dealt, self._last = dict(enumerate(fresh)), {}
        self._tasks = tasks
        self._last.update((each.range.source, index) for index, share in dealt.items() for each in share)
        return sorted(dealt.items())

    def _stayed(self, rules: Sequence[RangeRules], tasks: int) -> dict[int, list[RangeRules]]:
        """Former tasks for known partitions, the lightest share for each new one."""
        shares: dict[int, list[RangeRules]] = {index: [] for index in range(tasks)}
        for each in rules:
            if each.range.source in self._last:
                shares[self._last[each.range.source]].append(each)
        for each in sorted(rules, key=_weight, reverse=True):
            if each.range.source not in self._last:
                min(shares.values(), key=_total).append(each)
        return {index: share for index, share in shares.items() if share}


def _weight(each: RangeRules) -> float:
    return float(each.range.max_bytes)


def _total(share: Sequence[RangeRules]) -> float:
    return sum(map(_weight, share))
