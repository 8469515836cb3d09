"""Batches of a source log, and the spans that a ``SpanBuilder`` makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.span_builder import SpanBuilder
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import BatchHeader, OpenRecord, headers, open_batch, seal
from mirror_pipeline.kafka.records.digest import digests_of
from mirror_pipeline.model import HoleCause, OffsetRange

TAIL = b"\x01\x02k\x00"  # null key, one byte of value, no headers
CONTROL = 0x30


def batch(first: int, offsets: Sequence[int] | int, *, codec: int = 0) -> bytes:
    """A batch with records at the given offsets (a number means that many dense ones)."""
    wanted = range(first, first + offsets) if isinstance(offsets, int) else offsets
    dense = seal([OpenRecord(first + n, 1000 + o, TAIL) for n, o in enumerate(wanted)], codec=codec, base_offset=first)
    return dense


def marked(data: bytes, attributes: int, producer_id: int) -> bytes:
    """The same batch with further attributes and a producer id, its CRC made right."""
    from crc32c import crc32c

    changed = bytearray(data)
    changed[21:23] = (int.from_bytes(changed[21:23]) | attributes).to_bytes(2)
    changed[43:51] = producer_id.to_bytes(8)
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4)
    return bytes(changed)


def control(offset: int, producer_id: int, *, abort: bool) -> bytes:
    """A transaction marker (key: version 0, type 0 abort or 1 commit)."""
    key = b"\x00\x00\x00\x00" if abort else b"\x00\x00\x00\x01"
    tail = bytes([len(key) * 2]) + key + b"\x0c" + b"\x00" * 6 + b"\x00"
    return marked(seal([OpenRecord(offset, 1000, tail)], codec=0, base_offset=offset), CONTROL, producer_id)


class Taken:
    """Runs a reader over batches and keeps what it emits."""

    def __init__(
        self, start: int, end: int, *, hard_end: bool = False, compacted: bool = False, gaps: bool = False, limit: int = 10**6,
        size: int = 10**9, approved: tuple[tuple[int, int], ...] = (),
    ) -> None:  # fmt: skip
        self.spans: list[SpanDraft] = []
        self.payload = b""
        rules = RangeRules(OffsetRange("t", 0, start, end, size, "id", hard_end), limit, compacted, gaps, approved)
        self.reader = SpanBuilder(rules, self._emit)

    def _emit(self, span: SpanDraft, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
        assert span.digests == digests_of(pieces)
        self.spans.append(span)
        self.payload += b"".join(bytes(piece) for piece in pieces)

    def take(self, *batches: bytes, aborted: Sequence[tuple[int, int]] = ()) -> Taken:
        data = FetchedPartition(0, 10**6, 10**6, 0, list(aborted), memoryview(b"".join(batches)))
        self.reader.take(data)
        self.reader.flush()
        return self

    @property
    def heads(self) -> list[BatchHeader]:
        return [header for _, header in headers(memoryview(self.payload))]

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.opened]

    @property
    def opened(self) -> list[OpenRecord]:
        return [r for at, h in headers(memoryview(self.payload)) for r in open_batch(self.payload[at : at + h.size])]

    @property
    def holes(self) -> list[tuple[int, int, HoleCause]]:
        return [(h.start, h.end, h.cause) for span in self.spans for h in span.holes]
