"""The planner: which source offsets the next micro-batch reads. Pure functions, tested without Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mirror_pipeline.config.settings import BATCHES_IN_BUFFER
from mirror_pipeline.model import ESTIMATE_SLACK, LEAST_BYTES_PER_OFFSET, UNKNOWN_BYTES_PER_OFFSET, OffsetRange

T = TypeVar("T")

# Seconds from one small micro-batch to the next of a run that keeps up. Each costs a Delta commit, a file and a few milliseconds of CPU,
# so the next one follows a micro-batch of SHORT_TURN_BYTES or more soonest.
TURN_SECONDS, SHORT_TURN_SECONDS = 0.1, 0.05
SHORT_TURN_BYTES = 128 * 1024
LEAST_RANGE_BYTES = 64 * 1024
LARGE_IN_BUFFER = 16
"""Micro-batches larger than usual that the buffer must have room for: while the largest one may not fit, reading waits."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What the planner knows of one source partition.

    ``next`` is the first offset that is not staged yet, ``end`` the exclusive end that may be read (last
    stable offset, or the hard end of a backfill), ``bytes_per_offset`` an estimate from what was read before.
    """

    topic: str
    partition: int
    incarnation: str
    next: int
    end: int
    bytes_per_offset: float = UNKNOWN_BYTES_PER_OFFSET
    hard_end: bool = False
    bytes_per_batch: float = 0.0

    @property
    def wanted_bytes(self) -> float:
        """Estimated bytes between ``next`` and ``end``."""
        return max(1.0, (self.end - self.next) * self.bytes_per_offset)

    @property
    def least_bytes(self) -> float:
        """The same, of a partition that was read before; otherwise only what the smallest records take."""
        return self.wanted_bytes if self.bytes_per_batch else (self.end - self.next) * LEAST_BYTES_PER_OFFSET


def budget_of(usual: int, reach: int, cap: int, *, far: bool, waiting: float) -> int:
    """Bytes of the next micro-batch.

    Args:
        usual: ``engine.micro_batch_bytes``.
        reach: how many times that it may have, see ``Place``.
        cap: of the buffer. Only over a long link, where each micro-batch costs round trips, one may take a quarter of it.
        far: over a long link.
        waiting: bytes of the whole backlog. Towards its end micro-batches become smaller: once all is read, the last one is sent alone.
    """
    if not far:
        reach = max(1, min(reach, int(waiting / (2 * usual))))
    most = cap // BATCHES_IN_BUFFER if far else max(usual, cap // LARGE_IN_BUFFER)
    return min(usual * reach, most, cap // BATCHES_IN_BUFFER)


def plan_ranges(views: Iterable[PartitionView], *, budget_bytes: int) -> list[OffsetRange]:
    """Share ``budget_bytes`` over all partitions with lag and return one range for each.

    Max-min fair: every partition may take an equal share; what small ones leave is dealt again among the
    rest, so a hot partition never starves the others and never idles the budget. Every lagging partition
    gets at least one batch.
    """
    lagging = sorted((v for v in views if v.next < v.end), key=lambda v: v.wanted_bytes)
    ranges: list[OffsetRange] = []
    left = float(budget_bytes)
    for index, view in enumerate(lagging):
        share = left / (len(lagging) - index)
        take = max(float(LEAST_RANGE_BYTES), min(view.wanted_bytes * ESTIMATE_SLACK, share))
        left = max(0.0, left - take)
        ranges.append(
            OffsetRange(
                view.topic, view.partition, view.next, view.end, int(take), view.incarnation, view.hard_end,
                view.bytes_per_offset, view.bytes_per_batch,
            )  # fmt: skip
        )
    return ranges


def planned_bytes(ranges: Iterable[OffsetRange]) -> int:
    """Bytes that reading the ranges will bring, as far as one can tell."""
    return sum(min(r.max_bytes, int((r.end - r.start) * r.bytes_per_offset * ESTIMATE_SLACK)) for r in ranges)


def turn_seconds(size: int) -> float:
    """Seconds from the start of a small micro-batch of ``size`` bytes to the start of the next, on a local disk."""
    return TURN_SECONDS - (TURN_SECONDS - SHORT_TURN_SECONDS) * min(1.0, size / SHORT_TURN_BYTES)


def assign(items: Sequence[tuple[T, float]], tasks: int) -> list[list[T]]:
    """Deal weighted items to at most ``tasks`` lists so that the heaviest list is as light as a greedy deal makes it."""
    bins: list[tuple[float, list[T]]] = [(0.0, []) for _ in range(max(1, min(tasks, len(items))))]
    for item, weight in sorted(items, key=lambda pair: -pair[1]):
        lightest = min(range(len(bins)), key=lambda i: bins[i][0])
        load, chosen = bins[lightest]
        chosen.append(item)
        bins[lightest] = (load + weight, chosen)
    return [chosen for _, chosen in bins if chosen]
