"""Which offsets a backfill copies, and which of them come from the buffer: what the source has deleted, or everything on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from mirror_pipeline.buffer.archive.selection import KeptSpan, KeptTopic, missing
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.engine.driver.read.kept import KeptSource
from mirror_pipeline.engine.tasks.read.kept_task import verify
from mirror_pipeline.errors import UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.kafka.records.batch import headers, open_batch
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.reports import RecordSource

Ranges = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SourceLog:
    """A topic on the source: its id, and by partition the log's start and end and the first offsets at the times of a range."""

    topic_id: str
    starts: dict[int, int]
    ends: dict[int, int]
    ranges: Ranges


def source_log(flow: Flow, topic: str, from_time: int, to_time: int) -> SourceLog:
    """Ask the source. An empty range where a partition has no such records. Raises BrokerError, ClusterUnreachable."""
    with flow.source_client() as client:
        found = client.metadata([topic]).topics[topic]
        if found.error:
            raise broker_error(found.error, topic)
        parts = [TopicPartition(topic, number) for number in sorted(found.partitions)]
        starts, ends = (offsets_at(client, parts, at) for at in (EARLIEST_TIME, LATEST_TIME))
        first, last = (offsets_at(client, parts, at) for at in (from_time, to_time))

    def bounds(tp: TopicPartition) -> tuple[int, int]:
        start = first[tp] if first[tp] >= 0 else ends[tp]
        stop = last[tp] if last[tp] >= 0 else ends[tp]
        return start, max(start, min(stop, ends[tp]))

    by_number = [{tp.partition: offset for tp, offset in found.items()} for found in (starts, ends)]
    return SourceLog(found.topic_id, by_number[0], by_number[1], {tp.partition: bounds(tp) for tp in parts})


@dataclass(frozen=True, slots=True)
class KeptRanges:
    """Offset ranges of a backfill by partition, and those below which a partition is read from the buffer."""

    ranges: Ranges
    until: dict[int, int]


class KeptPlan:
    """Plans one backfill.

    Args:
        flow: the mirror.
        topic: source topic.
        log: of the topic on the source.
        which: where the records come from.

    Raises:
        UsageError: records are to come from the buffer and the mirror has no archive.
    """

    def __init__(self, flow: Flow, topic: str, log: SourceLog, which: RecordSource) -> None:
        stores = [] if which == "cluster" else flow.lane_stores()
        self._kept = KeptTopic(stores, topic, log.topic_id)
        self._topic, self._log, self._which = topic, log, which
        self._used = which != "cluster" and (self._kept.archived or flow.config.buffer.archive is not None)
        if which == "buffer" and not self._used:
            raise UsageError(
                f"mirror {flow.name} has no archive: buffer.archive is not set",
                hint="set buffer.archive, for example to 90d; it keeps what is copied from then on. Or leave out --from-buffer",
            )
        begun = [Ledger(store).incarnations().get(topic) for store in stores] if self._used else []
        self._begun = {n: at for generation in begun if generation is not None for n, at in generation.starts.items()}

    def ranges(self, from_time: int, to_time: int) -> KeptRanges:
        """The ranges of the time range; those that come from the buffer are all there.

        Raises:
            UsageError: some are neither on the source nor in the buffer.
            BufferDamaged: a span at the edge of the range is not what was written.
        """
        if not self._used:
            return KeptRanges(self._log.ranges, {})
        low, high = (self._kept.first_since(at, self._log.ranges.keys()) for at in (from_time, to_time))
        ranges: Ranges = {}
        for number, (start, stop) in self._log.ranges.items():
            first, last = (self._below(number, spans, at) for spans, at in ((low, from_time), (high, to_time)))
            start = first if first is not None else start
            ranges[number] = start, max(start, last if last is not None else stop)
        until = self.until(ranges)
        self._refuse(ranges, until, low.keys())
        return KeptRanges(ranges, until)

    def until(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """The offsets below which these ranges come from the buffer; only for partitions where that is any."""
        if not self._used:
            return {}
        limits = {number: stop if self._which == "buffer" else min(stop, self._log.starts[number]) for number, (_, stop) in ranges.items()}
        return {number: limit for number, limit in limits.items() if ranges[number][0] < limit}

    def source(self, ranges: Ranges, until: Mapping[int, int]) -> KeptSource | None:
        """What the read loop needs; None if nothing comes from the buffer."""
        kept = {TopicPartition(self._topic, number): (ranges[number][0], limit) for number, limit in until.items()}
        return KeptSource(kept, self._kept.segments) if kept else None

    def _limit(self, number: int) -> int:
        """The offset up to which the buffer is asked at all."""
        return self._log.ends[number] if self._which == "buffer" else self._log.starts[number]

    def _below(self, number: int, spans: Mapping[int, KeptSpan], at: int) -> int | None:
        """The first offset at or after a time, if the buffer is where it is looked for."""
        span = spans.get(number)
        if span is None or span.ref.start >= self._limit(number):
            return None
        offset = first_at(span, at)
        return offset if offset < self._limit(number) else None

    def _refuse(self, ranges: Ranges, until: Mapping[int, int], found: Collection[int]) -> None:
        segments = self._kept.segments({number: (ranges[number][0], limit) for number, limit in until.items()})
        gaps = {number: missing(held, ranges[number][0], until[number]) for number, held in segments.items()}
        for number, before in self._lost_before({number: start for number, (start, _) in ranges.items()}, found).items():
            gaps[number] = [before, *gaps.get(number, [])]
        said = [f"{a} to {b - 1} of {self._topic}[{number}]" for number, found in sorted(gaps.items()) for a, b in found]
        if said:
            more = f" and {len(said) - 10} further ranges" if len(said) > 10 else ""
            which = "in the buffer" if self._which == "buffer" else "on the source nor in the buffer"
            neither = "are not" if self._which == "buffer" else "are neither"
            raise UsageError(
                f"offsets {', '.join(said[:10])}{more} may belong to the time range and {neither} {which}",
                hint="--from-source copies what the source has; " + self._begins(),
            )

    def _lost_before(self, starts: Mapping[int, int], found: Collection[int]) -> dict[int, tuple[int, int]]:
        """Offsets right before a range that nobody has any more: they may be of that time, and the range begin with them.

        Args:
            starts: where the ranges begin, by partition.
            found: the partitions whose ranges begin with a span of the buffer.
        """
        doubtful = {
            number: (start - 1, start) for number, start in starts.items()
            if start > self._begun.get(number, start)
            and (start <= self._log.starts[number] or (number in found and self._which == "buffer"))
        }  # fmt: skip
        lost = [number for number, held in self._kept.segments(doubtful).items() if not held]
        before = self._kept.segments({number: (self._begun[number], starts[number]) for number in lost})
        return {number: (held[-1].end if held else self._begun[number], starts[number]) for number, held in before.items()}

    def _begins(self) -> str:
        """From when on the buffer has anything, as a hint."""
        first_spans = self._kept.first_since(None, self._log.ranges.keys())
        times = [span.ref.min_timestamp for span in first_spans.values() if span.ref.min_timestamp >= 0]
        if not times:
            return "nothing of this topic is in the buffer"
        first_time = datetime.fromtimestamp(max(times) / 1000, UTC)
        return f"the buffer's first records are of {first_time:%Y-%m-%dT%H:%M:%S.%f}Z: try a later --from"


def first_at(span: KeptSpan, at: int) -> int:
    """The offset of the first record at or after a time (milliseconds) in a span that has one; its payload is read and checked.

    Raises:
        BufferDamaged: the span is not what was written.
    """
    with SpanReader(span.store, table=span.table) as reader:
        view = reader.payload(span.ref)
        verify(span, view)
        return next(iter(_offsets(view, at)), span.ref.end)


def _offsets(view: memoryview, at: int) -> Iterable[int]:
    for position, header in headers(view):
        if header.max_timestamp >= at:
            yield from (record.offset for record in open_batch(view[position : position + header.size]) if record.timestamp >= at)
