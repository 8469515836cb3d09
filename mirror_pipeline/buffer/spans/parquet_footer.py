"""The parts of Parquet files that no library writes for us: footers taken apart and put together, and payloads that are not copied.

A footer is in Thrift's compact protocol (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), its fields in
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
THRIFT_NUMBERS = (I16, I32, I64)
MOST_PIECES = 512  # one call takes; POSIX's usual limit is 1024
# One call writes. For a large one ext4 takes huge pages, memory that a virtual machine's host has often yet to find: calls of 16 MiB were
# seen to copy 0.4 GB/s where those of 256 KiB copied 4 (Linux 6.18).
WRITE_BYTES = 2**18

Field: TypeAlias = tuple[int, bytes]
"""Type and value, the value as it stands in the footer."""
Fields: TypeAlias = dict[int, Field]


def write_all(handle: int, pieces: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write all of them where the descriptor stands, without joining them first and not too much at once."""
    waiting = deque(memoryview(piece) for piece in pieces if len(piece))
    while waiting:
        chosen, size = [], 0
        for piece in islice(waiting, MOST_PIECES):
            chosen.append(piece[: WRITE_BYTES - size])
            size += len(chosen[-1])
            if size >= WRITE_BYTES:
                break
        written = os.writev(handle, chosen)
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.popleft())
        if written:
            waiting[0] = waiting[0][written:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) > 0x7F:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1


def _end(data: bytes, at: int, kind: int) -> int:
    """Where the value of that type that begins at ``at`` ends."""
    if kind == STRUCT:
        while head := data[at]:
            at += 1
            if not head >> 4:
                at = _end(data, at, I16)
            kind = head & 0x0F
            if kind in THRIFT_NUMBERS:  # almost all of them
                while data[at] > 0x7F:
                    at += 1
                at += 1
            elif kind > FALSE:  # a field's boolean is its type
                at = _end(data, at, kind)
        return at + 1
    if kind in THRIFT_NUMBERS:
        return _varint(data, at)[1]
    if kind == BINARY:
        size, at = _varint(data, at)
        return at + size
    if kind in (LIST, SET):
        count, each, at = _list(data, at)
        for _ in range(count):
            at = _end(data, at, each)
        return at
    if kind in (TRUE, FALSE, BYTE):
        return at + 1
    if kind == DOUBLE:
        return at + 8
    raise ValueError(f"type {kind} in a Parquet footer")


def _list(data: bytes, at: int) -> tuple[int, int, int]:
    """Count and type of a list's elements, and where they begin."""
    head = data[at]
    if head >> 4 != 15:
        return head >> 4, head & 0x0F, at + 1
    count, at = _varint(data, at + 1)
    return count, head & 0x0F, at


def fields_of(data: bytes) -> Fields:
    """The fields of a struct, each as it stands. Raises ValueError or IndexError if it is none."""
    fields: Fields = {}
    field = at = 0
    while head := data[at]:
        at += 1
        kind = head & 0x0F
        if head >> 4:
            field += head >> 4
        else:
            number, at = _varint(data, at)
            field = number >> 1
        end = at if kind in (TRUE, FALSE) else _end(data, at, kind)
        fields[field] = (kind, data[at:end])
        at = end
    if at + 1 != len(data):
        raise ValueError(f"{len(data) - at - 1} bytes after a struct of a Parquet footer")
    return fields


def encoded(value: int) -> bytes:
    """A number that is not negative; fields hold such a number doubled."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def list_of_structs(elements: Sequence[bytes]) -> Field:
    """A field that is a list of structs."""
    size = len(elements)
    head = bytes([size << 4 | STRUCT]) if size < 15 else bytes([0xF0 | STRUCT]) + encoded(size)
    return LIST, head + b"".join(elements)


def struct_of(fields: Fields) -> bytes:
    """A struct with these fields."""
    parts, last = [], 0
    for field in sorted(fields):
        kind, value = fields[field]
        step = field - last
        parts += [bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + encoded(field << 1), value]
        last = field
    return b"".join([*parts, b"\0"])
