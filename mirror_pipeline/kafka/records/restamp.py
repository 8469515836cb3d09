"""Outgoing batches: one pass checks each batch again and sets producer id, epoch and sequence. The hot half of the write loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.header import (
    CHECKED_FIELDS,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEAD,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAX_SEQUENCE,
    TRANSACTIONAL,
    check,
    headers,
    restamp,
)
from mirror_pipeline.model import Stamp


class SequencedBatch(NamedTuple):
    """An outgoing batch: new header, unchanged rest; ``newest`` is the time of its newest record, ``size`` is in bytes.

    ``base`` is the source offset of its first record.
    """

    head: bytes
    rest: memoryview
    records: int
    newest: int
    size: int
    base: int


def assign_sequences(payload: memoryview, producer: Stamp, sequence: int, *, skip: int = 0) -> Iterator[SequencedBatch]:
    """Set producer id, epoch and sequence of a span's batches, as :func:`~mirror_pipeline.kafka.records.header.restamp` does for one.

    The old checksum is checked first, so that the new one cannot hide damage done in the buffer.

    Args:
        payload: whole batches.
        producer: the producer id and epoch that they carry on the target.
        sequence: number of records written to the target partition before the first batch.
        skip: number of leading records that are already on the target.

    Raises:
        CorruptBatch: a batch is damaged, or a broker would not accept it.
    """
    unpack, make, pack_head, pack = HEADER.unpack_from, tuple.__new__, HEAD.pack, CHECKED_FIELDS.pack
    producer_id, epoch = producer.producer_id, producer.producer_epoch
    at, last = 0, len(payload) - HEADER_BYTES
    while at <= last:
        base, length, _, magic, crc, attributes, delta, first, newest, _, _, _, records = unpack(payload, at)
        stop = at + length + LOG_OVERHEAD
        if skip > 0 and magic == 2 and at + HEADER_BYTES <= stop <= len(payload):
            skip -= records
            at = stop
            continue
        if (
            skip or magic != 2 or attributes & CONTROL or records != delta + 1 or records < 0
            or not at + HEADER_BYTES <= stop <= len(payload) or crc32c(payload[at + CRC_START : stop], 0, -1) != crc
        ):  # fmt: skip
            raise _wrong(payload[at:], producer)
        fresh = pack(
            attributes & ~(TRANSACTIONAL | DELETE_HORIZON), delta, first, newest, producer_id, epoch, sequence & MAX_SEQUENCE, records
        )
        rest = payload[at + HEADER_BYTES : stop]
        head = pack_head(0, length, -1, 2, crc32c(rest, crc32c(fresh), -1)) + fresh
        yield make(SequencedBatch, (head, rest, records, newest, stop - at, base))
        sequence += records
        at = stop
    if at != len(payload):
        raise _wrong(payload[at:], producer)


def _wrong(batches: memoryview, producer: Stamp) -> CorruptBatch:
    """What is wrong with the first batch."""
    try:
        for _, header in headers(batches):
            check(batches, 0, header)
            restamp(header, batches, producer, 0)
            return CorruptBatch(f"only a part of the batch at offset {header.base_offset} is on the target")
    except CorruptBatch as error:
        return error
    return CorruptBatch("the span ends in the middle of a batch")
