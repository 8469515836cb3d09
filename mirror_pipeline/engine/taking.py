"""From fetched bytes to spans: what of a source partition is copied, and how. No sockets, no files.

A batch goes into the span untouched unless it must be opened: it straddles the edge of a range, has holes
inside (compaction), is of magic 0 or 1, carries log-append times, or is larger than the target takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.buffer.write import SpanDraft
from mirror_pipeline.engine.plain import PlainRun, plain_run
from mirror_pipeline.engine.terms import RangeTerms
from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.model import BatchMark, Hole, HoleCause, Quarantined
from mirror_pipeline.wire.batch import BatchHeader, Buffer, check, headers
from mirror_pipeline.wire.control import ControlType, control_type
from mirror_pipeline.wire.digest import LeafSums
from mirror_pipeline.wire.fetch import FetchedPartition
from mirror_pipeline.wire.merge import merge, worth_merging
from mirror_pipeline.wire.records import OpenRecord, RecordTooLarge, open_batch, seal_runs

NO_TIMESTAMP = -1
MAX_SEALED = 2**31 - 1


@dataclass(slots=True)
class RangeReader:
    """Walks the batches of one range in order and hands finished spans to ``emit``."""

    terms: RangeTerms
    emit: Callable[[SpanDraft, Sequence[Buffer]], None]
    next: int = field(init=False)
    bytes_read: int = field(init=False, default=0)
    records: int = field(init=False, default=0)
    batches: int = field(init=False, default=0)
    done: bool = field(init=False, default=False)
    most_bytes: float = field(init=False)
    first_epoch: int = field(init=False, default=-1)
    mark: BatchMark | None = field(init=False, default=None)
    quarantined: list[Quarantined] = field(init=False, default_factory=list)
    _span_start: int = field(init=False)
    _pieces: list[Buffer] = field(init=False, default_factory=list)
    _holes: list[Hole] = field(init=False, default_factory=list)
    _sums: LeafSums = field(init=False, default_factory=LeafSums)
    _span_records: int = field(init=False, default=0)
    _batches: int = field(init=False, default=0)
    _oldest: int = field(init=False, default=NO_TIMESTAMP)
    _newest: int = field(init=False, default=NO_TIMESTAMP)

    def __post_init__(self) -> None:
        self.next = self._span_start = self.terms.range.start
        self.most_bytes = self.terms.range.max_bytes

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
        aborted = sorted(data.aborted, key=lambda entry: entry[1], reverse=True)
        open_aborts: set[int] = set()
        at = 0
        while not self.done:
            run = plain_run(records, at, self.next, self.terms, aborted, open_aborts)
            if run is not None:
                self.bytes_read += run.stop - at
                self.batches += run.batches
                self._keep(run, records[at : run.stop])
                at = run.stop
            found = next(headers(records[at:]), None)
            if found is None:
                break
            batch = records[at : at + found[1].size]
            at += len(batch)
            self._look(found[1], batch, aborted, open_aborts)
        if self.next >= self.terms.range.end or self.bytes_read >= self.most_bytes:
            self.done = True

    def _look(self, header: BatchHeader, batch: memoryview, aborted: list[tuple[int, int]], open_aborts: set[int]) -> None:
        """A batch that is not plain, or not in its turn."""
        if header.next_offset <= self.next:
            self._passed(header, batch, aborted)
            return
        self.bytes_read += len(batch)
        self.batches += 1
        opened = open_batch(batch) if header.magic < 2 else None
        if opened:  # only inside stands where a compressed wrapper begins
            header = header._replace(base_offset=opened[0].offset, last_offset_delta=opened[-1].offset - opened[0].offset)
        if header.base_offset >= self.terms.range.end:
            self._close_hole(self.terms.range.end)
            self.done = True
        elif header.magic < 2 or self._intact(header, batch):
            if self.first_epoch < 0:
                self.first_epoch = header.leader_epoch
            while aborted and aborted[-1][1] <= header.last_offset:
                open_aborts.add(aborted.pop()[0])
            if header.magic >= 2:
                self.mark = BatchMark(header.base_offset, header.crc, header.leader_epoch)
            self._special(header, batch, open_aborts, opened)

    @staticmethod
    def _passed(header: BatchHeader, batch: memoryview, aborted: list[tuple[int, int]]) -> None:
        """A batch that was taken over before may end a transaction that the broker, asked from before there, names again."""
        if header.magic >= 2 and header.is_control and control_type(batch) is ControlType.ABORT:
            aborted[:] = [entry for entry in aborted if entry[0] != header.producer_id or entry[1] > header.base_offset]

    def _intact(self, header: BatchHeader, batch: memoryview) -> bool:
        """Check the CRC; a damaged batch is left out only where a person, or ``on_loss``, allows it."""
        try:
            check(batch, 0, header)
        except CorruptBatch as problem:
            start, end = max(self.next, header.base_offset), max(self.next + 1, header.next_offset)
            if not self.terms.may_miss(start, end):
                raise self.terms.corrupt(start, end, problem) from problem
            self._close_hole(start)
            self._quarantine(start, end, "corrupt batch", bytes(batch))
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
                digests=self._sums.digests(),
            ),
            self._pieces,
        )
        self._span_start = self.next
        self._pieces, self._holes, self._sums = [], [], LeafSums()
        self._span_records = self._batches = 0
        self._oldest = self._newest = NO_TIMESTAMP

    def _keep(self, run: PlainRun, piece: memoryview) -> None:
        """Take over a plain run as it is, unless its batches are small."""
        pieces: list[Buffer] = [piece]
        small = worth_merging(run.batches, run.records, len(piece), packed=run.packed)
        if small:
            pieces = merge(piece, records=run.records, max_bytes=self.terms.max_batch_bytes)
        if small or not run.sums.records:
            self._sums.add_all(pieces)
        else:
            self._sums.include(run.sums)
        if self.first_epoch < 0:
            self.first_epoch = run.first_epoch
        self.mark = run.mark
        self.next += run.records
        self.records += run.records
        self._span_records += run.records
        self._batches += len(pieces) if small else run.batches
        self._pieces += pieces
        self._saw(run.oldest, run.newest)

    def _count(self, header: BatchHeader) -> None:
        self.next = header.next_offset
        self.records += header.records
        self._span_records += header.records
        self._batches += 1
        self._saw(header.base_timestamp, header.max_timestamp)

    def _saw(self, oldest: int, newest: int) -> None:
        self._oldest = oldest if self._oldest == NO_TIMESTAMP else min(self._oldest, oldest)
        self._newest = max(self._newest, newest)

    def _special(self, header: BatchHeader, batch: memoryview, open_aborts: set[int], opened: list[OpenRecord] | None) -> None:
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
        elif (run := plain_run(batch, 0, self.next, self.terms, (), open_aborts)) is not None:
            self._keep(run, batch)
        else:
            self._open(header, open_batch(batch) if opened is None else opened)

    def _open(self, header: BatchHeader, records: list[OpenRecord]) -> None:
        wanted = self.terms.range
        stop = min(header.next_offset, wanted.end) if wanted.hard_end else header.next_offset
        kept = [record for record in records if self.next <= record.offset < stop]
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
        self._sums.add_all([sealed])

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
