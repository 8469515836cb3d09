"""Records inside a batch: open, seal, split, decode.

Opening touches only the framing of a record (length, attributes, two deltas); everything from the key length on, the
``tail``, is kept as bytes. So header keys that are not UTF-8, duplicate headers, nulls and empty values all survive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.compression import UNCOMPRESSED, compress, decompress
from mirror_pipeline.kafka.records.header import CHECKED_FIELDS, HEAD, HEADER_BYTES, LOG_OVERHEAD, BatchHeader, Buffer, check, headers
from mirror_pipeline.kafka.records.legacy import open_legacy
from mirror_pipeline.kafka.records.varint import read_varint, read_varlong, varint

_FRAMING = 21  # most bytes a record takes in front of its tail: length 5, attributes 1, time 10, offset 5
# Bytes by which a record may grow in another batch: a time delta from one to ten, an offset delta and a length by one.
LONGER = 11
_RATIO = 8  # first guess of how much smaller a codec makes a run; runs that stay too large are halved
_INT64 = 1 << 64
# Records of a batch that are held opened at a time.
OPENED_RECORDS = 32_768
MAX_RECORDS = 2**31 - 1


class OpenRecord(NamedTuple):
    """A record whose place and time can change while its content stays as it is.

    ``timestamp`` is in milliseconds, -1 for "none" (magic 0). ``attributes`` is the record's own, so far unused, byte.
    """

    offset: int
    timestamp: int
    tail: bytes
    attributes: int = 0


class RecordTooLarge(CorruptBatch):
    """One record alone makes a batch of ``size`` bytes, above the ``limit``; ``offset`` is its source offset."""

    def __init__(self, offset: int, size: int, limit: int) -> None:
        super().__init__(
            f"the record at offset {offset} needs a batch of {size} bytes, {limit} are allowed",
            hint="raise max.message.bytes of the target topic",
        )
        self.offset = offset
        self.size = size
        self.limit = limit


def only_header(batch: Buffer) -> BatchHeader:
    """The header of a buffer that must hold exactly one batch.

    Raises:
        CorruptBatch: It holds less or more.
    """
    for _, header in headers(batch):
        if header.size == len(batch):
            return header
        break
    raise CorruptBatch(f"{len(batch)} bytes are not exactly one batch")


def open_batch(batch: Buffer) -> list[OpenRecord]:
    """The records of one batch of any magic and codec, in order, checked against its checksum.

    Records of a LogAppendTime batch get the append time as their timestamp. A batch that compaction emptied gives
    an empty list.

    Raises:
        CorruptBatch: Anything is malformed, or offsets do not rise inside the batch.
    """
    return next(open_parts(batch, most=MAX_RECORDS), [])


def open_parts(batch: Buffer, *, most: int = OPENED_RECORDS, checked: bool = False) -> Iterator[list[OpenRecord]]:
    """The same, a number of records at a time: decoded they take a hundred times the memory of a compressed batch.

    Args:
        batch: One batch.
        most: Records of a part; messages of magic 0 and 1 come all at once.
        checked: The checksum was looked at already.

    Raises:
        CorruptBatch: As ``open_batch``, possibly after parts that are good.
    """
    header = only_header(batch)
    if not checked:
        check(batch, 0, header)
    try:
        if header.magic != 2:
            yield [OpenRecord(*message) for message in open_legacy(bytes(batch), header)]
        elif header.records:
            body = decompress(header.codec, bytes(memoryview(batch)[HEADER_BYTES:]))
            position, previous, left = 0, -1, header.records
            while left:
                records, position, previous = _frames(body, header, position, previous, min(left, most))
                left -= len(records)
                if not left and position != len(body):
                    raise CorruptBatch(f"{len(body) - position} bytes are left after {header.records} records")
                yield records
    except IndexError as error:
        raise CorruptBatch(f"the batch at offset {header.base_offset} ends inside a record") from error
    except CorruptBatch as error:
        raise CorruptBatch(f"batch at offset {header.base_offset}: {error.message}", hint=error.hint) from error


def _frames(body: bytes, header: BatchHeader, position: int, previous: int, count: int) -> tuple[list[OpenRecord], int, int]:
    """That many records from ``position`` on, the position after them, and the last one's offset delta; ``previous`` is the one before."""
    records: list[OpenRecord] = []
    total = len(body)
    base, last_delta = header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if header.log_append_time else None
    for _ in range(count):
        length, position = read_varint(body, position)
        end = position + length
        if length < 0 or end > total:
            raise CorruptBatch(f"a record has length {length}")
        attributes = body[position]
        time, position = read_varlong(body, position + 1)
        delta, position = read_varint(body, position)
        if position > end or not previous < delta <= last_delta:
            raise CorruptBatch(f"a record of {length} bytes has offset delta {delta} after {previous}, at most {last_delta} fits")
        timestamp = int64(base + time) if append_time is None else append_time
        records.append(OpenRecord(header.base_offset + delta, timestamp, body[position:end], attributes))
        position, previous = end, delta
    return records, position, previous


def int64(value: int) -> int:
    """Wrap as Java's long does, so that any pair of times has a delta."""
    return value if -(1 << 63) <= value < 1 << 63 else (value + (1 << 63)) % _INT64 - (1 << 63)


def seal(records: Sequence[OpenRecord], *, codec: int, base_offset: int | None = None) -> bytes:
    """Build a v2 CreateTime batch without producer, with offsets that follow one another from ``base_offset``.

    Args:
        records: At least one. Their own offsets matter only for the default of ``base_offset``.
        codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        base_offset: Written into the batch; by default the first record's offset.
    """
    base = records[0].offset if base_offset is None else base_offset
    return _encode(records, range(len(records)), codec, base, len(records) - 1)


def _encode(records: Sequence[OpenRecord], deltas: Sequence[int], codec: int, base_offset: int, last_delta: int) -> bytes:
    base = records[0].timestamp
    parts: list[bytes] = []
    for record, offset_delta in zip(records, deltas, strict=True):
        time, delta = varint(int64(record.timestamp - base)), varint(offset_delta)
        length = 1 + len(time) + len(delta) + len(record.tail)
        parts += (varint(length), record.attributes.to_bytes(1, "big"), time, delta, record.tail)
    body = compress(codec, b"".join(parts))
    latest = max(record.timestamp for record in records)
    fields = CHECKED_FIELDS.pack(codec, last_delta, base, latest, -1, -1, -1, len(records))
    crc = crc32c(body, crc32c(fields), -1)
    return HEAD.pack(base_offset, HEADER_BYTES - LOG_OVERHEAD + len(body), -1, 2, crc) + fields + body


def seal_runs(records: Sequence[OpenRecord], *, codec: int, max_bytes: int) -> list[bytes]:
    """Build batches that keep every record's source offset: one or more for each run of offsets without a hole.

    Args:
        records: In rising order of offset; none gives no batch.
        codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        max_bytes: Most bytes of one batch, header and all.

    Raises:
        RecordTooLarge: One record does not fit.
    """
    budget = max_bytes - HEADER_BYTES if codec == UNCOMPRESSED else max_bytes * _RATIO
    return [batch for run in _runs(records, budget) for batch in _fit(run, codec, max_bytes)]


def _runs(records: Sequence[OpenRecord], budget: int) -> Iterator[Sequence[OpenRecord]]:
    start = size = 0
    for index, record in enumerate(records):
        need = len(record.tail) + _FRAMING
        if index > start and (size + need > budget or record.offset != records[index - 1].offset + 1):
            yield records[start:index]
            start, size = index, 0
        size += need
    if start < len(records):
        yield records[start:]


def _fit(run: Sequence[OpenRecord], codec: int, max_bytes: int) -> Iterator[bytes]:
    batch = seal(run, codec=codec)
    if len(batch) <= max_bytes:
        yield batch
    elif len(run) == 1:
        raise RecordTooLarge(run[0].offset, len(batch), max_bytes)
    else:
        middle = len(run) // 2
        yield from _fit(run[:middle], codec, max_bytes)
        yield from _fit(run[middle:], codec, max_bytes)
