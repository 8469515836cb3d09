"""Many tiny batches as few larger ones: the same records, offsets and times, one header for hundreds of them.

A producer that does not linger writes batches of one record, Kafka's own settings make batches of 16 KB at most. Each costs
a header of 61 bytes, and its own part of a produce request. Merging keeps order, timestamps and offsets;
producer ids and transactional bits, which the stamp replaces anyway, are dropped. This is per-record work, hence the effort:
many records are merged by machine code (:mod:`mirror_pipeline.kafka.records.merge_native`), few, and compressed ones, in a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from crc32c import crc32c

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.compression import UNCOMPRESSED, compress
from mirror_pipeline.kafka.records.digest import leaf_of
from mirror_pipeline.kafka.records.header import CHECKED_FIELDS, CODEC_MASK, HEAD, HEADER_BYTES, LOG_APPEND_TIME, LOG_OVERHEAD, Buffer
from mirror_pipeline.kafka.records.records import LONGER, int64, open_batch
from mirror_pipeline.kafka.records.varint import read_varint, read_varlong, varint

# Merged batches end at these sizes: large enough that headers and requests cost little, small enough to cut again. They also end where a
# leaf does, so that :mod:`mirror_pipeline.verify.fold_tasks` finds the batches they were made of in the same leaf.
MERGED_BATCH_BYTES = 256 * 1024
MERGED_RECORDS = 4096
# Batches with more records, or more bytes, than this on average are left as they are; bytes that are compressed have to be unpacked and
# packed again, record by record, which soon costs more than the broker's work for another batch.
WORTH_RECORDS, FEW_RECORDS = 100, 4
WORTH_BYTES = 32 * 1024
WORTH_PACKED_BYTES = 2048
# Of more than a few records each: fewer save a broker less than they cost.
WORTH_BATCHES = 8
# From here on it pays to load the machine code.
MANY_RECORDS = 200

_NO_LIMIT = 1 << 31
_LOOK = Struct(">8xi9xh")  # length, attributes
_HEADER = Struct(">qi9xh4xqq14xi")  # base offset, length, attributes, base and newest time, records
_SMALL = [varint(number) for number in range(MERGED_RECORDS)]


def worth_merging(batches: int, records: int, size: int, *, packed: bool) -> bool:
    """Whether a run of untouched batches should be merged."""
    least = 2 if records <= FEW_RECORDS * batches else WORTH_BATCHES
    return batches >= least and are_small(batches, records, size, packed=packed)


def are_small(batches: int, records: int, size: int, *, packed: bool) -> bool:
    """Whether batches, some of them compressed (``packed``) or none, are small enough on average."""
    if packed:
        return records <= FEW_RECORDS * batches and size <= WORTH_PACKED_BYTES * batches
    return records <= WORTH_RECORDS * batches and size <= WORTH_BYTES * batches


def merge(run: memoryview, *, records: int, max_bytes: int) -> list[Buffer]:
    """Merge a run of batches; one without a neighbour to merge with stays unchanged.

    Args:
        run: whole batches of magic 2, checked, dense, with offsets that follow one another, none of them control or
            LogAppendTime batches.
        records: how many there are in the run.
        max_bytes: most bytes of a merged batch; every batch of the run is smaller.

    Returns:
        Uncompressed batches, or batches with the codec that the batches of the run had.

    Raises:
        CorruptBatch: a batch cannot be opened.
    """
    return _merged(run, records, min(max_bytes, MERGED_BATCH_BYTES))


def merge_whole(run: memoryview, *, records: int) -> Buffer:
    """The one batch that :func:`merge` makes of just these batches, for comparisons; arguments as there.

    Raises:
        CorruptBatch: a batch cannot be opened, or they are more, or of other kinds, than are ever merged.
    """
    merged = _merged(run, records, _NO_LIMIT)
    if len(merged) != 1:
        raise CorruptBatch(f"{records} records that do not become one batch")
    return merged[0]


def _merged(run: memoryview, records: int, limit: int) -> list[Buffer]:
    if records < MANY_RECORDS:
        return _merge_slowly(run, limit)
    from mirror_pipeline.kafka.records.merge_native import join  # takes long, and tens of megabytes, where nothing is merged

    merged: list[Buffer] = []
    for part, plain in _parts(run):
        joined = join(part, records=records, max_bytes=limit, max_records=MERGED_RECORDS) if plain else None
        merged += _merge_slowly(part, limit) if joined is None else joined
    return merged


def _parts(run: memoryview) -> Iterator[tuple[memoryview, bool]]:
    """Stretches of uncompressed batches, and of others."""
    start = position = 0
    before = None
    unpack = _LOOK.unpack_from
    while position < len(run):
        length, attributes = unpack(run, position)
        plain = not attributes & (CODEC_MASK | LOG_APPEND_TIME)
        if before is not None and plain is not before:
            yield run[start:position], before
            start = position
        before = plain
        position += LOG_OVERHEAD + length
    if before is not None:
        yield run[start:], before


def _merge_slowly(run: memoryview, limit: int) -> list[Buffer]:
    limit -= HEADER_BYTES
    merged: list[Buffer] = []
    group = _MergedGroup()
    start = position = batches = 0
    unpack = _HEADER.unpack_from

    def close() -> None:
        merged.append(group.close() if batches > 1 else run[start:position])

    while position < len(run):
        base, length, attributes, first, _, records = unpack(run, position)
        stop = position + LOG_OVERHEAD + length
        if attributes & LOG_APPEND_TIME:
            raise CorruptBatch(f"batch at offset {base} has append times and cannot be merged")
        if records > MERGED_RECORDS:  # larger than what is made of many: not worth opening
            if batches:
                close()
            merged.append(run[position:stop])
            group, start, batches = _MergedGroup(), stop, 0
            position = stop
            continue
        codec = attributes & CODEC_MASK
        full = group.size + length + records * LONGER > limit or group.count + records > MERGED_RECORDS
        if batches and (full or codec != group.codec or leaf_of(base) != leaf_of(group.base)):
            close()
            group, start, batches = _MergedGroup(), position, 0
        if records == 1 and codec == UNCOMPRESSED:
            group.add_one(base, first, run[position + HEADER_BYTES : stop])
        else:
            group.add_many(base, codec, run[position:stop])
        position, batches = stop, batches + 1
    if batches:
        close()
    return merged


class _MergedGroup:
    """Records on their way into one merged batch."""

    __slots__ = ("base", "codec", "count", "latest", "parts", "size", "time")

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.count = self.size = self.codec = 0
        self.base = self.time = self.latest = 0

    def add_one(self, base: int, timestamp: int, body: memoryview) -> None:
        """The only record of an uncompressed batch: its deltas are one byte each."""
        at = 1
        while body[at - 1] & 0x80:  # its length
            at += 1
        attributes, delta = body[at], body[at + 1]
        if delta or body[at + 2]:  # a producer may write its base time differently from its first record's
            self.add_opened(base, timestamp, body)
            return
        self._first(base, timestamp, UNCOMPRESSED)
        self._put(timestamp, attributes, body[at + 3 :])

    def add_opened(self, base: int, timestamp: int, body: memoryview) -> None:
        """The same for a record whose deltas have to be read."""
        data = bytes(body)
        _, at = read_varint(data, 0)
        attributes = data[at]
        time, at = read_varlong(data, at + 1)
        _, at = read_varint(data, at)
        timestamp = int64(timestamp + time)
        self._first(base, timestamp, UNCOMPRESSED)
        self._put(timestamp, attributes, memoryview(data)[at:])

    def add_many(self, base: int, codec: int, batch: memoryview) -> None:
        """A batch of several records, or a compressed one."""
        for record in open_batch(batch):
            self._first(base, record.timestamp, codec)
            self._put(record.timestamp, record.attributes, memoryview(record.tail))

    def _first(self, base: int, timestamp: int, codec: int) -> None:
        if not self.parts:
            self.base, self.time, self.latest, self.codec = base, timestamp, timestamp, codec

    def _put(self, timestamp: int, attributes: int, tail: memoryview) -> None:
        delta, place = timestamp - self.time, _SMALL[self.count]
        time = _SMALL[delta] if 0 <= delta < MERGED_RECORDS else varint(int64(delta))
        length = 1 + len(time) + len(place) + len(tail)
        head = (_SMALL[length] if length < MERGED_RECORDS else varint(length)) + attributes.to_bytes(1, "big") + time + place
        self.parts += (head, tail)
        self.size += len(head) + len(tail)
        self.count += 1
        if timestamp > self.latest:
            self.latest = timestamp

    def close(self) -> bytes:
        """The batch."""
        body = b"".join(self.parts)
        if self.codec != UNCOMPRESSED:
            body = compress(self.codec, body)
        fields = CHECKED_FIELDS.pack(self.codec, self.count - 1, self.time, self.latest, -1, -1, -1, self.count)
        crc = crc32c(body, crc32c(fields), -1)
        return HEAD.pack(self.base, HEADER_BYTES - LOG_OVERHEAD + len(body), -1, 2, crc) + fields + body
