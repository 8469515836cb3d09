"""What is inside a record's tail: key, value, headers. For comparing; the data path never looks."""

from __future__ import annotations

from typing import NamedTuple

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.header import Buffer
from mirror_pipeline.kafka.records.records import OpenRecord, open_batch
from mirror_pipeline.kafka.records.varint import read_varint, varint


class Record(NamedTuple):
    """A record in full; None and empty are distinct, header keys are bytes since Kafka does not check them."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def decode(batch: Buffer) -> list[Record]:
    """The records of one batch of any magic and codec, with key, value and headers.

    Raises:
        CorruptBatch: As ``open_batch``, or a record's content is malformed.
    """
    return [content(record) for record in open_batch(batch)]


def content(record: OpenRecord) -> Record:
    """Parse the tail of an opened record.

    Raises:
        CorruptBatch: Lengths do not add up.
    """
    tail = record.tail
    try:
        key, position = _read_bytes(tail, 0)
        value, position = _read_bytes(tail, position)
        count, position = read_varint(tail, position)
        if not 0 <= count <= len(tail):
            raise CorruptBatch(f"the record at offset {record.offset} announces {count} headers")
        pairs = []
        for _ in range(count):
            name, position = _read_bytes(tail, position)
            if name is None:
                raise CorruptBatch(f"the record at offset {record.offset} has a header without a key")
            data, position = _read_bytes(tail, position)
            pairs.append((name, data))
    except IndexError as error:
        raise CorruptBatch(f"the record at offset {record.offset} is cut off") from error
    if position != len(tail):
        raise CorruptBatch(f"the record at offset {record.offset} has a wrong length")
    return Record(record.offset, record.timestamp, key, value, tuple(pairs))


def tail_of(key: bytes | None, value: bytes | None, headers: tuple[tuple[bytes, bytes | None], ...] = ()) -> bytes:
    """The tail of a record with this content; the opposite of ``content``."""
    parts = [_bytes(key), _bytes(value), varint(len(headers))]
    for name, data in headers:
        parts += (_bytes(name), _bytes(data))
    return b"".join(parts)


def _bytes(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:  # Kafka writes -1 and reads any negative length as null
        return None, position
    end = position + length
    if end > len(data):
        raise IndexError
    return data[position:end], end
