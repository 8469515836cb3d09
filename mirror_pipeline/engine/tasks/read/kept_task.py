"""The task that copies spans of the archive into a backfill's buffer: the same checks and cuts as if a broker had sent their batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from mirror_pipeline.buffer.archive.selection import KeptSpan, SpanSegment
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome, ReadResult
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.span_builder import SpanBuilder
from mirror_pipeline.errors import BufferDamaged, BufferUnusable, CorruptBatch, MirrorError, TopicHalted
from mirror_pipeline.halts import Halt
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import check, headers
from mirror_pipeline.kafka.records.digest import digests_of
from mirror_pipeline.model import Hole, OffsetRange, Quarantined, SpanRef


@dataclass(frozen=True, slots=True)
class KeptRange:
    """One range to copy and the spans that hold it, in order. Picklable, as it crosses into Spark's workers."""

    rules: RangeRules
    segments: tuple[SpanSegment, ...]


@dataclass(frozen=True, slots=True)
class KeptTask:
    """What one task copies into a new part file of ``store``."""

    store: LaneStore
    micro_batch: int
    index: int
    ranges: tuple[KeptRange, ...]
    durable: bool


def run_kept(task: KeptTask) -> ReadResult:
    """Copy the ranges of ``task``. A span whose file is gone ends its range there; the next micro-batch looks it up again.

    Raises:
        BufferDamaged: a span is not what was written.
        BufferUnusable: the buffer cannot be read or written.
    """
    began = time.monotonic()
    writer = PartFileWriter(task.store, task.micro_batch, task.index, durable=task.durable)
    readers: dict[tuple[str, str], SpanReader] = {}
    try:
        outcomes = tuple(_Copy(wanted, writer, readers).run() for wanted in task.ranges)
        part = writer.close()
    except BaseException:
        writer.abort()
        raise
    finally:
        for reader in readers.values():
            reader.close()
    return ReadResult(part, outcomes, time.monotonic() - began)


class _Copy:
    """One range."""

    def __init__(self, wanted: KeptRange, writer: PartFileWriter, readers: dict[tuple[str, str], SpanReader]) -> None:
        self._wanted = wanted
        self._writer = writer
        self._readers = readers
        self._next = wanted.rules.range.start
        self._records = self._bytes = self._batches = 0
        self._quarantined: list[Quarantined] = []

    def run(self) -> RangeOutcome:
        for segment in self._wanted.segments:
            if segment.start != self._next:
                break  # a hole between spans: the driver says so when it comes to it
            try:
                view = self._read(segment.span)
            except FileNotFoundError:
                return self._outcome(error=f"{segment.span.ref.path} was moved")
            halt = self._take(segment.start, segment.end, segment.span.ref, view)
            if halt is not None:
                return self._outcome(halt=halt)
        return self._outcome()

    def _read(self, span: KeptSpan) -> memoryview:
        """The payload, checked. Raises FileNotFoundError, BufferDamaged, BufferUnusable."""
        key = span.store.uri, span.table
        reader = self._readers.setdefault(key, SpanReader(span.store, table=span.table))
        try:
            view = reader.payload(span.ref)
        except BufferUnusable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise FileNotFoundError(span.ref.path) from error
            if error.retryable:
                raise
            raise damaged(span, error.message) from error
        verify(span, view)
        return view

    def _take(self, start: int, end: int, ref: SpanRef, view: memoryview) -> Halt | None:
        planned, rules = self._wanted.rules.range, self._wanted.rules
        piece = OffsetRange(planned.topic, planned.partition, start, end, 2**62, planned.incarnation, hard_end=True)
        builder = SpanBuilder(
            RangeRules(piece, rules.max_batch_bytes, holes_expected=True, record_gaps=rules.record_gaps, approved=rules.approved),
            self._writer.add,
        )
        halt = None
        try:
            for part in parts_of(ref, view):
                if isinstance(part, Hole):
                    builder.pass_hole(part)
                elif not builder.done:
                    builder.take(FetchedPartition(0, -1, -1, -1, [], part))
        except TopicHalted as error:
            halt = error.halt
        builder.flush()
        self._next = builder.next
        self._records += builder.records
        self._bytes += builder.bytes_read
        self._batches += builder.batches
        self._quarantined += builder.quarantined
        return halt

    def _outcome(self, *, error: str = "", halt: Halt | None = None) -> RangeOutcome:
        planned = self._wanted.rules.range
        return RangeOutcome(
            planned.topic, planned.partition, self._next, self._records, self._bytes, error=error, halt=halt,
            quarantined=tuple(self._quarantined), batches=self._batches,
        )  # fmt: skip


def parts_of(ref: SpanRef, view: memoryview) -> Iterator[memoryview | Hole]:
    """What a span holds, in order of offsets: runs of batches, and the holes between them."""
    if not ref.holes:
        yield view
        return
    holes = sorted(ref.holes, key=lambda hole: hole.start, reverse=True)
    begin = 0
    for at, header in headers(view):
        while holes and holes[-1].start < header.base_offset:
            if at > begin:
                yield view[begin:at]
            begin = at
            yield holes.pop()
    if begin < len(view):
        yield view[begin:]
    yield from reversed(holes)


def verify(span: KeptSpan, view: memoryview) -> None:
    """Make sure that a span is what was written: by its digests, or batch by batch where an older version wrote none.

    Raises:
        BufferDamaged: it is not.
    """
    try:
        if span.ref.digests:
            if digests_of([view]) != span.ref.digests:
                raise damaged(span, "its digest is another one than when it was written")
        else:
            for at, header in headers(view):
                check(view, at, header)
        if sum(header.size for _, header in headers(view)) != len(view):
            raise damaged(span, "its payload does not end with a batch")
    except CorruptBatch as error:
        raise damaged(span, error.message) from error


def damaged(span: KeptSpan, why: str) -> MirrorError:
    """The error for a span that cannot be trusted."""
    return BufferDamaged(
        f"the span of offsets {span.ref.start} to {span.ref.end - 1} of {span.ref.source} is damaged: {why} "
        f"({span.store.table(span.table)}/{span.ref.path})",
        hint="nothing of it was sent; backfill the time ranges before and after it",
    )
