"""Part files are encoded by hand: every Parquet reader must see in them what a Parquet writer would have written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.parquet_footer import write_all
from mirror_pipeline.buffer.spans.part_writer import TOGETHER_BYTES, PartFileWriter, SpanDraft
from mirror_pipeline.buffer.tables.index import read_index
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import ARCHIVE, SPANS, TableSpec
from mirror_pipeline.model import Hole, HoleCause, LeafDigest, PartFile

offsets, times = st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1)
holes = st.lists(st.builds(Hole, offsets, offsets, st.sampled_from(HoleCause)), max_size=200).map(tuple)
digests = st.lists(st.builds(LeafDigest, offsets, st.binary(min_size=16, max_size=16), offsets), max_size=200).map(tuple)
drafts = st.builds(
    SpanDraft, st.text(max_size=249), st.integers(0, 2**31 - 1), st.text(max_size=30), offsets, offsets, offsets, offsets, times, times,
    holes | st.just(()), digests,
)  # fmt: skip
payloads = st.binary(max_size=200) | st.integers(TOGETHER_BYTES - 1, TOGETHER_BYTES + 1).map(lambda size: b"p" * size)
STAGED_AT = st.integers(0, 2**50)
Rows = list[tuple[SpanDraft, bytes, int]]


def row(span: SpanDraft, payload: bytes, staged_at: int) -> dict[str, Any]:
    """What the columns hold."""
    return {
        "topic": span.topic, "partition": span.partition, "incarnation": span.incarnation, "start_offset": span.start,
        "end_offset": span.end, "records": span.records, "batches": span.batches, "bytes": len(payload),
        "min_timestamp": span.min_timestamp, "max_timestamp": span.max_timestamp, "staged_at": staged_at * 1000,
        "holes": [{"start": hole.start, "end": hole.end, "cause": hole.cause.value} for hole in span.holes],
        "digests": [{"leaf": each.leaf, "digest": each.digest, "records": each.records} for each in span.digests], "payload": payload,
    }  # fmt: skip


def expected(rows: Rows) -> pa.Table:
    return pa.Table.from_pylist([row(*each) for each in rows], SPANS.file_schema)


def written(folder: Path, rows: Rows, spec: TableSpec) -> tuple[LaneStore, PartFile, Path]:
    store = LaneStore(str(folder))
    Path(store.table(spec.name)).mkdir(exist_ok=True)
    writer = PartFileWriter(store, 3, 1, durable=False, spec=spec)
    for span, payload, staged_at in rows:
        writer.add(span, payload, staged_at)
    part = writer.close()
    assert part is not None
    return store, part, Path(store.table(spec.name), part.path)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(drafts, payloads, STAGED_AT), min_size=1, max_size=5), st.sampled_from([SPANS, ARCHIVE]))
def test_a_part_file_is_what_a_parquet_writer_writes(tmp_path_factory: pytest.TempPathFactory, rows: Rows, spec: TableSpec) -> None:
    store, part, path = written(tmp_path_factory.mktemp("lane"), rows, spec)
    table = expected(rows)
    assert pq.read_schema(path).equals(SPANS.file_schema)
    file = pq.ParquetFile(path)
    assert file.read().equals(table)
    for number in range(len(rows)):
        assert file.read_row_group(number, use_threads=False).equals(table.slice(number, 1))
    for name in table.column_names:  # one by one: each is found by its own offset
        assert file.read([name]).column(0).equals(table[name])
    assert ds.dataset(str(path)).to_table().equals(table)
    assert read_index(store, LiveFile(part.path, part.size, 0, 3), spec) == part.spans

    usual = io.BytesIO()
    pq.write_table(table, usual, row_group_size=1, compression="none", use_dictionary=False, write_statistics=list(spec.skipping))
    ours, theirs = file.metadata, pq.read_metadata(usual)
    assert (ours.num_rows, ours.num_row_groups, ours.num_columns) == (theirs.num_rows, theirs.num_row_groups, theirs.num_columns)
    at = 4
    for number in range(ours.num_row_groups):
        group = ours.row_group(number)
        for index in range(group.num_columns):
            column, usual_column = group.column(index), theirs.row_group(number).column(index)
            for fact in ("physical_type", "path_in_schema", "compression", "num_values", "has_dictionary_page", "is_stats_set"):
                assert getattr(column, fact) == getattr(usual_column, fact), (column.path_in_schema, fact)
            if column.is_stats_set:
                here, there = column.statistics, usual_column.statistics
                assert (here.min, here.max, here.null_count) == (there.min, there.max, 0), column.path_in_schema
            assert column.data_page_offset == at, "pages follow one another"
            at += column.total_compressed_size
        assert group.total_byte_size == sum(group.column(index).total_uncompressed_size for index in range(group.num_columns))
    assert path.stat().st_size - at == 8 + ours.serialized_size


def test_a_filter_skips_row_groups_by_their_statistics(tmp_path: Path) -> None:
    rows = [(SpanDraft(f"topic-{n}", n, "life", 10 * n, 10 * n + 10, 10, 1, n, n), b"x" * n, 5) for n in range(20)]
    _, _, path = written(tmp_path, rows, SPANS)
    fragment = next(iter(ds.dataset(str(path)).get_fragments()))
    found = fragment.subset(filter=(ds.field("topic") == "topic-7") & (ds.field("start_offset") >= 70))
    assert [group.id for group in found.row_groups] == [7]


def test_small_spans_are_written_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trickle writes ten files a second."""
    calls: list[int] = []
    monkeypatch.setattr(
        "mirror_pipeline.buffer.spans.part_writer.write_all",
        lambda handle, pieces: (calls.append(1), write_all(handle, pieces))[1],
    )
    written(tmp_path, [(SpanDraft("t", n, "life", 0, 9, 9, 1, 1, 2), b"x" * 200, 5) for n in range(50)], SPANS)
    assert len(calls) == 1
