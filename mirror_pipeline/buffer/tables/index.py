"""The spans of a part file, read without its payloads, and its statistics for the Delta log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables.files import statistics
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import SPANS
from mirror_pipeline.errors import BufferDamaged
from mirror_pipeline.model import Hole, HoleCause, LeafDigest, SpanRef

# The one column that files of an older version lack.
DIGESTS = "digests"
_SMALL = [name for name in SPANS.file_schema.names if name not in ("payload", "staged_at")]


def read_index(store: LaneStore, file: LiveFile) -> tuple[SpanRef, ...]:
    """The spans of a part file, in its order.

    Raises:
        BufferDamaged: another program has rewritten the file.
        BufferUnusable: it cannot be read.
    """
    filesystem, base = store.filesystem()
    table_uri = store.table(SPANS.name)
    with explained(f"{table_uri}/{file.path}"), filesystem.open_input_file(f"{base}/{SPANS.name}/{file.path}") as source:
        part = pq.ParquetFile(source)
        groups = part.metadata.num_row_groups
        names = [name for name in _SMALL if name != DIGESTS or name in part.schema_arrow.names]
        table = part.read(columns=names, use_threads=False)
    if table.num_rows != groups:
        raise BufferDamaged(f"buffer {table_uri}: {file.path} was rewritten by another program", hint="see docs/buffer.md")
    columns = [table[name].to_pylist() if name in names else [None] * groups for name in _SMALL]
    return tuple(_ref(file, index, row) for index, row in enumerate(zip(*columns, strict=True)))


def span_statistics(spans: Sequence[SpanRef]) -> dict[str, object]:
    """Delta statistics of a part file that holds these spans."""
    rows = [
        {
            "topic": span.topic,
            "partition": span.partition,
            "start_offset": span.start,
            "end_offset": span.end,
            "min_timestamp": span.min_timestamp,
            "max_timestamp": span.max_timestamp,
        }
        for span in spans
    ]
    return statistics(SPANS, len(rows), rows, rows)


def _ref(file: LiveFile, row_group: int, row: tuple[Any, ...]) -> SpanRef:
    topic, partition, incarnation, start, end, records, batches, size, low, high, listed, digests = row
    holes = tuple(Hole(hole["start"], hole["end"], HoleCause(hole["cause"])) for hole in listed)
    sums = tuple(LeafDigest(digest["leaf"], digest["digest"], digest["records"]) for digest in digests or ())
    batch = file.micro_batch
    return SpanRef(topic, partition, incarnation, batch, start, end, records, batches, size, low, high, holes, file.path, row_group, sums)
