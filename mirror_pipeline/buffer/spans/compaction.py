"""Small part files of spans become larger ones: fewer files for the same spans, each still in its own row group."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore, sync_path
from mirror_pipeline.buffer.spans.part_writer import part_writer
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import SPANS

# A joined file grows to about this size.
JOINED_BYTES = 64 * 2**20
# ... and to this many spans: the description of a row group takes about 2 KB of the file's end.
JOINED_SPANS = 500
# Files up to this size are read as a whole: row by row, their spans cost two and a half times the CPU time.
WHOLE_BYTES = 4 * 2**20
# Joining fewer files than this would write the same bytes again and again for little.
FEWEST = 8


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A live file that may be joined: how many spans it holds, and how large it is."""

    file: LiveFile
    spans: int


def groups(files: Iterable[SmallFile], *, most_bytes: int = JOINED_BYTES, most_spans: int = JOINED_SPANS) -> list[list[LiveFile]]:
    """Which files to join with which, oldest first: pure.

    Files that are at least half full are not rewritten, so a span is rewritten only a few times.
    """
    small = [f for f in files if 2 * f.file.size < most_bytes and 2 * f.spans < most_spans]
    oldest = sorted(small, key=lambda f: (f.file.micro_batch, f.file.path))
    return [group for group in filled(oldest, most_bytes=most_bytes, most_spans=most_spans) if len(group) >= FEWEST]


def filled(files: Iterable[SmallFile], *, most_bytes: int, most_spans: int) -> Iterator[list[LiveFile]]:
    """Files in turn, in groups that are no larger than one file may become."""
    group: list[LiveFile] = []
    size = spans = 0
    for each in files:
        if group and (size + each.file.size > most_bytes or spans + each.spans > most_spans):
            yield group
            group, size, spans = [], 0, 0
        group.append(each.file)
        size, spans = size + each.file.size, spans + each.spans
    if group:
        yield group


def write_joined(store: LaneStore, group: Sequence[LiveFile], *, durable: bool = True) -> LiveFile:
    """Write the spans of ``group`` into one new file, in order; it is invisible until it is committed.

    The file stands under the newest micro-batch of its parts and keeps their newest time, so that it may leave when the
    last of them might have left. Memory use is that of the largest span, and at least ``WHOLE_BYTES``.

    Raises:
        BufferUnusable: a file cannot be read, or the new one not be written (it is removed then).
    """
    filesystem, base = store.filesystem()
    newest = max(group, key=lambda file: file.micro_batch)
    name = f"part-{newest.micro_batch:010d}-joined-{uuid.uuid4().hex}.parquet"
    path = f"{base}/{SPANS.name}/{name}"
    try:
        with explained(store.table(SPANS.name)):
            with filesystem.open_output_stream(path) as sink, part_writer(sink) as writer:
                for file in group:
                    with filesystem.open_input_file(f"{base}/{SPANS.name}/{file.path}") as source:
                        _copy(pq.ParquetFile(source), writer, file.size)
            if durable and store.local:
                sync_path(path)
                sync_path(os.path.dirname(path))
            size: int = filesystem.get_file_info(path).size
    except BaseException:
        with explained(store.table(SPANS.name)):
            if filesystem.get_file_info(path).type.name != "NotFound":
                filesystem.delete_file(path)
        raise
    return LiveFile(name, size, max(file.modified for file in group), newest.micro_batch)


def _copy(part: pq.ParquetFile, writer: pq.ParquetWriter, size: int) -> None:
    whole = size <= WHOLE_BYTES
    numbers = range(part.metadata.num_row_groups)
    for rows in [part.read(use_threads=False)] if whole else (part.read_row_group(number, use_threads=False) for number in numbers):
        columns = [
            rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
            for field in SPANS.file_schema
        ]
        writer.write_table(pa.Table.from_arrays(columns, schema=SPANS.file_schema), row_group_size=1)
