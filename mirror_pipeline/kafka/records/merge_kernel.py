"""What joins batches, for :mod:`mirror_pipeline.kafka.records.machine_code`; only a process that compiles it imports this, and numba.

Compiled code does not notice when it leaves an array, so every place is compared with the end of its batch before it is used.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np
from numpy.typing import NDArray

from mirror_pipeline.kafka.records.header import CODEC_MASK, CRC_START, HEADER_BYTES, LOG_APPEND_TIME, LOG_OVERHEAD

Octets: TypeAlias = NDArray[np.uint8]  # or a pointer
_types: Any = numba.types
_pointer, _number64 = _types.CPointer(_types.uint8), _types.int64
SIGNATURE = _number64(_pointer, _number64, _pointer, *[_number64] * 5)

_AT_LENGTH, _AT_EPOCH, _AT_CRC, _AT_DELTA, _AT_TIME, _AT_LATEST, _AT_PRODUCER, _AT_COUNT = 8, 12, 17, 23, 27, 35, 43, 57
_PACKED = CODEC_MASK | LOG_APPEND_TIME
_INT, _LONG = 5, 10  # most bytes of a varint
_inner = numba.njit(error_model="numpy")


@_inner
def _number(data: Octets, at: int, size: int) -> int:
    """A signed number of this many bytes, the highest first."""
    number = 0
    for place in range(at, at + size):
        number = number << 8 | data[place]
    unused = 64 - 8 * size
    return number << unused >> unused


@_inner
def _put_number(out: Octets, at: int, size: int, number: int) -> None:
    for place in range(at + size - 1, at - 1, -1):
        out[place] = number & 0xFF
        number >>= 8


@_inner
def _varint(data: Octets, at: int, end: int, most: int) -> tuple[int, int]:
    """The number at ``at`` and the place behind it, -1 when it is longer than ``most`` bytes or reaches beyond ``end``."""
    number = 0
    for place in range(at, min(end, at + most)):
        octet = data[place]
        number |= (octet & 0x7F) << 7 * (place - at)
        if octet < 0x80:
            return number >> 1 & 0x7FFF_FFFF_FFFF_FFFF ^ -(number & 1), place + 1
    return 0, -1


@_inner
def _varint_size(number: int) -> int:
    rest, size = number << 1 ^ number >> 63, 1
    while rest & ~0x7F:
        rest = rest >> 7 & 0x1FF_FFFF_FFFF_FFFF
        size += 1
    return size


@_inner
def _put_varint(out: Octets, at: int, number: int) -> int:
    """Returns the place behind it."""
    rest = number << 1 ^ number >> 63
    while rest & ~0x7F:
        out[at] = rest & 0x7F | 0x80
        rest = rest >> 7 & 0x1FF_FFFF_FFFF_FFFF
        at += 1
    out[at] = rest
    return at + 1


@_inner
def _copy(data: Octets, start: int, end: int, out: Octets, to: int) -> int:
    """Returns the place behind what was copied."""
    source, target = np.uint64(start), np.uint64(to)
    for number in range(np.uint64(end - start)):  # an index that may be negative costs three times as much
        out[target + number] = data[source + number]
    return to + end - start


@_inner
def _append(data: Octets, at: int, stop: int, out: Octets, to: int, place: int, base_time: int, latest: int) -> tuple[int, int, int]:
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


@_inner
def _put_header(out: Octets, at: int, end: int, base: int, base_time: int, latest: int, records: int) -> None:
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


@_inner
def join_records(data: Octets, size: int, out: Octets, room: int, max_bytes: int, max_records: int, longer: int, leaf: int) -> int:
    """Join the batches of ``data``, ``size`` bytes, in ``out``, which has ``room``.

    Args:
        data: whole batches of magic 2; offsets follow one another from batch to batch.
        size: of ``data``.
        out: where to write; checksums are left out.
        room: of ``out``.
        max_bytes: of a batch that is made of several.
        max_records: of such a batch.
        longer: by how many bytes a record may grow at most.
        leaf: offsets of a leaf, a power of two: a batch ends where one does.

    Returns:
        The place behind the last batch in ``out``, or -1 where a batch is compressed, has append times or is not as it should be.
    """
    at = to = first = begin = batches = records = base = base_time = latest = 0
    while at < size:
        if at + HEADER_BYTES > size:
            return -1
        stop = at + LOG_OVERHEAD + _number(data, at + _AT_LENGTH, 4)
        count, offset = _number(data, at + _AT_COUNT, 4), _number(data, at, 8)
        if not at + HEADER_BYTES <= stop <= size or count <= 0 or _number(data, at + CRC_START, 2) & _PACKED:
            return -1
        most = stop - at - HEADER_BYTES + count * longer
        full = to - begin + most > max_bytes or records + count > max_records
        if batches and (full or offset & -leaf != base & -leaf):
            if batches == 1:
                to = _copy(data, first, at, out, begin)
            else:
                _put_header(out, begin, to, base, base_time, latest, records)
            batches = records = 0
        if not batches:
            first, begin, base = at, to, offset
            to += HEADER_BYTES
        if to + most > room:
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
