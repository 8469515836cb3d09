"""The spans of a part file, read without its payloads, and its statistics for the Delta log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from mirror_pipeline.buffer.place.errors import READ_ONLY, explained
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables.files import statistics
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import SPANS, TableSpec
from mirror_pipeline.errors import BufferDamaged
from mirror_pipeline.model import Hole, HoleCause, LeafDigest, SpanRef

# The one column that files of an older version lack.
DIGESTS_COLUMN = "digests"
_SMALL = [name for name in SPANS.file_schema.names if name not in ("payload", "staged_at")]


def read_index(store: LaneStore, file: LiveFile, spec: TableSpec = SPANS) -> tuple[SpanRef, ...]:
    """The spans of a part file of the table ``spec``, in its order.

    Raises:
        BufferDamaged: another program has rewritten the file.
        BufferUnusable: it cannot be read.
    """
    filesystem, base = store.filesystem()
    table_uri = store.table(spec.name)
    with explained(f"{table_uri}/{file.path}"), filesystem.open_input_file(f"{base}/{spec.name}/{file.path}") as source:
        part = pq.ParquetFile(source)
        return refs_of(file, part, table_uri, range(part.metadata.num_row_groups))


def refs_of(file: LiveFile, part: pq.ParquetFile, table_uri: str, groups: Sequence[int]) -> tuple[SpanRef, ...]:
    """The spans in these row groups of an open part file; raises as :func:`read_index`."""
    names = [name for name in _SMALL if name != DIGESTS_COLUMN or name in part.schema_arrow.names]
    whole = len(groups) == part.metadata.num_row_groups
    table = part.read(columns=names, use_threads=False) if whole else part.read_row_groups(groups, columns=names, use_threads=False)
    if table.num_rows != len(groups):
        raise rewritten(table_uri, file.path)
    columns = [table[name].to_pylist() if name in names else [None] * len(groups) for name in _SMALL]
    return tuple(_ref(file, index, row) for index, row in zip(groups, zip(*columns, strict=True), strict=True))


def rewritten(table_uri: str, path: str) -> BufferDamaged:
    """The error for a part file that does not hold one row group for each span."""
    return BufferDamaged(f"buffer {table_uri}: {path} was rewritten by another program", hint=READ_ONLY)


def span_statistics(spans: Sequence[SpanRef], spec: TableSpec = SPANS) -> dict[str, object]:
    """Delta statistics of a part file of the table ``spec`` that holds these spans."""
    rows = [
        {
            "topic": span.topic,
            "partition": span.partition,
            "incarnation": span.incarnation,
            "start_offset": span.start,
            "end_offset": span.end,
            "min_timestamp": span.min_timestamp,
            "max_timestamp": span.max_timestamp,
        }
        for span in spans
    ]
    return statistics(spec, len(rows), rows, rows)


def _ref(file: LiveFile, row_group: int, row: tuple[Any, ...]) -> SpanRef:
    topic, partition, incarnation, start, end, records, batches, size, low, high, listed, digests = row
    holes = tuple(Hole(hole["start"], hole["end"], HoleCause(hole["cause"])) for hole in listed)
    sums = tuple(LeafDigest(digest["leaf"], digest["digest"], digest["records"]) for digest in digests or ())
    batch = file.micro_batch
    return SpanRef(topic, partition, incarnation, batch, start, end, records, batches, size, low, high, holes, file.path, row_group, sums)
