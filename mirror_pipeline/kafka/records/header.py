"""RecordBatch headers: walk, check and restamp them without touching the records.

Layout of magic 2 as in KIP-98 and Kafka's ``DefaultRecordBatch``. This is the hot path: it runs once for every
batch of gigabytes, so nothing here copies record bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.model import Stamp

Buffer: TypeAlias = "bytes | bytearray | memoryview"

HEADER_BYTES = 61
LOG_OVERHEAD = 12  # baseOffset and batchLength, which batchLength does not count
CRC_START = 21  # the CRC covers attributes to the end of the batch
LEGACY_CRC_START = 16  # magic 0 and 1: CRC-32 from the magic byte on
MAX_SEQUENCE = 0x7FFFFFFF

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
CODEC_MASK = 0x07

HEAD = Struct(">qiibI")  # baseOffset, batchLength, partitionLeaderEpoch, magic, crc
CHECKED_FIELDS = Struct(">hiqqqhii")  # attributes .. record count: what the CRC covers of the header
HEADER = Struct(">qiibIhiqqqhii")  # both
LENGTH = Struct(">8xi")  # batchLength alone
_LEGACY = Struct(">qiIbb")
_LEGACY_TIMESTAMP = Struct(">18xq")
_LEGACY_MINIMUM = {0: 26, 1: 34}


class BatchHeader(NamedTuple):
    """The header of one batch; ``size`` is the whole batch in bytes, times are milliseconds, -1 means "none".

    For magic 0 and 1 ``base_offset`` is the offset of the *last* record of a compressed wrapper (its first one is
    known only after opening), ``last_offset_delta`` is 0 and ``records`` is -1 when the message is a wrapper.
    """

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also when compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction (KIP-98)."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether this is a control batch (a transaction marker), never data."""
        return bool(self.attributes & CONTROL)

    @property
    def log_append_time(self) -> bool:
        """Whether all records carry the broker's append time, which is ``max_timestamp``."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def codec(self) -> int:
        """Compression: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def dense(self) -> bool:
        """Whether every offset holds a record; a broker refuses other batches, so they must be re-encoded."""
        return self.records == self.last_offset_delta + 1


def headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Walk the batches of a fetch answer or a span.

    Args:
        buffer: Whole batches one after the other; the last one may be cut off.

    Yields:
        Position and header of each complete batch; an incomplete trailing batch ends the walk.

    Raises:
        CorruptBatch: A length is negative or too small, or the magic byte is unknown.
    """
    unpack, make = HEADER.unpack_from, tuple.__new__
    position, end = 0, len(buffer)
    fast_end = end - HEADER_BYTES
    while position <= fast_end:
        offset, length, epoch, magic, crc, attributes, delta, base, last, pid, pepoch, sequence, records = unpack(buffer, position)
        if magic != 2 or length < 49:  # 49: a header without records
            header = _slow_header(buffer, position)
            if header is None:
                return
        else:
            size = length + 12
            if position + size > end:
                return
            header = make(BatchHeader, (offset, size, epoch, 2, crc, attributes, delta, base, last, pid, pepoch, sequence, records))
        yield position, header
        position += header.size
    while (header := _slow_header(buffer, position)) is not None:  # magic 0 and 1 can be shorter than a header
        yield position, header
        position += header.size


def _slow_header(buffer: Buffer, position: int) -> BatchHeader | None:
    """Header of a message of magic 0 or 1, None if it is incomplete, CorruptBatch if it is neither."""
    available = len(buffer) - position
    if available < LOG_OVERHEAD:
        return None
    size: int = LOG_OVERHEAD + LENGTH.unpack_from(buffer, position)[0]
    if size < _LEGACY_MINIMUM[0]:
        raise CorruptBatch(f"batch at byte {position} has length {size}")
    if available <= LEGACY_CRC_START:
        return None
    magic = buffer[position + LEGACY_CRC_START]
    minimum = HEADER_BYTES if magic == 2 else _LEGACY_MINIMUM.get(magic)
    if minimum is None:
        raise CorruptBatch(f"batch at byte {position} has magic {magic}, known are 0, 1 and 2")
    if size < minimum:
        raise CorruptBatch(f"batch at byte {position} has length {size}, less than a header of magic {magic}")
    if size > available:
        return None
    offset, _, crc, _, attributes = _LEGACY.unpack_from(buffer, position)
    timestamp: int = _LEGACY_TIMESTAMP.unpack_from(buffer, position)[0] if magic else -1
    records = -1 if attributes & CODEC_MASK else 1
    return BatchHeader(offset, size, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, records)


def check(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Make sure that a batch is whole: length, record count and checksum.

    Fewer records than offsets are fine (compaction leaves holes); more are not.

    Args:
        buffer: What ``headers`` walked.
        position: Where the batch starts.
        header: Its header.

    Raises:
        CorruptBatch: Something does not fit; the message names the offset.
    """
    end = position + header.size
    if header.magic != 2:
        _check_legacy(buffer, position, header)
        return
    if header.size < HEADER_BYTES or position < 0 or end > len(buffer):
        raise CorruptBatch(f"batch at offset {header.base_offset} is cut off: {header.size} bytes announced")
    if header.last_offset_delta < 0 or not 0 <= header.records <= header.last_offset_delta + 1:
        raise CorruptBatch(
            f"batch at offset {header.base_offset} announces {header.records} records for {header.last_offset_delta + 1} offsets"
        )
    # -1: the lock is released for inputs where that pays (32 KiB and more)
    computed = crc32c(memoryview(buffer)[position + CRC_START : end], 0, -1)
    if computed != header.crc:
        raise CorruptBatch(f"batch at offset {header.base_offset} has checksum {computed:#010x}, announced {header.crc:#010x}")


def _check_legacy(buffer: Buffer, position: int, header: BatchHeader) -> None:
    end = position + header.size
    if header.magic not in _LEGACY_MINIMUM or header.size < _LEGACY_MINIMUM[header.magic] or position < 0 or end > len(buffer):
        raise CorruptBatch(f"message at offset {header.base_offset} is cut off: {header.size} bytes announced")
    computed = zlib.crc32(memoryview(buffer)[position + LEGACY_CRC_START : end])
    if computed != header.crc:
        raise CorruptBatch(f"message at offset {header.base_offset} has checksum {computed:#010x}, announced {header.crc:#010x}")


def restamp(header: BatchHeader, batch: memoryview, producer: Stamp, sequence: int) -> bytes:
    """The new first 61 bytes of a produced batch; the bytes after them are sent unchanged.

    Base offset 0 and leader epoch -1 as brokers expect; the transactional bit and the delete horizon bit are
    cleared. With the delete horizon bit (KIP-534) ``baseTimestamp`` is the horizon, but record timestamps are
    relative to that very field (Kafka sources: ``MemoryRecordsBuilder`` sets ``baseTimestamp = deleteHorizonMs``,
    ``RecordIterator`` adds deltas to ``baseTimestamp()`` whatever the bit says), so clearing the bit alone keeps
    every record's time.

    Args:
        header: The header of ``batch``.
        batch: The batch, from its first byte.
        producer: Producer id and epoch to carry.
        sequence: Number of records written to the target partition before; reduced modulo 2^31 here, since Kafka
            continues with 0 after 2147483647, even within a batch.

    Raises:
        CorruptBatch: The batch is a control batch, not magic 2, or has holes: no broker takes these.
    """
    if header.magic != 2 or header.attributes & CONTROL or header.records != header.last_offset_delta + 1:
        raise CorruptBatch(
            f"batch at offset {header.base_offset} cannot be produced as it is: magic {header.magic}, "
            f"attributes {header.attributes:#x}, {header.records} records for {header.last_offset_delta + 1} offsets",
            hint="control batches are dropped; old formats and batches with holes are opened and sealed",
        )
    fields = CHECKED_FIELDS.pack(
        header.attributes & ~(TRANSACTIONAL | DELETE_HORIZON),
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        producer.producer_id,
        producer.producer_epoch,
        sequence & MAX_SEQUENCE,
        header.records,
    )
    crc = crc32c(batch[HEADER_BYTES : header.size], crc32c(fields), -1)
    return HEAD.pack(0, header.size - LOG_OVERHEAD, -1, 2, crc) + fields
