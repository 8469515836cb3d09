"""Uncompressed batches written as fewer ones, as machine code: a loop over their records that costs hardly more than the copy.

Compiled code does not notice when it leaves an array, so every place is compared with the end of its batch before it is used.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from mirror_pipeline.wire.buffers import BufferPool
from mirror_pipeline.wire.compiled import compiled, types
from mirror_pipeline.wire.digest import LEAF_OFFSETS
from mirror_pipeline.wire.header import CODEC_MASK, CRC_START, HEADER_BYTES, LOG_APPEND_TIME, LOG_OVERHEAD
from mirror_pipeline.wire.records import LONGER

_LENGTH, _CRC = Struct(">i"), Struct(">I")
_AT_LENGTH, _AT_EPOCH, _AT_CRC, _AT_DELTA, _AT_TIME, _AT_LATEST, _AT_PRODUCER, _AT_COUNT = 8, 12, 17, 23, 27, 35, 43, 57
_made = BufferPool(48)  # of half a megabyte: what two tasks hold before they write
_PACKED = CODEC_MASK | LOG_APPEND_TIME
_INT, _LONG = 5, 10  # most bytes of a varint
_Octets = NDArray[np.uint8]
_READ, _WRITE = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.uint8, 1, "C")
_int64 = types.int64


def join(run: memoryview, *, records: int, max_bytes: int, max_records: int) -> list[memoryview] | None:
    """The same records in fewer batches, each of whole batches of one leaf; a batch that stays alone stays as it is.

    Args:
        run: whole batches of magic 2, their checksums verified; offsets follow one another from batch to batch.
        records: how many there are in the run.
        max_bytes: of a batch that is made of several.
        max_records: of such a batch.

    Returns:
        None where batches are compressed, have append times or holes, or a record is not framed as producers do it:
        a slower reader has to look.
    """
    made = _made.take(len(run) + records * LONGER)
    end = _join(np.frombuffer(run, np.uint8), np.frombuffer(made, np.uint8), max_bytes, max_records)
    if end < 0:
        return None
    at, joined = 0, []
    while at < end:
        stop = at + LOG_OVERHEAD + _LENGTH.unpack_from(made, at + _AT_LENGTH)[0]
        _CRC.pack_into(made, at + _AT_CRC, crc32c(made[at + CRC_START : stop], 0, -1))
        joined.append(made[at:stop])
        at = stop
    return joined


@compiled(_int64(_READ, _int64, _int64))
def _number(data: _Octets, at: int, size: int) -> int:
    """A signed number of so many bytes, the highest first."""
    number = 0
    for place in range(at, at + size):
        number = number << 8 | data[place]
    unused = 64 - 8 * size
    return number << unused >> unused


@compiled(types.void(_WRITE, _int64, _int64, _int64))
def _put_number(out: _Octets, at: int, size: int, number: int) -> None:
    for place in range(at + size - 1, at - 1, -1):
        out[place] = number & 0xFF
        number >>= 8


@compiled(types.UniTuple(_int64, 2)(_READ, _int64, _int64, _int64))
def _varint(data: _Octets, at: int, end: int, most: int) -> tuple[int, int]:
    """The number at ``at`` and the place behind it, -1 when it is longer than ``most`` bytes or reaches beyond ``end``."""
    number = 0
    for place in range(at, min(end, at + most)):
        octet = data[place]
        number |= (octet & 0x7F) << 7 * (place - at)
        if octet < 0x80:
            return number >> 1 & 0x7FFF_FFFF_FFFF_FFFF ^ -(number & 1), place + 1
    return 0, -1


@compiled(_int64(_int64))
def _varint_size(number: int) -> int:
    rest, size = number << 1 ^ number >> 63, 1
    while rest & ~0x7F:
        rest = rest >> 7 & 0x1FF_FFFF_FFFF_FFFF
        size += 1
    return size


@compiled(_int64(_WRITE, _int64, _int64))
def _put_varint(out: _Octets, at: int, number: int) -> int:
    """Returns the place behind it."""
    rest = number << 1 ^ number >> 63
    while rest & ~0x7F:
        out[at] = rest & 0x7F | 0x80
        rest = rest >> 7 & 0x1FF_FFFF_FFFF_FFFF
        at += 1
    out[at] = rest
    return at + 1


@compiled(_int64(_READ, _int64, _int64, _WRITE, _int64))
def _copy(data: _Octets, start: int, end: int, out: _Octets, to: int) -> int:
    """Returns the place behind what was copied."""
    source, target = np.uint64(start), np.uint64(to)
    for number in range(np.uint64(end - start)):  # an index that may be negative costs three times as much
        out[target + number] = data[source + number]
    return to + end - start


@compiled(types.UniTuple(_int64, 3)(_READ, _int64, _int64, _WRITE, _int64, _int64, _int64, _int64))
def _append(data: _Octets, at: int, stop: int, out: _Octets, to: int, place: int, base_time: int, latest: int) -> tuple[int, int, int]:
    """Write the records of the batch from ``at`` to ``stop`` from ``to`` on, the first as number ``place`` of its new batch.

    Returns the place behind them, or -1, and the new batch's base time and latest time.
    """
    own_time, count = _number(data, at + _AT_TIME, 8), _number(data, at + _AT_COUNT, 4)
    at += HEADER_BYTES
    for own_place in range(count):
        length, at = _varint(data, at, stop, _INT)
        end = at + length
        if at < 0 or length <= 0 or end > stop:
            return -1, 0, 0
        attributes = data[at]
        delta, at = _varint(data, at + 1, end, _LONG)
        if at < 0:
            return -1, 0, 0
        written, at = _varint(data, at, end, _INT)
        if at < 0 or written != own_place:
            return -1, 0, 0
        time = own_time + delta
        if not place:
            base_time = latest = time
        latest = max(latest, time)
        to = _put_varint(out, to, 1 + _varint_size(time - base_time) + _varint_size(place) + end - at)
        out[to] = attributes
        to = _put_varint(out, _put_varint(out, to + 1, time - base_time), place)
        to = _copy(data, at, end, out, to)
        place += 1
        at = end
    return to if at == stop else -1, base_time, latest


@compiled(types.void(_WRITE, _int64, _int64, _int64, _int64, _int64, _int64))
def _put_header(out: _Octets, at: int, end: int, base: int, base_time: int, latest: int, records: int) -> None:
    """All of it but the checksum."""
    _put_number(out, at, 8, base)
    _put_number(out, at + _AT_LENGTH, 4, end - at - LOG_OVERHEAD)
    _put_number(out, at + _AT_EPOCH, 4, -1)
    out[at + _AT_CRC - 1] = 2
    _put_number(out, at + CRC_START, 2, 0)
    _put_number(out, at + _AT_DELTA, 4, records - 1)
    _put_number(out, at + _AT_TIME, 8, base_time)
    _put_number(out, at + _AT_LATEST, 8, latest)
    for place in range(at + _AT_PRODUCER, at + _AT_COUNT):  # producer id, epoch and sequence: -1
        out[place] = 0xFF
    _put_number(out, at + _AT_COUNT, 4, records)


@compiled(_int64(_READ, _WRITE, _int64, _int64))
def _join(data: _Octets, out: _Octets, max_bytes: int, max_records: int) -> int:
    """Returns the place behind the last batch in ``out``, or -1."""
    at = to = first = begin = batches = records = base = base_time = latest = 0
    while at < len(data):
        if at + HEADER_BYTES > len(data):
            return -1
        stop = at + LOG_OVERHEAD + _number(data, at + _AT_LENGTH, 4)
        count, offset = _number(data, at + _AT_COUNT, 4), _number(data, at, 8)
        if not at + HEADER_BYTES <= stop <= len(data) or count <= 0 or _number(data, at + CRC_START, 2) & _PACKED:
            return -1
        most = stop - at - HEADER_BYTES + count * LONGER
        full = to - begin + most > max_bytes or records + count > max_records
        if batches and (full or offset // LEAF_OFFSETS != base // LEAF_OFFSETS):
            if batches == 1:
                to = _copy(data, first, at, out, begin)
            else:
                _put_header(out, begin, to, base, base_time, latest, records)
            batches = records = 0
        if not batches:
            first, begin, base = at, to, offset
            to += HEADER_BYTES
        if to + most > len(out):
            return -1
        to, base_time, latest = _append(data, at, stop, out, to, records, base_time, latest)
        if to < 0:
            return -1
        at, batches, records = stop, batches + 1, records + count
    if batches == 1:
        to = _copy(data, first, at, out, begin)
    elif batches:
        _put_header(out, begin, to, base, base_time, latest, records)
    return to
