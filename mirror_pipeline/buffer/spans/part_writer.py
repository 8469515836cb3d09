"""Writing spans: one Parquet file per task, one row group per span, payload bytes copied only by the kernel (runs in tasks)."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pipeline.buffer.place.errors import explain
from mirror_pipeline.buffer.place.place import LaneStore, sync_path
from mirror_pipeline.buffer.spans.parquet_footer import Placed, page_header, place_pages, write_all
from mirror_pipeline.buffer.tables import columns
from mirror_pipeline.buffer.tables.schema import SPANS, TableSpec
from mirror_pipeline.errors import UsageError
from mirror_pipeline.model import Hole, LeafDigest, PartFile, SpanRef

Buffer = bytes | bytearray | memoryview
# Bytes: a Parquet value's length is a signed 32-bit number.
MAX_PAYLOAD = 2**31 - 1 - 2**16
PAGE = 2**20
# Larger payloads go past the Parquet writer, to local files.
PLACED_BYTES = 64 * 1024


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


def _row(draft: SpanDraft, data: bytes, size: int, staged_at: int) -> pa.RecordBatch:
    """A span's row; ``data`` is the payload of ``size`` bytes, or empty where that is placed."""
    numbers = (draft.start, draft.end, draft.records, draft.batches, size, draft.min_timestamp, draft.max_timestamp)
    names = (draft.topic, draft.partition, draft.incarnation)
    arrays = columns.span_row(names, numbers, staged_at, draft.holes, draft.digests, data)
    return pa.RecordBatch.from_arrays(arrays, schema=SPANS.file_schema)


def part_writer(sink: pa.NativeFile, spec: TableSpec = SPANS) -> pq.ParquetWriter:
    """A Parquet writer with the settings of all part files; write one row group for each span."""
    return pq.ParquetWriter(
        sink,
        SPANS.file_schema,
        compression="none",
        use_dictionary=False,
        write_statistics=list(spec.skipping),
        data_page_size=PAGE,
        store_schema=False,
    )


class PartFileWriter:
    """Writes the spans of one task of one micro-batch; memory use is that of the largest span.

    The file is invisible until :meth:`SpanTable.commit` names it. A task that fails calls :meth:`abort`; a task that is
    killed leaves an unreferenced file, which vacuum removes.

    Args:
        store: the lane.
        micro_batch: number of the micro-batch.
        task: number of the task inside it; only part of the name.
        durable: bring the file to the disk before :meth:`close` returns (local paths).
        spec: the table, spans or another one with the same columns in its files.
    """

    def __init__(self, store: LaneStore, micro_batch: int, task: int, *, durable: bool = True, spec: TableSpec = SPANS) -> None:
        self._store = store
        self._spec = spec
        self._micro_batch = micro_batch
        # A second attempt of the same task writes another file.
        self._name = f"part-{micro_batch:010d}-{task:05d}-{uuid.uuid4().hex}.parquet"
        self._durable = durable and store.local
        self._spans: list[SpanRef] = []
        self._sink: pa.NativeFile | None = None
        self._placed: dict[int, Placed] = {}
        self._writer: pq.ParquetWriter | None = None

    @property
    def path(self) -> str:
        """Path of the file inside the store's file system."""
        return f"{self._store.filesystem()[1]}/{self._spec.name}/{self._name}"

    def _open(self) -> pq.ParquetWriter:
        if self._store.local:
            self._sink = pa.OSFile(self.path, "wb")
        else:
            self._sink = self._store.filesystem()[0].open_output_stream(self.path)
        return part_writer(self._sink, self._spec)

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
        try:
            if self._writer is None:
                self._writer = self._open()
            staged_at = int(time.time() * 1000) if staged_at is None else staged_at
            if self._store.local and size >= PLACED_BYTES:
                self._writer.write_batch(_row(span, b"", size, staged_at))
                self._placed[len(self._spans)] = self._place(size, pieces)
            else:
                self._writer.write_batch(_row(span, b"".join(pieces), size, staged_at))
        except OSError as error:
            raise explain(self._store.uri, error) from error
        self._spans.append(self._ref(span, size))

    def _place(self, size: int, pieces: Sequence[Buffer]) -> Placed:
        """Write a page after what was written last; the sink takes the descriptor's position for its own."""
        assert self._sink is not None  # noqa: S101 - opened with the writer
        handle, head = self._sink.fileno(), page_header(size)
        at = os.lseek(handle, 0, os.SEEK_CUR)
        write_all(handle, [head, *pieces])
        return Placed(at, len(head) + size)

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
        if self._writer is None or self._sink is None:
            return None
        try:
            self._writer.close()
            if self._placed:
                place_pages(self.path, self._sink.fileno(), self._placed)
            self._sink.close()
            if self._durable:
                sync_path(self.path)
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
        for part in (self._writer, self._sink):
            with contextlib.suppress(OSError, ValueError):
                if part is not None:
                    part.close()
        if self._sink is not None and self._store.local:
            Path(self.path).unlink(missing_ok=True)
        elif self._sink is not None:
            with contextlib.suppress(OSError):
                self._store.filesystem()[0].delete_file(self.path)
        self._writer = self._sink = None
        self._placed = {}
        self._spans = []
