"""Records of many uncompressed batches framed, moved and framed anew as arrays: the work of a loop over records, without the loop.

numpy finds where records begin, one record after the other but in all batches of a run at once, reads their deltas and
writes new ones; Arrow copies what lies between to its place, without the interpreter's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c
from numpy.typing import NDArray

from mirror_pipeline.wire.digest import LEAF_OFFSETS
from mirror_pipeline.wire.header import CRC_START, HEAD, HEADER, HEADER_BYTES, LOG_OVERHEAD, STAMPED
from mirror_pipeline.wire.varint import varint

Numbers: TypeAlias = NDArray[np.int64]
Octets: TypeAlias = NDArray[np.uint8]

_FURTHEST = 1 << 58
"""Milliseconds: times and deltas up to here, and what is made of them, do not overflow."""
_MOST_BYTES = 1 << 30
"""Of a run: Arrow's offsets are 32-bit numbers."""


def _steps() -> Numbers:
    """By the first two bytes of a record, little-endian: bytes to the next record; 0 where the length has a third byte."""
    low, high = np.arange(1 << 16) & 0x7F, np.arange(1 << 16) >> 8
    long = np.arange(1 << 16) & 0x80 != 0
    return np.where(long, np.where(high < 0x80, 2 + ((high << 7 | low) >> 1), 0), 1 + (low >> 1))


_STEPS = _steps()


@dataclass(frozen=True, slots=True)
class Run:
    """The records of a run of batches.

    By batch: ``starts`` in ``data``, ``bases``, base offsets, ``firsts``, numbers of the first records. By record: ``attributes``,
    ``times`` in milliseconds, and the bytes of ``data`` from ``tails`` to ``ends``, which hold key, value and headers.
    """

    data: memoryview
    starts: Numbers
    bases: Numbers
    firsts: Numbers
    attributes: Octets
    times: Numbers
    tails: Numbers
    ends: Numbers


def open_run(data: memoryview) -> Run | None:
    """Frame the records of whole uncompressed batches of magic 2 that have their producers' times.

    None where a record is not framed as producers do it, or a batch has holes: a slower reader has to say what is wrong.
    """
    if len(data) > _MOST_BYTES:
        return None
    starts, bases, base_times, counts = _heads(data)
    if counts.min() <= 0:
        return None
    try:
        return _open(data, starts, bases, base_times, counts)
    except IndexError:  # something points beyond the run
        return None


def _open(data: memoryview, starts: Numbers, bases: Numbers, base_times: Numbers, counts: Numbers) -> Run | None:
    octets = np.frombuffer(data, np.uint8)
    behind = np.cumsum(counts)
    firsts = behind - counts
    at, ends = _frames(octets, starts + HEADER_BYTES, counts)
    if not np.array_equal(ends[behind - 1], np.append(starts[1:], len(data))):
        return None
    attributes = octets[at]
    delta, at = _varints(octets, at + 1)
    place, tails = _varints(octets, at)
    expected = np.arange(len(ends)) - np.repeat(firsts, counts)
    if not np.array_equal(place, expected << 1) or (tails > ends).any():
        return None
    if int(delta.view(np.uint64).max()) >> 1 > _FURTHEST or int(abs(base_times).max()) > _FURTHEST:
        return None
    times = np.repeat(base_times, counts) + (delta >> 1 ^ -(delta & 1))
    return Run(data, starts, bases, firsts, attributes, times, tails, ends)


def join_run(run: Run, *, max_bytes: int, max_records: int) -> list[memoryview]:
    """The same records in fewer batches, each of whole batches of one leaf; a batch that stays alone stays as it is.

    Args:
        run: offsets must follow one another from batch to batch.
        max_bytes: of a batch that is made of several.
        max_records: of such a batch.
    """
    groups = _groups(run, max_bytes - HEADER_BYTES, max_records)
    firsts = run.firsts[groups]
    counts = np.diff(np.append(firsts, len(run.times)))
    base_times = run.times[firsts]
    made, edges = _gather(run, firsts, counts, base_times)
    latest = np.maximum.reduceat(run.times, firsts).tolist()
    starts = [*run.starts.tolist(), len(run.data)]
    out: list[memoryview] = []
    stops = [*groups[1:], len(run.bases)]
    rows = zip(groups, stops, edges[:-1], edges[1:], counts.tolist(), base_times.tolist(), latest, strict=True)
    for group, stop, start, end, records, first, last in rows:
        if stop == group + 1:
            out.append(run.data[starts[group] : starts[stop]])
            continue
        STAMPED.pack_into(made, start + CRC_START, 0, records - 1, first, last, -1, -1, -1, records)
        crc = crc32c(made[start + CRC_START : end], 0, -1)
        HEAD.pack_into(made, start, int(run.bases[group]), end - start - LOG_OVERHEAD, -1, 2, crc)
        out.append(made[start:end])
    return out


def _groups(run: Run, max_bytes: int, max_records: int) -> list[int]:
    """Numbers of the batches that begin a new batch, by what their records take at most."""
    lengths = run.ends - run.tails
    ahead = 1 + len(varint(int(run.times.max()) - int(run.times.min()))) + len(varint(max_records))
    ahead += len(varint(int(lengths.max()) + ahead))
    counts = np.diff(np.append(run.firsts, len(run.times)))
    sizes = (np.add.reduceat(lengths, run.firsts) + counts * ahead).tolist()
    groups, held, records, leaf = [0], 0, 0, -1
    leaves = (run.bases // LEAF_OFFSETS).tolist()
    for batch, (size, count) in enumerate(zip(sizes, counts.tolist(), strict=True)):
        if records and (held + size > max_bytes or records + count > max_records or leaves[batch] != leaf):
            groups.append(batch)
            held = records = 0
        leaf = leaves[batch]
        held += size
        records += count
    return groups


def _gather(run: Run, firsts: Numbers, counts: Numbers, base_times: Numbers) -> tuple[memoryview, list[int]]:
    """All records behind new framing, with room for a header before the first of each group; where groups begin, and the end."""
    total = len(run.times)
    times = run.times - np.repeat(base_times, counts)
    times = times << 1 ^ times >> 63
    places = np.arange(total) - np.repeat(firsts, counts) << 1
    time_sizes, place_sizes = _sizes(times), _sizes(places)
    ahead = 1 + time_sizes + place_sizes
    lengths = ahead + (run.ends - run.tails) << 1
    length_sizes = _sizes(lengths)
    sizes = length_sizes + ahead
    room = sizes.copy()
    room[firsts] += HEADER_BYTES
    behind = np.cumsum(room)
    framing = np.empty(int(behind[-1]), np.uint8)
    at = behind - sizes
    _put(framing, at, lengths, length_sizes)
    at = at + length_sizes
    framing[at] = run.attributes
    _put(framing, at + 1, times, time_sizes)
    _put(framing, at + 1 + time_sizes, places, place_sizes)
    left, right = np.zeros(2 * total + 1, np.int32), np.zeros(2 * total + 1, np.int32)
    left[1::2] = left[2::2] = behind
    right[1::2], right[2::2] = run.tails, run.ends
    turns = pa.Array.from_buffers(pa.bool_(), 2 * total, [None, pa.py_buffer(b"\x55" * (total // 4 + 1))])
    joined = pc.if_else(turns, _column(left, framing), _column(right, run.data))
    _, offsets, made = joined.buffers()
    return memoryview(made).cast("B"), np.frombuffer(offsets, np.int32)[np.append(2 * firsts, 2 * total)].tolist()


def _column(offsets: NDArray[np.int32], data: Octets | memoryview) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _heads(data: memoryview) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Of each batch: where it begins, its base offset, its base time, its number of records."""
    rows, at = [], 0
    while at < len(data):
        head = HEADER.unpack_from(data, at)
        rows.append((at, head[0], head[7], head[12]))
        at += LOG_OVERHEAD + head[1]
    starts, bases, times, counts = np.array(rows, np.int64).T
    return starts, bases, times, counts


def _frames(octets: Octets, starts: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Places behind the lengths of all records, in order, and their ends; all batches go on by one record at a time."""
    most = int(counts.max())
    order = np.argsort(-counts, kind="stable")  # those with most records first: the others drop out at the end
    live = (len(counts) - np.searchsorted(counts[order[::-1]], np.arange(most), side="right")).tolist()
    even = live[-1] == len(counts)
    words = np.ndarray(len(octets) - 1, "<u2", octets, strides=(1,))
    rows = np.zeros((most + 1, len(counts)), np.int64)
    rows[0] = starts if even else starts[order]

    def flat(rows: Numbers) -> Numbers:
        if even:
            return rows.T.reshape(-1)
        return rows.T[np.argsort(order)][np.arange(most) < counts[:, None]]

    for number, some in enumerate(live):
        at = rows[number, :some]
        np.add(at, _STEPS[words[at]], out=rows[number + 1, :some])
    begins, ends = flat(rows[:-1]), flat(rows[1:])
    if (begins < ends).all():
        return begins + 1 + (octets[begins] >> 7), ends
    for number, some in enumerate(live):
        length, at = _varints(octets, rows[number, :some])
        np.add(at, length >> 1, out=rows[number + 1, :some])
    return _varints(octets, flat(rows[:-1]))[1], flat(rows[1:])


def _varints(octets: Octets, at: Numbers) -> tuple[Numbers, Numbers]:
    """Numbers as they are written, still zigzag, and the places behind them.

    Raises:
        IndexError: beyond the end, or more than ten bytes.
    """
    first = octets[at]
    value = first.astype(np.int64)
    more = np.flatnonzero(first & 0x80)
    if not len(more):
        return value, at + 1
    if len(more) == len(first):
        second = octets[at + 1]
        if not (second & 0x80).any():
            return value & 0x7F | second.astype(np.int64) << 7, at + 2
    value &= 0x7F
    at = at + 1
    for shift in range(7, 70, 7):
        byte = octets[at[more]]
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        at[more] += 1
        more = more[byte >= 0x80]
        if not len(more):
            return value, at
    raise IndexError("a varint does not end")


def _sizes(numbers: Numbers) -> Numbers:
    """Bytes that each number, at least 0, takes as a varint."""
    sizes = np.ones(len(numbers), np.int64)
    most, limit = int(numbers.max()), 0x80
    while limit <= most:
        sizes += numbers >= limit
        limit <<= 7
    return sizes


def _put(out: Octets, at: Numbers, numbers: Numbers, sizes: Numbers) -> None:
    """Write varints of these sizes."""
    most = int(sizes.max())
    if most == 1:
        out[at] = numbers
        return
    rest, left = numbers, sizes
    for number in range(most):
        low = (rest & 0x7F | (left > 1) << 7).astype(np.uint8)
        if number == 0:
            out[at] = low
        else:
            here = left > 0
            out[(at + number)[here]] = low[here]
        rest, left = rest >> 7, left - 1
