"""Source offsets that are read from the buffer's own spans and not from the source: what a backfill takes from the archive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirror_pipeline.buffer.archive.selection import SpanSegment
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.plan import assign
from mirror_pipeline.engine.tasks.read.kept_task import KeptRange, KeptTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import OffsetRange, TopicPartition

Find = Callable[[Mapping[int, tuple[int, int]]], dict[int, list[SpanSegment]]]
"""The segments that hold these offset ranges, by partition."""


@dataclass(slots=True)
class KeptSource:
    """The part of a backfill's ranges that comes from the buffer; used by the read loop's thread.

    Args:
        ranges: source offsets of each partition that are read from the buffer.
        find: looks the spans up.
    """

    ranges: Mapping[TopicPartition, tuple[int, int]]
    find: Find
    _segments: dict[int, list[SpanSegment]] = field(default_factory=dict)
    _asked: dict[int, int] = field(default_factory=dict)

    def clipped(self, planned: OffsetRange) -> OffsetRange:
        """The range, or the part of it that comes from the buffer."""
        until = self._until(planned)
        return replace(planned, end=min(planned.end, until), hard_end=True) if planned.start < until else planned

    def holds(self, planned: OffsetRange) -> bool:
        """Whether a clipped range comes from the buffer."""
        return planned.start < self._until(planned)

    def _until(self, planned: OffsetRange) -> int:
        return self.ranges[planned.source][1] if planned.source in self.ranges else -1

    def range_of(self, rules: RangeRules) -> KeptRange:
        """The spans of a range, about as many bytes as it may bring.

        Raises:
            BufferUnusable: they have left the buffer since the backfill was planned.
        """
        planned = rules.range
        chosen, size = list[SpanSegment](), 0
        for segment in self._from(planned.partition, planned.start):
            if segment.start >= planned.end or size >= planned.max_bytes:
                break
            chosen.append(replace(segment, start=max(segment.start, planned.start), end=min(segment.end, planned.end)))
            size += segment.span.ref.bytes
        if not chosen or chosen[0].start != planned.start:
            gone = chosen[0].start if chosen else planned.end
            raise BufferUnusable(
                f"offsets {planned.start} to {gone - 1} of {planned.source} have left the archive since the backfill began",
                hint="raise buffer.archive, or backfill a later time range; what was copied stays",
            )
        return KeptRange(rules, tuple(chosen))

    def _from(self, partition: int, start: int) -> list[SpanSegment]:
        """What is known from ``start`` on; looked up again when nothing came of the last time: maintenance may have moved files."""
        if not self._segments or self._asked.get(partition) == start:
            self._segments, self._asked = self.find({tp.partition: bounds for tp, bounds in self.ranges.items()}), {}
        self._asked[partition] = start
        known = [segment for segment in self._segments.get(partition, []) if segment.end > start]
        self._segments[partition] = known
        return known


def kept_tasks(
    context: LaneContext, rules: Sequence[RangeRules], micro_batch: int, most: int
) -> tuple[Sequence[RangeRules], list[KeptTask]]:
    """The clipped ranges that the source is asked for, and at most ``most`` tasks for those that come from the buffer.

    Raises BufferUnusable.
    """
    kept = context.kept
    if kept is None:
        return rules, []
    ours = [kept.range_of(each) for each in rules if kept.holds(each.range)]
    shares = assign([(each, float(each.rules.range.max_bytes)) for each in ours], most)
    durable = context.buffer.durable
    tasks = [KeptTask(context.store, micro_batch, index, tuple(share), durable) for index, share in enumerate(shares)]
    return [each for each in rules if not kept.holds(each.range)], tasks
