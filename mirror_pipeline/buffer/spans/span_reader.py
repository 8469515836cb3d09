"""Reading spans back (runs in tasks): from a local buffer the payload is handed out from the mapped file, not copied; from an object
store it is fetched by ranges, as much at a time as the sender asks for."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pipeline.buffer.place.errors import READ_ONLY, explain
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.span_pages import LENGTH_BYTES
from mirror_pipeline.buffer.tables.schema import SPANS
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import SpanRef

# Files kept open per reader: the spans of one partition come from consecutive micro-batches.
OPEN_FILES = 8
# Bytes of a span that are fetched at a time: so much is in memory for each partition that is being sent.
STRETCH = 4 * 2**20
# Smaller spans are not worth a system call.
LEAST_RELEASED = 1 << 20


class _Part:
    """One open part file: mapped, or in an object store."""

    def __init__(self, store: LaneStore, table: str, name: str) -> None:
        filesystem, base = store.filesystem()
        self.path = f"{base}/{table}/{name}"
        self.mapped: mmap.mmap | None = None
        self._remote: pa.NativeFile | None = None
        self._places: dict[int, int | None] = {}
        if store.local:
            with open(self.path, "rb") as handle:
                self.mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        else:
            self._remote = filesystem.open_input_file(self.path)

    @cached_property
    def file(self) -> pq.ParquetFile:
        """Opened when first needed: its footer takes longer to read than a small payload to send."""
        return pq.ParquetFile(self._remote or pa.BufferReader(pa.py_buffer(self.mapped)))

    def payload(self, row_group: int, size: int, known: int = -1) -> tuple[memoryview, int | None]:
        """The bytes of a row group's one value, and where in the mapped file they lie if they are handed out from there.

        Args:
            row_group: its number.
            size: of the value.
            known: where the value begins, as its writer noted it; -1 for what only the footer tells.
        """
        at = known if self._is_at(known, size) else self._place(row_group, size)
        if at is None:
            return self._decoded(row_group), None
        if self.mapped is None:
            return memoryview(self._bytes(at, size)), None
        return memoryview(self.mapped)[at : at + size], at

    def stretch(self, row_group: int, size: int, start: int, length: int) -> bytes | None:
        """A stretch of that value; None where it can only be read as a whole."""
        at = self._place(row_group, size)
        return None if at is None else self._bytes(at + start, length)

    def unmap(self, at: int, length: int) -> None:
        """Drop the whole pages of a stretch from this process's memory; they come back from the file when they are read."""
        first, end = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE, (at + length) // mmap.PAGESIZE * mmap.PAGESIZE
        if self.mapped is not None and end > first:
            self.mapped.madvise(mmap.MADV_DONTNEED, first, end - first)

    def _bytes(self, at: int, length: int) -> bytes:
        if self._remote is None:
            return self.mapped[at : at + length] if self.mapped is not None else b""
        self._remote.seek(at)
        data: bytes = self._remote.read(length)
        return data

    def _is_at(self, at: int, size: int) -> bool:
        """Whether a value of that size begins there in the mapped file: its length stands in front of it."""
        if self.mapped is None or at < LENGTH_BYTES or at + size > len(self.mapped):
            return False
        return int.from_bytes(self.mapped[at - LENGTH_BYTES : at], "little") == size

    def _place(self, row_group: int, size: int) -> int | None:
        if row_group not in self._places:
            self._places[row_group] = self._look(row_group, size)
        return self._places[row_group]

    def _look(self, row_group: int, size: int) -> int | None:
        """The one uncompressed value of a column chunk is the last thing in it, after its length."""
        group = self.file.metadata.row_group(row_group)
        chunk = group.column(group.num_columns - 1)
        plain = chunk.path_in_schema == "payload" and chunk.compression == "UNCOMPRESSED" and not chunk.has_dictionary_page
        if not plain or group.num_rows != 1 or not size:
            return None
        end: int = chunk.data_page_offset + chunk.total_compressed_size
        length = self._bytes(end - size - 4, 4) if end - size - 4 > chunk.data_page_offset else b""
        if int.from_bytes(length, "little") != size:
            return None
        return end - size

    def _decoded(self, row_group: int) -> memoryview:
        column = self.file.read_row_group(row_group, columns=["payload"]).column(0)
        if len(column) != 1:
            raise BufferUnusable(f"buffer {self.path}: row group {row_group} holds {len(column)} rows, not 1", hint=READ_ONLY)
        return memoryview(column.chunk(0)[0].as_buffer())


class SpanReader:
    """Reads payloads of committed spans; a context manager.

    Args:
        store: the lane.
        open_files: how many files are kept mapped.
        table: the table that the spans are in.
    """

    def __init__(self, store: LaneStore, *, open_files: int = OPEN_FILES, table: str = SPANS.name) -> None:
        self._store = store
        self._table = table
        self._limit = open_files
        self._open: OrderedDict[str, _Part] = OrderedDict()
        self._places: dict[tuple[str, int], tuple[str, int]] = {}

    def payload(self, ref: SpanRef) -> memoryview:
        """The bytes of a span, read-only; they stay valid as long as the view is held, even when the file is removed.

        Raises:
            BufferUnusable: the file is gone or damaged, or does not hold what ``ref`` says.
        """
        try:
            part = self._part(ref.path)
            view, at = part.payload(ref.row_group, ref.bytes, ref.at)
        except (OSError, ValueError, IndexError, pa.ArrowException) as error:
            raise explain(f"{self._store.table(self._table)}/{ref.path}", error) from error
        if view.nbytes != ref.bytes:
            raise BufferUnusable(f"buffer {ref.path}: span {ref.source} {ref.start} holds {view.nbytes} bytes, not {ref.bytes}")
        if ref.bytes >= LEAST_RELEASED and at is not None:
            self._places[ref.path, ref.row_group] = part.path, at
        return view

    def stretches(self, ref: SpanRef, most: int = STRETCH) -> Iterator[memoryview]:
        """The bytes of a span one after the other, cut anywhere: at once where they are mapped, else at most ``most`` in memory.

        Raises:
            BufferUnusable: as :meth:`payload`.
        """
        if self._store.local or ref.bytes <= most:
            yield self.payload(ref)
            return
        for start in range(0, ref.bytes, most):
            length = min(most, ref.bytes - start)
            try:
                piece = self._part(ref.path).stretch(ref.row_group, ref.bytes, start, length)
            except (OSError, ValueError, IndexError, pa.ArrowException) as error:
                raise explain(f"{self._store.table(self._table)}/{ref.path}", error) from error
            if piece is None:
                yield self.payload(ref)
                return
            if len(piece) != length:
                raise BufferUnusable(f"buffer {ref.path}: span {ref.source} {ref.start} ends early")
            yield memoryview(piece)

    def staged_at(self, path: str) -> list[int]:
        """When each row of a file was staged, in milliseconds since the epoch. Raises BufferUnusable."""
        try:
            column = self._part(path).file.read(columns=["staged_at"], use_threads=False).column(0)
        except (OSError, ValueError, IndexError, pa.ArrowException) as error:
            raise explain(f"{self._store.table(self._table)}/{path}", error) from error
        return [value // 1000 for value in column.cast(pa.int64()).to_pylist()]

    def _part(self, name: str) -> _Part:
        part = self._open.get(name)
        if part is None:
            part = self._open[name] = _Part(self._store, self._table, name)
            if len(self._open) > self._limit:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return part

    def release(self, refs: Iterable[SpanRef]) -> None:
        """Spans that will not be read soon need not stay in the machine's page cache: they are on the disk.

        The next micro-batch is then written into the same memory, and what brokers on this machine keep there stays.
        Views that were handed out stay valid: should one be used again, its bytes come from the disk.
        """
        for ref in refs:
            place = self._places.pop((ref.path, ref.row_group), None)
            if place is None or not hasattr(os, "posix_fadvise"):
                continue
            if (part := self._open.get(ref.path)) is not None:
                part.unmap(place[1], ref.bytes)  # the cache keeps what a process has mapped
            with contextlib.suppress(OSError), open(place[0], "rb") as handle:  # a hint: a file that is gone needs none
                os.posix_fadvise(handle.fileno(), place[1], ref.bytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Let go of the files; views handed out stay valid."""
        self._open.clear()

    def __enter__(self) -> SpanReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
