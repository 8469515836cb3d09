"""Damage in a fetched log: which batch cannot be trusted, and where the next good one begins.

A batch's checksum does not cover its offset, length, leader epoch and format. These are trusted only where they fit the
neighbouring batches:

    due            an offset that follows the batch before it
    due .. stable  an offset after a hole, if the batch ends within the log and the next one begins after it

A damaged segment begins at the offset that is due and ends where the next good batch begins. No offset or length in a damaged
header is trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, BatchHeader, check, headers, open_batch
from mirror_pipeline.kafka.records.header import HEADER

Ask = Callable[[int], FetchedPartition]
"""Fetches from an offset."""

_OFFSET = Struct(">q")
_MAGIC_AT = 16


@dataclass(slots=True)
class ReadAnswer:
    """One fetch answer of a partition while it is walked.

    ``at`` is the current byte, ``floor`` the offset after the last batch walked, ``stable`` the last stable offset (negative:
    unknown), ``passed`` the byte of a batch that was already taken over, while none has followed it.
    ``aborted`` are aborted transactions that have not begun yet, the next one last, ``open_aborts`` producers inside of one.
    """

    records: memoryview
    stable: int
    aborted: list[tuple[int, int]]
    at: int = 0
    floor: int = -1
    passed: int | None = None
    open_aborts: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, data: FetchedPartition) -> ReadAnswer:
        """Before its first batch."""
        return cls(data.records, data.last_stable_offset, sorted(data.aborted, key=lambda entry: entry[1], reverse=True))

    def batch(self, due: int | None) -> tuple[BatchHeader, memoryview] | None:
        """The batch here, None when the answer ends before it does.

        Args:
            due: the next offset, if the answer was asked for from there.

        Raises:
            CorruptBatch: there is none. A broker sends the first batch of an answer whole (KIP-74), and one that is due.
        """
        found = next(headers(self.records[self.at :]), None)
        if found is None:
            if self.records and not self.at:
                raise CorruptBatch("the first batch is longer than what the broker sent of it")
            if due is not None and self.passed is not None:
                self.at = self.passed
                raise CorruptBatch(f"the broker returned only offsets before {due}")
            return None
        return found[1], self.records[self.at : self.at + found[1].size]

    def join(self, more: FetchedPartition) -> bool:
        """Append what another answer holds; whether it holds anything."""
        self.records = memoryview(bytes(self.records) + bytes(more.records))
        self.stable = max(self.stable, more.last_stable_offset)
        return len(more.records) > 0

    def ends(self, due: int) -> list[int]:
        """Where the damaged batch here may end, by its header: offsets to fetch from, not to rely on."""
        if len(self.records) < self.at + HEADER_BYTES:
            return []
        base, *_, delta, _, _, _, _, _, count = HEADER.unpack_from(self.records, self.at)
        said = (due + delta + 1, due + count, base + delta + 1)
        return sorted({end for end in said if due < end and (self.stable < 0 or end <= self.stable)})

    def doubt(self, header: BatchHeader, due: int, ask: Ask | None) -> str:
        """Why there may be no hole between ``due`` and this batch, whose checksum is right; "" if there is."""
        if 0 <= self.stable < header.next_offset:
            return f"batch at offset {header.base_offset} ends after the log's last stable offset {self.stable}"
        if self.passed is not None:
            before = next(headers(self.records[self.passed :]))[1]
            if before.next_offset != due or not _intact(self.records, self.passed, before):
                self.at = self.passed  # the broker began with what should have been the batch that is due
                return f"batch at offset {before.base_offset} was returned for offset {due}"
        behind = _offset_at(self.records, self.at + header.size)
        if behind is not None and due <= behind < header.next_offset:
            return f"batch at offset {header.base_offset} precedes offset {behind}"
        if behind is None and ask is not None and header.magic >= 2 and header.next_offset != self.stable:
            return _misplaced(header, ask)
        return ""

    def next_good(self, due: int) -> tuple[int, int] | None:
        """Byte and first offset of the first batch after the damage here that is certainly good; None if there is none in this answer.

        If two batches contradict each other and either may be the damaged one, it is the first after both.
        """
        damaged = _header(self.records, self.at)
        suspect = damaged if damaged is not None and _intact(self.records, self.at, damaged) else None
        chain = self._good(self.at + damaged.size, due, suspect) if damaged is not None else None
        return chain or self._scanned(due, suspect)

    def _good(self, start: int, due: int, suspect: BatchHeader | None) -> tuple[int, int] | None:
        """The first one found by following batch lengths."""
        try:
            for at, header in headers(self.records[start:]):
                first = self._first_offset(start + at, header, due, suspect)
                if first is not None:
                    return start + at, first
        except CorruptBatch:
            pass  # a damaged length: the caller then searches byte by byte
        return None

    def _scanned(self, due: int, suspect: BatchHeader | None) -> tuple[int, int] | None:
        """The first one of magic 2 wherever it begins, for damage that hides where the next batch does."""
        data, at = bytes(self.records), self.at + 1
        while (found := data.find(2, at + _MAGIC_AT)) >= 0:
            at = found - _MAGIC_AT
            header = _header(self.records, at)
            if header is not None and header.magic == 2 and self._first_offset(at, header, due, suspect) is not None:
                return at, header.base_offset
            at += 1
        return None

    def _first_offset(self, at: int, header: BatchHeader, due: int, suspect: BatchHeader | None) -> int | None:
        """Offset of the first record of a batch after ``due`` that is certainly good; None for any other."""
        behind = _offset_at(self.records, at + header.size)
        if header.base_offset <= due or 0 <= self.stable < header.next_offset or not _intact(self.records, at, header):
            return None
        if (behind is not None and behind < header.next_offset) or (suspect and _either(suspect, header, due, behind)):
            return None
        if header.magic >= 2:
            return header.base_offset
        try:
            first = open_batch(self.records[at : at + header.size])[0].offset
        except CorruptBatch:
            return None
        return first if first > due else None


def _misplaced(header: BatchHeader, ask: Ask) -> str:
    """Whether the log contradicts the place of a batch that no batch follows in the answer: it is the last one of its log segment."""
    behind = next(headers(ask(header.next_offset).records), None)
    here = next(headers(ask(header.base_offset).records), None)
    if behind is not None and behind[1].base_offset < header.next_offset <= behind[1].last_offset:
        return f"batch at offset {header.base_offset} overlaps the one at offset {behind[1].base_offset}"
    if here is None or (here[1].base_offset, here[1].crc) != (header.base_offset, header.crc):
        return f"batch at offset {header.base_offset} is not what the log holds there"
    return ""


def _either(suspect: BatchHeader, other: BatchHeader, due: int, behind: int | None) -> bool:
    """Whether ``other``, which the offset of ``suspect`` contradicts, may be the damaged one of the two just as well.

    It is not when a later batch contradicts ``suspect`` too, nor when ``suspect`` alone would fill its place exactly.
    """
    if other.base_offset >= suspect.next_offset or (behind is not None and behind < suspect.next_offset):
        return False
    fills = suspect.next_offset - suspect.base_offset == other.base_offset - due
    return not fills or (behind is not None and other.next_offset - other.base_offset == behind - suspect.next_offset)


def _offset_at(records: memoryview, at: int) -> int | None:
    """The offset a batch at this byte is said to have, also one that is cut off."""
    return int(_OFFSET.unpack_from(records, at)[0]) if at + _OFFSET.size <= len(records) else None


def _header(records: memoryview, at: int) -> BatchHeader | None:
    """The header at a byte, None where there is no batch, or not all of it."""
    try:
        found = next(headers(records[at:]), None)
    except CorruptBatch:
        return None
    return found[1] if found else None


def _intact(records: memoryview, at: int, header: BatchHeader) -> bool:
    if header.size < HEADER_BYTES and header.magic >= 2:
        return False
    try:
        check(records, at, header)
    except CorruptBatch:
        return False
    return True
