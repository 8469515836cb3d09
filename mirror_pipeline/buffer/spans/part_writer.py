"""Writing spans: one Parquet file per task, one row group per span, payload bytes copied only by the kernel (runs in tasks)."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from mirror_pipeline.buffer.place.errors import explain
from mirror_pipeline.buffer.place.place import LaneStore, sync_path
from mirror_pipeline.buffer.spans.parquet_footer import write_all
from mirror_pipeline.buffer.spans.span_pages import MAGIC, SpanFormat
from mirror_pipeline.buffer.tables.schema import ARCHIVE, SPANS, TableSpec
from mirror_pipeline.errors import UsageError
from mirror_pipeline.model import Hole, LeafDigest, PartFile, SpanRef

Buffer = bytes | bytearray | memoryview
# Bytes: a Parquet value's length is a signed 32-bit number.
MAX_PAYLOAD = 2**31 - 1 - 2**16
# Written in one call: the spans of a small micro-batch. A larger payload is written from where it is, not copied.
TOGETHER_BYTES = 64 * 1024
FLUSHED_BYTES = 16 * 2**20
"""Brought to the disk while more is written, so that :meth:`PartFileWriter.close` has little to wait for."""


@dataclass(frozen=True, slots=True)
class SpanDraft:
    """A span that is about to be written: source offsets ``[start, end)``, times in milliseconds since the epoch."""

    topic: str
    partition: int
    incarnation: str
    start: int
    end: int
    records: int
    batches: int
    min_timestamp: int
    max_timestamp: int
    holes: tuple[Hole, ...] = ()
    digests: tuple[LeafDigest, ...] = ()


@cache
def format_of(table: str) -> SpanFormat:
    """The format of the part files of a table: spans or archive."""
    return SpanFormat({spec.name: spec for spec in (SPANS, ARCHIVE)}[table])


class PartFileWriter:
    """Writes the spans of one task of one micro-batch; memory use is that of the largest span.

    The file is invisible until :meth:`SpanTable.commit` names it. A task that fails calls :meth:`abort`; a task that is
    killed leaves an unreferenced file, which vacuum removes.

    Args:
        store: the lane.
        micro_batch: number of the micro-batch.
        task: number of the task inside it, or what else wrote the file; only part of the name.
        durable: bring the file to the disk before :meth:`close` returns (local paths).
        spec: the table, spans or another one with the same columns in its files.
    """

    def __init__(self, store: LaneStore, micro_batch: int, task: int | str, *, durable: bool = True, spec: TableSpec = SPANS) -> None:
        self._store = store
        self._spec = spec
        self._micro_batch = micro_batch
        by = f"{task:05d}" if isinstance(task, int) else task
        # A second attempt of the same task writes another file.
        self._name = f"part-{micro_batch:010d}-{by}-{uuid.uuid4().hex}.parquet"
        self._durable = durable and store.local
        self._format = format_of(spec.name)
        self._spans: list[SpanRef] = []
        self._described: list[bytes] = []
        self._sink: BinaryIO | pa.NativeFile | None = None
        self._at = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._flusher: ThreadPoolExecutor | None = None
        self._flush: Future[None] | None = None
        self._flushed = 0

    @property
    def path(self) -> str:
        """Path of the file inside the store's file system."""
        return f"{self._store.filesystem()[1]}/{self._spec.name}/{self._name}"

    def _open(self) -> None:
        if self._store.local:
            self._sink = open(self.path, "xb", buffering=0)  # noqa: SIM115 - closed by `close` or `abort`
        else:
            self._sink = self._store.filesystem()[0].open_output_stream(self.path)
        self._waiting, self._waiting_bytes, self._at = [MAGIC], len(MAGIC), len(MAGIC)

    def add(self, span: SpanDraft, payload: Buffer | Sequence[Buffer], staged_at: int | None = None) -> None:
        """Write one span.

        Args:
            span: what the payload is.
            payload: the bytes, as one buffer or a sequence of them.
            staged_at: when it was staged, milliseconds since the epoch; now by default.

        Raises:
            BufferUnusable: cannot be written (``retryable`` when the disk is full).
            UsageError: more bytes than one Parquet value may hold.
        """
        pieces = [payload] if isinstance(payload, bytes | bytearray | memoryview) else payload
        size = sum(map(len, pieces))
        if size > MAX_PAYLOAD:
            raise UsageError(f"span of {size} bytes: at most {MAX_PAYLOAD} fit into one row", hint="lower the micro-batch size")
        self._add(self._ref(span, size), pieces, int(time.time() * 1000) if staged_at is None else staged_at)

    def copy(self, ref: SpanRef, payload: Buffer, staged_at: int) -> None:
        """Write a span that is in another file of the table as well; arguments and errors as for :meth:`add`."""
        copied = replace(ref, micro_batch=self._micro_batch, path=self._name, row_group=len(self._spans))
        self._add(copied, [payload], staged_at)

    def _add(self, ref: SpanRef, pieces: Sequence[Buffer], staged_at: int) -> None:
        try:
            if self._sink is None:
                self._open()
            group = self._format.row_group(ref, staged_at, self._at)
            placed = replace(ref, at=self._at + len(group.pages))
            self._put(group.pages, pieces, ref.bytes)
        except OSError as error:
            raise explain(self._store.uri, error) from error
        self._described.append(group.described)
        self._spans.append(placed)

    def _put(self, pages: bytes, pieces: Sequence[Buffer], size: int) -> None:
        """Write now or, small ones, together; a small payload is copied, because its pieces may be views into large buffers."""
        self._at += len(pages) + size
        self._waiting.append(pages)
        self._waiting_bytes += len(pages) + size
        if size < TOGETHER_BYTES:
            self._waiting.append(b"".join(pieces))
            pieces = ()
        if self._waiting_bytes >= TOGETHER_BYTES:
            self._write_out(pieces)

    def _write_out(self, more: Sequence[Buffer] = ()) -> None:
        waiting, self._waiting, self._waiting_bytes = [*self._waiting, *more], [], 0
        assert self._sink is not None  # noqa: S101 - opened before anything waits
        if self._store.local:
            write_all(self._sink.fileno(), waiting)
            if self._durable and self._at - self._flushed >= FLUSHED_BYTES:
                self._flush_beside(self._sink.fileno())
        else:
            for piece in waiting:
                self._sink.write(piece)

    def _flush_beside(self, handle: int) -> None:
        """Bring what is written to the disk in a thread of its own, unless that is still at it; raises as :meth:`_flush_over`."""
        if self._flush is not None and not self._flush.done():
            return
        self._flush_over()
        self._flusher, self._flushed = self._flusher or ThreadPoolExecutor(1, "part-flush"), self._at
        self._flush = self._flusher.submit(os.fsync, handle)

    def _flush_over(self) -> None:
        """Wait for that. Raises OSError: the kernel tells one of those who ask only that it failed."""
        if self._flush is not None:
            self._flush.result()

    def _ref(self, span: SpanDraft, size: int) -> SpanRef:
        return SpanRef(
            topic=span.topic,
            partition=span.partition,
            incarnation=span.incarnation,
            micro_batch=self._micro_batch,
            start=span.start,
            end=span.end,
            records=span.records,
            batches=span.batches,
            bytes=size,
            min_timestamp=span.min_timestamp,
            max_timestamp=span.max_timestamp,
            holes=tuple(span.holes),
            path=self._name,
            row_group=len(self._spans),
            digests=tuple(span.digests),
        )

    def close(self) -> PartFile | None:
        """Complete the file and bring it to the disk; None when nothing was added.

        Raises:
            BufferUnusable: the file cannot be completed; it is removed.
        """
        if self._sink is None or not self._spans:
            self.abort()
            return None
        try:
            self._waiting.append(self._format.tail(self._described))
            self._write_out()
            if self._durable:
                self._flush_over()
                os.fsync(self._sink.fileno())
            self._sink.close()
            if self._durable:
                sync_path(os.path.dirname(self.path))
            size: int | None = self._store.filesystem()[0].get_file_info(self.path).size
            if size is None:
                raise FileNotFoundError(f"{self._name} vanished while it was written")
        except OSError as error:
            self.abort()
            raise explain(self._store.uri, error) from error
        return PartFile(self._name, size, self._micro_batch, tuple(self._spans))

    def abort(self) -> None:
        """Remove what was written."""
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._flush_over()
            with contextlib.suppress(OSError, ValueError):
                self._sink.close()
            if self._store.local:
                Path(self.path).unlink(missing_ok=True)
            else:
                with contextlib.suppress(OSError):
                    self._store.filesystem()[0].delete_file(self.path)
        self._sink = None
        self._spans, self._described, self._waiting = [], [], []
