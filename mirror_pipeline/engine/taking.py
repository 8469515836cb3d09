"""From fetched bytes to spans: what of a source partition is copied, and how. No sockets, no files.

A batch goes into the span untouched unless it must be opened: it straddles the edge of a range, has holes
inside (compaction), is of magic 0 or 1, carries log-append times, or is larger than the target takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.buffer.write import SpanDraft
from mirror_pipeline.engine.terms import RangeTerms
from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.model import BatchMark, Hole, HoleCause, Quarantined
from mirror_pipeline.wire.batch import BatchHeader, check, headers
from mirror_pipeline.wire.control import ControlType, control_type
from mirror_pipeline.wire.fetch import FetchedPartition
from mirror_pipeline.wire.merge import merge, worth_merging
from mirror_pipeline.wire.records import OpenRecord, RecordTooLarge, open_batch, seal_runs

NO_TIMESTAMP = -1
MAX_SEALED = 2**31 - 1


@dataclass(slots=True)
class RangeReader:
    """Walks the batches of one range in order and hands finished spans to ``emit``."""

    terms: RangeTerms
    emit: Callable[[SpanDraft, Sequence[memoryview | bytes]], None]
    next: int = field(init=False)
    bytes_read: int = field(init=False, default=0)
    records: int = field(init=False, default=0)
    done: bool = field(init=False, default=False)
    first_epoch: int = field(init=False, default=-1)
    mark: BatchMark | None = field(init=False, default=None)
    quarantined: list[Quarantined] = field(init=False, default_factory=list)
    _span_start: int = field(init=False)
    _pieces: list[memoryview | bytes] = field(init=False, default_factory=list)
    _holes: list[Hole] = field(init=False, default_factory=list)
    _span_records: int = field(init=False, default=0)
    _batches: int = field(init=False, default=0)
    _oldest: int = field(init=False, default=NO_TIMESTAMP)
    _newest: int = field(init=False, default=NO_TIMESTAMP)

    def __post_init__(self) -> None:
        self.next = self._span_start = self.terms.range.start

    @property
    def fetch_offset(self) -> int:
        """The offset to ask the broker for."""
        return self.next

    def skip_trimmed(self, log_start: int) -> None:
        """The source deleted everything below ``log_start`` before it was read: a gap, or the end of this topic's copy."""
        if log_start <= self.next:
            return
        if not self.terms.may_miss(self.next, log_start):
            raise self.terms.trimmed(self.next, log_start)
        self._miss(log_start, HoleCause.RETENTION)
        self.done = self.next >= self.terms.range.end

    def take(self, data: FetchedPartition) -> None:
        """Take over what one fetch response holds of this partition.

        Raises:
            CorruptBatch: a batch fails its CRC or cannot be parsed.
            TopicHalted: source offsets are missing without an explanation.
        """
        records = data.records
        self.bytes_read += len(records)
        aborted = sorted(data.aborted, key=lambda entry: entry[1], reverse=True)
        open_aborts: set[int] = set()
        run_start = run_end = -1
        run_from = self._batches, self.records
        last: BatchHeader | None = None
        for at, header in headers(records):
            if header.next_offset <= self.next:
                self._passed(header, records[at : at + header.size], aborted)
                continue
            if header.base_offset >= self.terms.range.end:
                self._close_hole(self.terms.range.end)
                self.done = True
                break
            if header.magic >= 2 and not self._intact(records, at, header):
                continue
            if last is None and self.first_epoch < 0:
                self.first_epoch = header.leader_epoch
            last = header
            while aborted and aborted[-1][1] <= header.last_offset:
                open_aborts.add(aborted.pop()[0])
            if not self._as_it_is(header, open_aborts):
                self._keep(records[run_start:run_end], run_from)
                run_start = run_end = -1
                self._special(header, records[at : at + header.size], open_aborts)
                continue
            if at != run_end:
                self._keep(records[run_start:run_end], run_from)
                run_start, run_from = at, (self._batches, self.records)
            self._count(header)
            run_end = at + header.size
        self._keep(records[run_start:run_end], run_from)
        if last is not None and last.magic >= 2:
            self.mark = BatchMark(last.base_offset, last.crc, last.leader_epoch)
        if self.next >= self.terms.range.end or self.bytes_read >= self.terms.range.max_bytes:
            self.done = True

    @staticmethod
    def _passed(header: BatchHeader, batch: memoryview, aborted: list[tuple[int, int]]) -> None:
        """A batch that was taken over before may end a transaction that the broker, asked from before there, names again."""
        if header.magic >= 2 and header.is_control and control_type(batch) is ControlType.ABORT:
            aborted[:] = [entry for entry in aborted if entry[0] != header.producer_id or entry[1] > header.base_offset]

    def _intact(self, records: memoryview, at: int, header: BatchHeader) -> bool:
        """Check the CRC; a damaged batch is left out only where a person, or ``on_loss``, allows it."""
        try:
            check(records, at, header)
        except CorruptBatch as problem:
            start, end = max(self.next, header.base_offset), max(self.next + 1, header.next_offset)
            if not self.terms.may_miss(start, end):
                raise self.terms.corrupt(start, end, problem) from problem
            self._close_hole(start)
            self._quarantine(start, end, "corrupt batch", bytes(records[at : at + header.size]))
            return False
        return True

    def _quarantine(self, start: int, end: int, reason: str, payload: bytes) -> None:
        wanted = self.terms.range
        self.quarantined.append(Quarantined(wanted.topic, wanted.partition, wanted.incarnation, start, end, reason, payload))
        self._miss(end, HoleCause.QUARANTINED)

    def flush(self) -> None:
        """Hand what was collected since the last flush to ``emit`` as one span, if it is anything."""
        if self.next == self._span_start:
            return
        wanted = self.terms.range
        self.emit(
            SpanDraft(
                topic=wanted.topic,
                partition=wanted.partition,
                incarnation=wanted.incarnation,
                start=self._span_start,
                end=self.next,
                records=self._span_records,
                batches=self._batches,
                min_timestamp=self._oldest,
                max_timestamp=self._newest,
                holes=_joined(self._holes),
            ),
            self._pieces,
        )
        self._span_start = self.next
        self._pieces, self._holes = [], []
        self._span_records = self._batches = 0
        self._oldest = self._newest = NO_TIMESTAMP

    def _as_it_is(self, header: BatchHeader, open_aborts: set[int]) -> bool:
        attributes = header.attributes
        return (
            header.magic == 2
            and not attributes & 0x28  # control (bit 5), log append time (bit 3)
            and header.records == header.last_offset_delta + 1
            and header.base_offset == self.next
            and header.size <= self.terms.max_batch_bytes
            and not (attributes & 0x10 and header.producer_id in open_aborts)
            and not (self.terms.range.hard_end and header.next_offset > self.terms.range.end)
            and header.records > 0
        )

    def _keep(self, run: memoryview, before: tuple[int, int]) -> None:
        """Take over batches that lie behind one another, as they are unless they are tiny; ``before`` are the counts in front of them."""
        if not len(run):
            return
        batches, records = self._batches - before[0], self.records - before[1]
        if worth_merging(batches, records, len(run)):
            merged = merge(run, max_bytes=self.terms.max_batch_bytes)
            self._batches += len(merged) - batches
            self._pieces += merged
        else:
            self._pieces.append(run)

    def _count(self, header: BatchHeader) -> None:
        self.next = header.next_offset
        self.records += header.records
        self._span_records += header.records
        self._batches += 1
        self._saw(header.base_timestamp)
        self._saw(header.max_timestamp)

    def _saw(self, timestamp: int) -> None:
        if self._batches <= 1 and self._oldest == NO_TIMESTAMP:
            self._oldest = timestamp
        self._oldest = min(self._oldest, timestamp)
        self._newest = max(self._newest, timestamp)

    def _special(self, header: BatchHeader, batch: memoryview, open_aborts: set[int]) -> None:
        if header.base_offset > self.next:
            self._close_hole(header.base_offset)
        if header.magic >= 2 and header.is_control:
            if control_type(batch) is ControlType.ABORT:
                open_aborts.discard(header.producer_id)
            self._miss(header.next_offset, HoleCause.MARKER)
        elif header.magic >= 2 and header.is_transactional and header.producer_id in open_aborts:
            self._miss(header.next_offset, HoleCause.ABORTED)
        elif header.magic >= 2 and header.records == 0:
            self._miss(header.next_offset, HoleCause.COMPACTION)
        elif self._as_it_is(header, open_aborts):
            self._count(header)
            self._pieces.append(batch)
        else:
            self._open(header, batch)

    def _open(self, header: BatchHeader, batch: memoryview) -> None:
        wanted = self.terms.range
        stop = min(header.next_offset, wanted.end) if wanted.hard_end else header.next_offset
        kept = [record for record in open_batch(batch) if self.next <= record.offset < stop]
        codec = header.attributes & 0x07
        try:
            for sealed in seal_runs(kept, codec=codec, max_bytes=self.terms.max_batch_bytes):
                self._take_sealed(sealed)
        except RecordTooLarge:
            self._oversize(kept, codec)
        if self.next < stop:
            self._miss(stop, HoleCause.COMPACTION)

    def _oversize(self, kept: Sequence[OpenRecord], codec: int) -> None:
        """A single record is larger than the target's ``max.message.bytes``: quarantine, or the end of this topic's copy."""
        for record in kept:
            if record.offset < self.next:
                continue
            try:
                sealed = seal_runs([record], codec=codec, max_bytes=self.terms.max_batch_bytes)[0]
            except RecordTooLarge as problem:
                self._close_compacted(record.offset)
                if not self.terms.may_miss(record.offset, record.offset + 1):
                    raise self.terms.oversize(record.offset, problem) from problem
                whole = seal_runs([record], codec=codec, max_bytes=MAX_SEALED)[0]
                self._quarantine(record.offset, record.offset + 1, "larger than the target takes", whole)
            else:
                self._take_sealed(sealed)

    def _close_compacted(self, to: int) -> None:
        if to > self.next:
            self._miss(to, HoleCause.COMPACTION)

    def _take_sealed(self, sealed: bytes) -> None:
        for _, header in headers(memoryview(sealed)):
            self._close_compacted(header.base_offset)
            self._count(header)
        self._pieces.append(sealed)

    def _close_hole(self, to: int) -> None:
        """Offsets ``[next, to)`` were not in the log the broker answered from."""
        if to <= self.next:
            return
        if self.terms.holes_expected:
            self._miss(to, HoleCause.COMPACTION)
        elif self.terms.may_miss(self.next, to):
            self._miss(to, HoleCause.UNEXPLAINED)
        else:
            raise self.terms.hole(self.next, to)

    def _miss(self, to: int, cause: HoleCause) -> None:
        self._holes.append(Hole(self.next, to, cause))
        self.next = to


def _joined(holes: Sequence[Hole]) -> tuple[Hole, ...]:
    joined: list[Hole] = []
    for hole in holes:
        if joined and joined[-1].end == hole.start and joined[-1].cause is hole.cause:
            joined[-1] = Hole(joined[-1].start, hole.end, hole.cause)
        else:
            joined.append(hole)
    return tuple(joined)
