"""From fetched bytes to spans: what is copied of a source partition, and how. No sockets, no files.

A batch goes into the span unchanged unless it must be opened: it crosses the edge of a range, has holes (compaction), is of
magic 0 or 1, has log-append times, or is larger than the target accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.engine.tasks.read.damage import Ask, ReadAnswer
from mirror_pipeline.engine.tasks.read.plain_run import PlainRun, plain_run
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import BatchHeader, Buffer, check, headers
from mirror_pipeline.kafka.records.control import ControlType, control_type
from mirror_pipeline.kafka.records.digest import LeafSums
from mirror_pipeline.kafka.records.merge import merge, worth_merging
from mirror_pipeline.kafka.records.records import OpenRecord, RecordTooLarge, open_batch, open_parts, seal_runs
from mirror_pipeline.model import NO_TIMESTAMP, BatchMark, Hole, HoleCause, Quarantined

MAX_SEALED = 2**31 - 1


@dataclass(slots=True)
class SpanBuilder:
    """Walks the batches of one range in order and hands finished spans to ``emit``."""

    rules: RangeRules
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
    _at_batch: bool = field(init=False, default=False)
    _newest: int = field(init=False, default=NO_TIMESTAMP)

    def __post_init__(self) -> None:
        self.next = self._span_start = self.rules.range.start
        self.most_bytes = self.rules.range.max_bytes

    def skip_trimmed(self, log_start: int) -> None:
        """The source deleted everything below ``log_start`` before it was read: record a gap, or end this topic's copy."""
        if log_start <= self.next:
            return
        if not self.rules.may_miss(self.next, log_start):
            raise self.rules.trimmed(self.next, log_start)
        self._miss(log_start, HoleCause.RETENTION)
        self._at_batch = False
        self.done = self.next >= self.rules.range.end

    def pass_hole(self, hole: Hole) -> None:
        """Offsets without a record, as is known from where they were read before; what lies outside of the range is left out."""
        if not self.done and hole.end > self.next:
            self._miss(min(hole.end, self.rules.range.end), hole.cause)
            self.done = self.next == self.rules.range.end

    def take(self, data: FetchedPartition, *, asked: int = -1, ask: Ask | None = None, again: bool = False) -> None:
        """Take over what one fetch answer holds of this partition.

        Args:
            data: the answer; it begins at or before :attr:`next`.
            asked: the offset it was requested from, where that is known.
            ask: fetches again from an offset. A damaged batch is fetched a second time before anything is decided: it may have
                been damaged in transit.
            again: this is the second time.

        Raises:
            CorruptBatch: records cannot be unpacked although their batch has its checksum.
            TopicHalted: source offsets are missing for no known reason, or a batch is damaged.
        """
        answer, due = ReadAnswer.of(data), self.next if asked == self.next else None
        while not self.done:
            run = plain_run(answer.records, answer.at, self.next, self.rules, answer.aborted, answer.open_aborts)
            if run is not None:
                self.bytes_read += run.stop - answer.at
                self.batches += run.batches
                self._keep(run, answer.records[answer.at : run.stop])
                answer.at, answer.floor, answer.passed, self._at_batch = run.stop, self.next, None, True
                if answer.at == len(answer.records):
                    break
            try:
                if (found := answer.batch(due)) is None:
                    break
                header = self._look(*found, answer, ask)
            except CorruptBatch as error:
                if ask is not None and not again:
                    self.take(ask(self.next), asked=self.next, ask=ask, again=True)
                    break
                if not self._leave_out(answer, error, ask):
                    break
            else:
                answer.at, answer.floor = answer.at + header.size, header.next_offset
        if self.next >= self.rules.range.end or self.bytes_read >= self.most_bytes:
            self.done = True

    def _look(self, header: BatchHeader, batch: memoryview, answer: ReadAnswer, ask: Ask | None) -> BatchHeader:
        """Take over a batch that is not plain, or not at the next offset; returns its header, with the offset of its first record.

        Raises:
            CorruptBatch: it is damaged; nothing of it was taken over.
        """
        opened = open_batch(batch) if header.magic < 2 and header.next_offset > self.next else None
        if opened:  # only the records inside say where a compressed wrapper begins
            header = header._replace(base_offset=opened[0].offset, last_offset_delta=opened[-1].offset - opened[0].offset)
        if header.base_offset < answer.floor:
            raise CorruptBatch(f"batch at offset {header.base_offset} comes after offset {answer.floor - 1}")
        if header.next_offset <= self.next and header.base_offset < self.next:
            self._passed(header, batch, answer.aborted)
            answer.passed = answer.at
            return header
        if header.magic >= 2:
            check(batch, 0, header)
        self._in_place(header, answer, ask)
        self.bytes_read += len(batch)
        self.batches += 1
        if header.base_offset >= self.rules.range.end:
            self._close_hole(self.rules.range.end)
            self.done = True
            return header
        if self.first_epoch < 0:
            self.first_epoch = header.leader_epoch
        while answer.aborted and answer.aborted[-1][1] <= header.last_offset:
            answer.open_aborts.add(answer.aborted.pop()[0])
        if header.magic >= 2:
            self.mark = BatchMark(header.base_offset, header.crc, header.leader_epoch)
        self._special(header, batch, answer.open_aborts, opened)
        answer.passed, self._at_batch = None, True
        return header

    def _in_place(self, header: BatchHeader, answer: ReadAnswer, ask: Ask | None) -> None:
        """Check that a batch belongs where its offset says: the checksum does not cover the offset. Raises CorruptBatch."""
        if header.base_offset > self.next:
            if doubt := answer.doubt(header, self.next, ask):
                raise CorruptBatch(doubt)
        elif header.base_offset < self.next:
            accepted = any(low == self.next for low, _ in self.rules.approved)
            if header.magic >= 2 and (self._at_batch or accepted):
                raise CorruptBatch(f"batch at offset {header.base_offset} overlaps the one that ends at offset {self.next - 1}")

    @staticmethod
    def _passed(header: BatchHeader, batch: memoryview, aborted: list[tuple[int, int]]) -> None:
        """A batch that was taken over before may end a transaction that the answer lists as aborted."""
        if header.magic >= 2 and header.is_control and control_type(batch) is ControlType.ABORT:
            aborted[:] = [entry for entry in aborted if entry[0] != header.producer_id or entry[1] > header.base_offset]

    def _leave_out(self, answer: ReadAnswer, error: CorruptBatch, ask: Ask | None) -> bool:
        """Continue at the next good batch where a decision, or ``on_loss``, allows it; whether this answer suffices for that."""
        start, planned = self.next, self.rules.range
        good, end = answer.next_good(start), answer.stable
        for said in answer.ends(start) if good is None else ():  # no later batch in this answer: fetch where it may be
            if ask is None:
                end = said
            elif answer.join(ask(said)):
                end, good = said, answer.next_good(start)
            if good is not None:
                break
        end = good[1] if good else end
        if planned.hard_end:
            end = min(end, planned.end)
        if end <= start:
            return False
        if not self.rules.may_miss(start, end):
            raise self.rules.corrupt(start, end, error) from error
        stop = good[0] if good else len(answer.records)
        self._quarantine(start, end, "corrupt batch", bytes(answer.records[answer.at : stop]))
        self.bytes_read += stop - answer.at
        answer.at, answer.floor, answer.passed, self._at_batch = stop, end, None, True
        # A transaction may have ended in what is left out: the broker, asked from here, lists those that are aborted.
        return good is not None and not answer.aborted and not answer.open_aborts

    def _quarantine(self, start: int, end: int, reason: str, payload: bytes) -> None:
        planned = self.rules.range
        self.quarantined.append(Quarantined(planned.topic, planned.partition, planned.incarnation, start, end, reason, payload))
        self._miss(end, HoleCause.QUARANTINED)

    def flush(self) -> None:
        """Hand what was collected since the last flush to ``emit`` as one span, if there is any."""
        if self.next == self._span_start:
            return
        planned = self.rules.range
        self.emit(
            SpanDraft(
                planned.topic, planned.partition, planned.incarnation, self._span_start, self.next, records=self._span_records,
                batches=self._batches, min_timestamp=self._oldest, max_timestamp=self._newest, holes=tuple(self._holes),
                digests=self._sums.digests(),
            ),  # fmt: skip
            self._pieces,
        )
        self._span_start = self.next
        self._pieces, self._holes, self._sums = [], [], LeafSums()
        self._span_records = self._batches = 0
        self._oldest = self._newest = NO_TIMESTAMP

    def _keep(self, run: PlainRun, piece: memoryview) -> None:
        """Take over a plain run unchanged, unless its batches are small."""
        pieces: list[Buffer] = [piece]
        small = worth_merging(run.batches, run.records, len(piece), packed=run.packed)
        if small:
            pieces = merge(piece, records=run.records, max_bytes=self.rules.max_batch_bytes)
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
        elif (run := plain_run(batch, 0, self.next, self.rules, (), open_aborts)) is not None:
            self._keep(run, batch)
        else:
            self._open(header, open_parts(batch, checked=True) if opened is None else [opened])

    def _open(self, header: BatchHeader, parts: Iterable[list[OpenRecord]]) -> None:
        planned = self.rules.range
        stop = min(header.next_offset, planned.end) if planned.hard_end else header.next_offset
        codec = header.attributes & 0x07
        for records in parts:
            kept = [record for record in records if self.next <= record.offset < stop]
            for batch in reseal(kept, codec=codec, max_bytes=self.rules.max_batch_bytes):
                if isinstance(batch, TooLarge):
                    self._oversize(batch)
                else:
                    self._take_sealed(batch)
        if self.next < stop:
            self._miss(stop, HoleCause.COMPACTION)

    def _oversize(self, large: TooLarge) -> None:
        """Quarantine a record that the target does not accept, or end this topic's copy."""
        offset = large.record.offset
        self._close_compacted(offset)
        if not self.rules.may_miss(offset, offset + 1):
            raise self.rules.oversize(offset, large.error) from large.error
        self._quarantine(offset, offset + 1, "larger than the target's max.message.bytes", large.sealed())

    def _close_compacted(self, to: int) -> None:
        if to > self.next:
            self._miss(to, HoleCause.COMPACTION)

    def _take_sealed(self, sealed: bytes) -> None:
        for _, header in headers(memoryview(sealed)):
            self._close_compacted(header.base_offset)
            self.next = header.next_offset
            self.records += header.records
            self._span_records += header.records
            self._batches += 1
            self._saw(header.base_timestamp, header.max_timestamp)
        self._pieces.append(sealed)
        self._sums.add_all([sealed])

    def _close_hole(self, to: int) -> None:
        """Offsets ``[next, to)`` are not in the log that the broker answered from."""
        if to <= self.next:
            return
        if self.rules.holes_expected:
            self._miss(to, HoleCause.COMPACTION)
        elif self.rules.may_miss(self.next, to):
            self._miss(to, HoleCause.UNEXPLAINED)
        else:
            raise self.rules.hole(self.next, to)

    def _miss(self, to: int, cause: HoleCause) -> None:
        last = self._holes[-1] if self._holes else None
        if last is not None and last.end == self.next and last.cause is cause:
            self._holes[-1] = Hole(last.start, to, cause)
        else:
            self._holes.append(Hole(self.next, to, cause))
        self.next = to


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A record that no batch for the target can hold."""

    record: OpenRecord
    codec: int
    error: RecordTooLarge

    def sealed(self) -> bytes:
        """A batch of any size with this record alone."""
        return seal_runs([self.record], codec=self.codec, max_bytes=MAX_SEALED)[0]


def reseal(records: Sequence[OpenRecord], *, codec: int, max_bytes: int) -> Iterator[bytes | TooLarge]:
    """New batches of at most ``max_bytes``, in offset order; after a record that is too large each record gets its own."""
    try:
        batches = seal_runs(records, codec=codec, max_bytes=max_bytes)
    except RecordTooLarge:
        for record in records:
            try:
                yield seal_runs([record], codec=codec, max_bytes=max_bytes)[0]
            except RecordTooLarge as error:
                yield TooLarge(record, codec, error)
    else:
        yield from batches
