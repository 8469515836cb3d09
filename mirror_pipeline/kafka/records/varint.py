"""Zigzag varints of the v2 record format (KIP-98; Kafka sources: ``ByteUtils``)."""

from __future__ import annotations

from mirror_pipeline.errors import CorruptBatch

_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def varint(value: int) -> bytes:
    """Encode a signed number of at most 64 bits; one of 32 bits takes the same bytes as Kafka's int form."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Decode a signed 32-bit number: ``(value, position after it)``.

    Raises:
        CorruptBatch: More than 5 bytes.
        IndexError: The data ends inside; callers turn it into CorruptBatch once for a whole batch.
    """
    first = data[position]
    if first < 0x80:  # nearly always
        return (first >> 1) ^ -(first & 1), position + 1
    rest, position = _read(data, position, 28)
    rest &= 0xFFFFFFFF  # as Java's int does with the surplus bits of a fifth byte
    return (rest >> 1) ^ -(rest & 1), position


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """Decode a signed 64-bit number, at most 10 bytes; otherwise as ``read_varint``."""
    first = data[position]
    if first < 0x80:  # nearly always
        return (first >> 1) ^ -(first & 1), position + 1
    rest, position = _read(data, position, 63)
    rest &= 0xFFFFFFFFFFFFFFFF
    return (rest >> 1) ^ -(rest & 1), position


def _read(data: bytes, position: int, last_shift: int) -> tuple[int, int]:
    rest = shift = 0
    while True:
        byte = data[position]
        position += 1
        rest |= (byte & 0x7F) << shift
        if byte < 0x80:
            return rest, position
        shift += 7
        if shift > last_shift:
            raise CorruptBatch("a varint does not end")
