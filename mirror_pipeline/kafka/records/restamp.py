"""Batches on their way out: each checked once more and given its stamp, in one pass. The hot half of producing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.header import (
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEAD,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAX_SEQUENCE,
    STAMPED,
    TRANSACTIONAL,
    check,
    headers,
    restamp,
)
from mirror_pipeline.model import Stamp


class StampedBatch(NamedTuple):
    """A batch as it goes out: new header, untouched rest; ``newest`` is its newest record's time, ``size`` in bytes."""

    head: bytes
    rest: memoryview
    records: int
    newest: int
    size: int


def stamped(payload: memoryview, stamp: Stamp, sequence: int, *, skip: int = 0) -> Iterator[StampedBatch]:
    """The batches of a span, stamped as :func:`~mirror_pipeline.kafka.records.header.restamp` does.

    The new checksum must not hide damage that was done in the buffer, so the old one is checked first.

    Args:
        payload: whole batches.
        stamp: whose batches they become.
        sequence: records that were put into the target partition before the first batch.
        skip: records at the beginning that are on the target already.

    Raises:
        CorruptBatch: a batch is damaged, or is none that a broker takes.
    """
    unpack, make, pack_head, pack = HEADER.unpack_from, tuple.__new__, HEAD.pack, STAMPED.pack
    producer, producer_epoch = stamp.producer_id, stamp.producer_epoch
    at, last = 0, len(payload) - HEADER_BYTES
    while at <= last:
        _, length, _, magic, crc, attributes, delta, first, newest, _, _, _, records = unpack(payload, at)
        stop = at + length + LOG_OVERHEAD
        if skip > 0 and magic == 2 and at + HEADER_BYTES <= stop <= len(payload):
            skip -= records
            at = stop
            continue
        if (
            skip or magic != 2 or attributes & CONTROL or records != delta + 1 or records < 0
            or not at + HEADER_BYTES <= stop <= len(payload) or crc32c(payload[at + CRC_START : stop], 0, -1) != crc
        ):  # fmt: skip
            raise _wrong(payload[at:], stamp)
        fresh = pack(
            attributes & ~(TRANSACTIONAL | DELETE_HORIZON), delta, first, newest, producer, producer_epoch, sequence & MAX_SEQUENCE, records
        )
        rest = payload[at + HEADER_BYTES : stop]
        head = pack_head(0, length, -1, 2, crc32c(rest, crc32c(fresh), -1)) + fresh
        yield make(StampedBatch, (head, rest, records, newest, stop - at))
        sequence += records
        at = stop
    if at != len(payload):
        raise _wrong(payload[at:], stamp)


def _wrong(batches: memoryview, stamp: Stamp) -> CorruptBatch:
    """What is wrong with the first batch."""
    try:
        for _, header in headers(batches):
            check(batches, 0, header)
            restamp(header, batches, stamp, 0)
            return CorruptBatch(f"only a part of the batch at offset {header.base_offset} is on the target")
    except CorruptBatch as error:
        return error
    return CorruptBatch("the span ends in the middle of a batch")
