"""A span as it stands in a part file: a Parquet row group of one row, encoded here.

Of such a row group all but a few numbers is the same each time, so it is put together from prepared bytes, with the payload last, as it
came. A Parquet writer takes several times as long for it, and copies the payload. The file's schema is pyarrow's own.

    "PAR1" | pages of span 0, the payload last | pages of span 1 ... | footer: schema, where each page lies | its length | "PAR1"

Fields of the structs: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pipeline import __version__
from mirror_pipeline.buffer.spans.parquet_footer import BINARY, I64, encoded, fields_of, list_of_structs, struct_of
from mirror_pipeline.buffer.tables.schema import SPANS, TableSpec
from mirror_pipeline.model import Hole, LeafDigest, SpanRef

MAGIC = b"PAR1"
LENGTH_BYTES = 4  # in front of a plain value, and of the footer's magic
PARQUET_WRITER = f"mirror-pipeline version {__version__}".encode()  # the form that Parquet's readers expect
ROWS, ROW_GROUPS, CREATED_BY = 3, 4, 6  # of FileMetaData
PHYSICAL = {"INT32": 1, "INT64": 2, "BYTE_ARRAY": 6}
_INT, _LONG, _LENGTH = struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<I")
_END = b"\0"


class Page(NamedTuple):
    """A page with its header; how many values it has (of a list without elements: one); the only one, for the statistics."""

    body: bytes
    values: int = 1
    value: bytes = b""


@lru_cache(maxsize=4096)
def _number(value: int) -> bytes:
    """A number that is not negative, as a field's value."""
    return encoded(value << 1)


def _head(size: int, count: int = 1) -> bytes:
    """PageHeader of a data page of ``size`` bytes: plain values, levels as runs."""
    length = encoded(size << 1)
    return b"".join((b"\x15\0\x15", length, b"\x15", length, b"\x2c\x15", encoded(count << 1), b"\x15\0\x15\x06\x15\x06", _END, _END))


_INT_HEAD, _LONG_HEAD = _head(_INT.size), _head(_LONG.size)


def _long(value: int) -> Page:
    body = _LONG.pack(value)
    return Page(_LONG_HEAD + body, 1, body)


@lru_cache(maxsize=4096)
def _int(value: int) -> Page:
    body = _INT.pack(value)
    return Page(_INT_HEAD + body, 1, body)


@lru_cache(maxsize=4096)
def _text(value: str) -> Page:
    """Topics and incarnations come again and again."""
    body = value.encode()
    return Page(_head(LENGTH_BYTES + len(body)) + _LENGTH.pack(len(body)) + body, 1, body)


def _plain(values: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(value)) + value for value in values)


def _run(count: int, level: int) -> bytes:
    return encoded(count << 1) + bytes((level,)) if count else b""


def _of_list(values: bytes, count: int, level: int) -> Page:
    """The page of one list's elements; ``level`` is the definition level of an element, one less that of an empty list."""
    repetition = _run(1, 0) + _run(count - 1, 1) if count else _run(1, 0)
    definition = _run(max(1, count), level if count else level - 1)
    body = _LENGTH.pack(len(repetition)) + repetition + _LENGTH.pack(len(definition)) + definition + values
    return Page(_head(len(body), max(1, count)) + body, max(1, count))


def _longs(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


@lru_cache(maxsize=16)
def _hole_pages(holes: tuple[Hole, ...]) -> tuple[Page, Page, Page]:
    """Hardly a span has any."""
    count, causes = len(holes), _plain([hole.cause.value.encode() for hole in holes])
    starts, ends = _longs([hole.start for hole in holes]), _longs([hole.end for hole in holes])
    return _of_list(starts, count, 1), _of_list(ends, count, 1), _of_list(causes, count, 1)


def _digest_pages(digests: tuple[LeafDigest, ...]) -> tuple[Page, Page, Page]:
    count, sums = len(digests), _plain([each.digest for each in digests])
    leaves, records = _longs([each.leaf for each in digests]), _longs([each.records for each in digests])
    return _of_list(leaves, count, 2), _of_list(sums, count, 2), _of_list(records, count, 2)


def _pages(span: SpanRef, staged_at: int) -> Iterator[Page]:
    """The pages in the order of the columns; of the payload's page all but the payload."""
    yield _text(span.topic)
    yield _int(span.partition)
    yield _text(span.incarnation)
    yield from map(_long, (span.start, span.end, span.records, span.batches, span.bytes))
    yield from map(_long, (span.min_timestamp, span.max_timestamp, staged_at * 1000))
    yield from _hole_pages(span.holes)
    yield from _digest_pages(span.digests)
    yield Page(_head(LENGTH_BYTES + span.bytes) + _LENGTH.pack(span.bytes))


class _Leaf(NamedTuple):
    """What a column's description begins with, and whether it has statistics."""

    begin: bytes
    counted: bool


class RowGroup(NamedTuple):
    """What stands in the file before the payload, and what the footer says of the row group."""

    pages: bytes
    described: bytes


class SpanFormat:
    """The row groups and the footer of one table's part files; without state, shared by all that write them."""

    def __init__(self, spec: TableSpec = SPANS) -> None:
        sink = pa.BufferOutputStream()
        pq.ParquetWriter(sink, SPANS.file_schema, compression="none", use_dictionary=False, store_schema=False).close()
        empty = sink.getvalue()
        data = empty.to_pybytes()
        end = len(data) - len(MAGIC) - LENGTH_BYTES
        self._footer = fields_of(data[end - _LENGTH.unpack_from(data, end)[0] : end])
        self._footer[CREATED_BY] = BINARY, encoded(len(PARQUET_WRITER)) + PARQUET_WRITER
        schema = pq.ParquetFile(pa.BufferReader(empty)).schema
        columns = [schema.column(index) for index in range(len(schema.names))]
        self._leaves = [_Leaf(_begin(column.physical_type, column.path), column.path in spec.skipping) for column in columns]

    def row_group(self, span: SpanRef, staged_at: int, at: int) -> RowGroup:
        """One span's row group; the caller writes the payload after its pages.

        Args:
            span: what the payload is; where it lies does not matter.
            staged_at: milliseconds since the epoch.
            at: where in the file the row group begins.
        """
        pages = tuple(_pages(span, staged_at))
        chunks, begin, last = [b"\x19\xfc", encoded(len(pages))], at, len(pages) - 1
        for index, (leaf, (body, count, value)) in enumerate(zip(self._leaves, pages, strict=True)):
            length = len(body) if index < last else len(body) + span.bytes
            sizes = _number(length)
            chunks += (leaf.begin, _number(count), b"\x16", sizes, b"\x16", sizes, b"\x26", _number(at))
            chunks.append(_bounds(value) if leaf.counted else b"\0\0")
            at += length
        total = _number(at - begin)
        chunks += (b"\x16", total, b"\x16\x02\x26", _number(begin), b"\x16", total, _END)
        return RowGroup(b"".join([body for body, _, _ in pages]), b"".join(chunks))

    def tail(self, described: Sequence[bytes]) -> bytes:
        """The footer of a file with these row groups, with all that comes after it."""
        rows = I64, encoded(len(described) << 1)
        footer = struct_of({**self._footer, ROWS: rows, ROW_GROUPS: list_of_structs(described)})
        return footer + _LENGTH.pack(len(footer)) + MAGIC


def _begin(kind: str, path: str) -> bytes:
    """ColumnChunk and its ColumnMetaData up to the number of values: type, encodings (plain, runs), path, no compression."""
    names = [name.encode() for name in path.split(".")]
    listed = bytes((len(names) << 4 | BINARY,)) + b"".join(encoded(len(name)) + name for name in names)
    return b"".join((b"\x26\0\x1c\x15", encoded(PHYSICAL[kind] << 1), b"\x19\x25\0\x06\x19", listed, b"\x15\0\x16"))


@lru_cache(maxsize=4096)
def _bounds(value: bytes) -> bytes:
    """Statistics of a column's only value, and the end of the column's description."""
    length = encoded(len(value))
    return b"".join((b"\x3c\x36\0\x28", length, value, b"\x18", length, value, _END, _END, _END))
