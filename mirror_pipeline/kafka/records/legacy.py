"""Messages of magic 0 and 1, single or in a compressed wrapper, turned into v2 tails.

Rules of offsets and times: KIP-31, KIP-32; Kafka sources: ``AbstractLegacyRecordBatch``. aiokafka's decoder is the
cross-check in the tests, not the tool: it does not look at inner checksums, bounds nothing and fails by assertion.
"""

from __future__ import annotations

import zlib
from struct import Struct

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.compression import CODEC_NAMES, LZ4, decompress
from mirror_pipeline.kafka.records.header import CODEC_MASK, LEGACY_CRC_START, LOG_OVERHEAD, BatchHeader
from mirror_pipeline.kafka.records.varint import varint

_MESSAGE = Struct(">qiIBB")  # offset, length, crc, magic, attributes
_LONG = Struct(">q")
_INT = Struct(">i")
_CONTENT = (18, 26)  # where the key length stands, for magic 0 and 1
_NO_HEADERS = varint(0)


def open_legacy(batch: bytes, header: BatchHeader) -> list[tuple[int, int, bytes]]:
    """Offset, timestamp (-1 for magic 0) and v2 tail of each record; the outer checksum is checked already.

    Raises:
        CorruptBatch: Malformed, also inside the wrapper.
    """
    magic = header.magic
    if not header.codec:
        return [(header.base_offset, header.max_timestamp, _tail(batch, _CONTENT[magic], len(batch)))]
    inner = _unwrap(batch, header)
    messages = _messages(inner, magic)
    shift = _shift(header, messages[-1][0])
    result, previous = [], -1
    for offset, timestamp, tail in messages:
        if offset <= previous:
            raise CorruptBatch(f"inner offset {offset} follows {previous}")
        previous = offset
        # the broker writes its append time into the wrapper only
        result.append((offset + shift, header.max_timestamp if header.log_append_time else timestamp, tail))
    return result


def _shift(header: BatchHeader, last_inner: int) -> int:
    """What turns inner offsets into absolute ones: magic 1 counts from 0 and gives the wrapper the last offset."""
    if header.magic == 0:
        return 0
    if header.base_offset == 0:  # some librdkafka versions left the wrapper's offset at 0
        return 0
    if header.base_offset < last_inner:
        raise CorruptBatch(f"inner offset {last_inner} is above the wrapper's")
    return header.base_offset - last_inner


def _unwrap(batch: bytes, header: BatchHeader) -> bytes:
    start, end = _span(batch, _CONTENT[header.magic], len(batch))  # the key, which a wrapper does not use
    start, end = _span(batch, end, len(batch))
    if start < 0:
        raise CorruptBatch("a wrapper message has no value")
    if end != len(batch):
        raise CorruptBatch("a wrapper message has a wrong length")
    if header.codec > LZ4:
        codec = CODEC_NAMES[header.codec] if header.codec < len(CODEC_NAMES) else header.codec
        raise CorruptBatch(f"codec {codec} in magic {header.magic}")
    data = batch[start:end]
    if header.codec == LZ4 and header.magic == 0:
        data = _repair_lz4(data)
    return decompress(header.codec, data)


def _messages(data: bytes, magic: int) -> list[tuple[int, int, bytes]]:
    messages: list[tuple[int, int, bytes]] = []
    position, total, least = 0, len(data), _CONTENT[magic] + 8
    while position < total:
        if position + least > total:
            raise CorruptBatch("an inner message is cut off")
        offset, length, crc, inner_magic, attributes = _MESSAGE.unpack_from(data, position)
        end = position + LOG_OVERHEAD + length
        if not position + least <= end <= total:
            raise CorruptBatch(f"an inner message has length {length}")
        if inner_magic != magic or attributes & CODEC_MASK:
            raise CorruptBatch(f"an inner message has magic {inner_magic} and attributes {attributes:#x}")
        if zlib.crc32(data[position + LEGACY_CRC_START : end]) != crc:
            raise CorruptBatch("an inner message does not match its checksum")
        timestamp: int = _LONG.unpack_from(data, position + 18)[0] if magic else -1
        messages.append((offset, timestamp, _tail(data, position + _CONTENT[magic], end)))
        position = end
    if not messages:
        raise CorruptBatch("a wrapper message is empty")
    return messages


def _tail(data: bytes, position: int, end: int) -> bytes:
    parts: list[bytes] = []
    for _ in range(2):
        start, position = _span(data, position, end)
        parts += (varint(-1),) if start < 0 else (varint(position - start), data[start:position])
    if position != end:
        raise CorruptBatch("a message has a wrong length")
    return b"".join((*parts, _NO_HEADERS))


def _span(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Start and end of a field that follows its length; start -1 for null."""
    start = position + 4
    if start > end:
        raise CorruptBatch("a message is cut off")
    length: int = _INT.unpack_from(data, position)[0]
    if length == -1:
        return -1, start
    if length < 0 or start + length > end:
        raise CorruptBatch(f"a field has length {length}")
    return start, start + length


def _repair_lz4(data: bytes) -> bytes:
    """Give a magic 0 frame the right header checksum: Kafka before 0.10 hashed four bytes too many (KAFKA-3160)."""
    if len(data) < 7:
        raise CorruptBatch("lz4 data is cut off")
    position = 6 + (8 if data[4] & 0x08 else 0) + (4 if data[4] & 0x01 else 0)
    right = _xxh32_short(data[4:position]) >> 8 & 0xFF
    return data[:position] + right.to_bytes(1, "big") + data[position + 1 :]


def _xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes, all that a frame header can have."""
    mask = 0xFFFFFFFF
    acc, words = (374761393 + len(data)) & mask, len(data) // 4 * 4
    for start in range(0, words, 4):
        acc = acc + int.from_bytes(data[start : start + 4], "little") * 3266489917 & mask
        acc = (acc << 17 | acc >> 15) * 668265263 & mask
    for byte in data[words:]:
        acc = acc + byte * 374761393 & mask
        acc = (acc << 11 | acc >> 21) * 2654435761 & mask
    acc = (acc ^ acc >> 15) * 2246822519 & mask
    acc = (acc ^ acc >> 13) * 3266489917 & mask
    return acc ^ acc >> 16
