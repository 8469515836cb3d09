"""What the comparison of two streams works on: batches with data, records that did not match, digests of records. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from mirror_pipeline.kafka.records.batch import HEADER_BYTES, BatchHeader, OpenRecord, Record, content, open_batch

Contents = tuple[int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]


@dataclass(slots=True, frozen=True)
class Piece:
    """One RecordBatch with data, of which the records with ``low <= offset < high`` count.

    ``timeless`` puts all of them at time 0; ``without`` are ranges of offsets that do not count either.
    """

    header: BatchHeader
    batch: memoryview
    low: int
    high: int
    timeless: bool = False
    without: tuple[tuple[int, int], ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every record of the batch counts."""
        return self.low <= self.header.base_offset and self.header.next_offset <= self.high and not self.without

    def opened(self) -> list[OpenRecord]:
        """The records that count; of a LogAppendTime batch with the broker's time (KIP-32)."""
        records = [r for r in open_batch(self.batch) if self.low <= r.offset < self.high]
        for first, end in self.without:
            records = [r for r in records if not first <= r.offset < end]
        return [r._replace(timestamp=0) for r in records] if self.timeless else records

    def records(self) -> list[Record]:
        """The same, decoded, which takes three times as long."""
        return [content(r) for r in self.opened()]

    def same_bytes(self, other: Piece) -> bool:
        """Whether both hold equal records, by their bytes alone; False proves nothing."""
        a, b = self.header, other.header
        if a.records != b.records or a.base_timestamp != b.base_timestamp or a.size != b.size or a.codec != b.codec:
            return False
        if a.magic != 2 or b.magic != 2 or not (self.whole and other.whole):
            return False
        if (a.log_append_time or b.log_append_time) and not self.timeless:
            return False
        # memoryviews compare element by element; a copy and memcmp is twenty times faster
        return bytes(self.batch[HEADER_BYTES:]) == bytes(other.batch[HEADER_BYTES:])


@dataclass(slots=True, frozen=True)
class Trace:
    """A record that did not match: its offset, and digests in place of its contents; ``key`` is empty without a key."""

    offset: int
    timestamp: int
    digest: bytes
    key: bytes = b""
    tombstone: bool = False


@dataclass(slots=True, frozen=True)
class Candidate:
    """What pass one could not match: a source record, a target record, or a pair that seems to be one record altered."""

    source: Trace | None
    target: Trace | None
    detail: str = ""


def contents(record: OpenRecord) -> Contents:
    """Everything of a record that a mirror must keep: all but its offset."""
    _, timestamp, key, value, pairs = content(record)
    return (timestamp, key, value, pairs)


def digest(record: Record) -> bytes:
    """Digest of timestamp, key, value and headers in order; null and empty give different digests."""
    state = blake2b(record.timestamp.to_bytes(8, "big", signed=True), digest_size=16)
    parts: list[bytes | None] = [record.key, record.value]
    for name, value in record.headers:
        parts += (name, value)
    for part in parts:
        state.update((-1 if part is None else len(part)).to_bytes(4, "big", signed=True))
        state.update(part or b"")
    return state.digest()


def trace(record: Record) -> Trace:
    """What is kept of a record that did not match."""
    key = b"" if record.key is None else key_digest(record.key)
    return Trace(record.offset, record.timestamp, digest(record), key, record.value is None)


def key_digest(key: bytes) -> bytes:
    """What is kept of a key."""
    return blake2b(key, digest_size=16).digest()


def equal_fields(a: Record, b: Record) -> int:
    """How many of timestamp, key, value and headers are equal."""
    return (a.timestamp == b.timestamp) + (a.key == b.key) + (a.value == b.value) + (a.headers == b.headers)


def difference_text(source: Record, target: Record) -> str:
    """Each field that differs, with where and how; payloads are not quoted."""
    texts = []
    if source.timestamp != target.timestamp:
        texts.append(f"timestamp {source.timestamp} became {target.timestamp}")
    if source.key != target.key:
        texts.append(f"key {_bytes_text(source.key, target.key)}")
    if source.value != target.value:
        texts.append(f"value {_bytes_text(source.value, target.value)}")
    if source.headers != target.headers:
        texts.append(_headers_text(source.headers, target.headers))
    return "; ".join(texts)


def _bytes_text(a: bytes | None, b: bytes | None) -> str:
    if a is None or b is None:
        return f"{_size(a)} became {_size(b)}"
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"differs at byte {place} ({_size(a)} became {_size(b)})"


def _size(value: bytes | None) -> str:
    return "null" if value is None else f"{len(value)} bytes"


def _headers_text(a: tuple[tuple[bytes, bytes | None], ...], b: tuple[tuple[bytes, bytes | None], ...]) -> str:
    if len(a) != len(b):
        return f"{len(a)} headers became {len(b)}"
    if sorted(a, key=repr) == sorted(b, key=repr):
        return "headers in another order"
    place = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    part = "key" if a[place][0] != b[place][0] else "value"
    index = 0 if part == "key" else 1
    return f"header {place} {part} {_bytes_text(a[place][index], b[place][index])}"
