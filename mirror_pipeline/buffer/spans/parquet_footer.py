"""Placing a payload into a Parquet file without handing it to a Parquet writer, which would copy it twice.

The writer is given an empty value; the payload is then written after the row group as a separate page, and the footer is
changed to point at it. That needs a page header and a few changed numbers in the footer. Both are in
Thrift's compact protocol (https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md), their fields in
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
NUMBERS = (I16, I32, I64)
MAGIC = b"PAR1"
LENGTH_BYTES = 4  # in front of a plain value, and of the footer's magic
MOST_PIECES = 512  # one call takes; POSIX's usual limit is 1024
# One call writes. For a large one ext4 takes huge pages, memory that a virtual machine's host has often yet to find: calls of 16 MiB were
# seen to copy 0.4 GB/s where those of 256 KiB copied 4 (Linux 6.18).
WRITE_BYTES = 2**18
DATA_PAGE, PLAIN, RLE = 0, 0, 3
ROW_GROUPS = 4  # of FileMetaData
COLUMNS, GROUP_BYTES, GROUP_COMPRESSED_BYTES = 1, 2, 6  # of RowGroup
COLUMN_METADATA = 3  # of ColumnChunk
CHUNK_BYTES, CHUNK_COMPRESSED_BYTES, DATA_PAGE_OFFSET, SIZE_STATISTICS = 6, 7, 9, 16  # of ColumnMetaData

Field: TypeAlias = tuple[int, bytes]
"""Type and value, the value as it stands in the footer."""
Fields: TypeAlias = dict[int, Field]


class Placed(NamedTuple):
    """Where a payload's page begins in the file, header included, and how long it is; in bytes."""

    offset: int
    size: int


def page_header(size: int) -> bytes:
    """What stands in front of one plain, uncompressed, required binary value of ``size`` bytes: page header and length."""
    number = {value: (I32, _encoded(value << 1)) for value in (1, DATA_PAGE, PLAIN, RLE, size + LENGTH_BYTES)}
    values = _struct({1: number[1], 2: number[PLAIN], 3: number[RLE], 4: number[RLE]})
    page = {1: number[DATA_PAGE], 2: number[size + LENGTH_BYTES], 3: number[size + LENGTH_BYTES], 5: (STRUCT, values)}
    return _struct(page) + size.to_bytes(LENGTH_BYTES, "little")


def placed(footer: bytes, pages: Mapping[int, Placed]) -> bytes:
    """The footer with the last column of some row groups moved.

    Args:
        footer: a file's metadata without length and magic.
        pages: row group number to the page that is the whole of its last column chunk.

    Raises:
        ValueError, IndexError, KeyError: this is not a Parquet footer.
    """
    metadata = _fields(footer)
    groups = _elements(metadata[ROW_GROUPS][1])
    for number, page in pages.items():
        group = _fields(groups[number])
        columns = _elements(group[COLUMNS][1])
        column = _fields(columns[-1])
        chunk = _fields(column[COLUMN_METADATA][1])
        more = page.size - _number(chunk[CHUNK_BYTES])
        chunk |= {CHUNK_BYTES: _long(page.size), CHUNK_COMPRESSED_BYTES: _long(page.size), DATA_PAGE_OFFSET: _long(page.offset)}
        chunk.pop(SIZE_STATISTICS, None)  # they are those of the empty value
        column[COLUMN_METADATA] = STRUCT, _struct(chunk)
        group[COLUMNS] = _structs([*columns[:-1], _struct(column)])
        for field in (GROUP_BYTES, GROUP_COMPRESSED_BYTES):
            group[field] = _long(_number(group[field]) + more)
        groups[number] = _struct(group)
    metadata[ROW_GROUPS] = _structs(groups)
    return _struct(metadata)


def place_pages(path: str, handle: int, pages: Mapping[int, Placed]) -> None:
    """Let a complete file's footer tell where its payloads lie.

    Args:
        path: of the file.
        handle: the descriptor it was written with.
        pages: as for :func:`placed`.
    """
    tail = len(MAGIC) + LENGTH_BYTES
    with open(path, "rb") as reader:
        end = reader.seek(-tail, os.SEEK_END)
        start = end - int.from_bytes(reader.read(LENGTH_BYTES), "little")
        reader.seek(start)
        footer = placed(reader.read(end - start), pages)
    os.ftruncate(handle, start)
    os.lseek(handle, start, os.SEEK_SET)
    write_all(handle, [footer, len(footer).to_bytes(LENGTH_BYTES, "little"), MAGIC])


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
            if kind in NUMBERS:  # almost all of them
                while data[at] > 0x7F:
                    at += 1
                at += 1
            elif kind > FALSE:  # a field's boolean is its type
                at = _end(data, at, kind)
        return at + 1
    if kind in NUMBERS:
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


def _elements(data: bytes) -> list[bytes]:
    """The structs of a list, each as it stands."""
    count, _, at = _list(data, 0)
    found = []
    for _ in range(count):
        end = _end(data, at, STRUCT)
        found.append(data[at:end])
        at = end
    return found


def _fields(data: bytes) -> Fields:
    """The fields of a struct, each as it stands."""
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


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _long(value: int) -> Field:
    return I64, _encoded(value << 1)


def _number(field: Field) -> int:
    return _varint(field[1], 0)[0] >> 1  # none of those asked for is negative


def _structs(elements: Sequence[bytes]) -> Field:
    size = len(elements)
    head = bytes([size << 4 | STRUCT]) if size < 15 else bytes([0xF0 | STRUCT]) + _encoded(size)
    return LIST, head + b"".join(elements)


def _struct(fields: Fields) -> bytes:
    parts, last = [], 0
    for field in sorted(fields):
        kind, value = fields[field]
        step = field - last
        parts += [bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _encoded(field << 1), value]
        last = field
    return b"".join([*parts, b"\0"])
