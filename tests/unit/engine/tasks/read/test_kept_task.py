"""Spans of the archive as a backfill takes them: cut to its range, holes with their causes, and only what was written."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.archive.move import move
from mirror_pipeline.buffer.archive.selection import KeptTopic, SpanSegment
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.engine.driver.read.kept import KeptSource
from mirror_pipeline.engine.tasks.read.kept_task import KeptRange, KeptTask, run_kept
from mirror_pipeline.engine.tasks.read.messages import ReadResult
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.span_builder import SpanBuilder
from mirror_pipeline.errors import BufferDamaged, BufferUnusable
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.kafka.records.batch import headers, open_batch
from mirror_pipeline.model import HoleCause, OffsetRange, SpanRef, TopicPartition
from tests.support.buffer_samples import LIFE, Settings
from tests.support.source_batches import batch, control, marked

END = 30
SOURCE = TopicPartition("t", 0)


def rules(start: int, end: int, life: str = LIFE) -> RangeRules:
    return RangeRules(OffsetRange("t", 0, start, end, 2**30, life, hard_end=True), 10**6, holes_expected=False, record_gaps=False)


@pytest.fixture
def lane(tmp_path: Path) -> LaneStore:
    """A lane whose archive holds offsets 0 to 29: an aborted transaction, markers, compressed batches."""
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    spans, archive = SpanTable(store, durable=False), Archive(store, durable=False)
    spans.ensure()
    archive.ensure()
    log = [
        [marked(batch(0, 2), 0x10, 7), control(2, 7, abort=True), batch(3, 7, codec=4)],
        [marked(batch(10, 5), 0x10, 9), control(15, 9, abort=False), batch(16, 4)],
        [batch(20, 10, codec=2)],
    ]
    for number, data in enumerate(log):
        writer = PartFileWriter(store, number, 0, durable=False)
        builder = SpanBuilder(rules(10 * number, 10 * number + 10), writer.add)
        aborted = [(7, 0)] if number == 0 else []
        builder.take(FetchedPartition(0, -1, -1, -1, aborted, memoryview(b"".join(data))))
        builder.flush()
        part = writer.close()
        assert part is not None
        assert spans.commit(number, [part])
    move(archive, spans, [0, 1])  # the last one is still in the buffer
    return store


@pytest.fixture
def own(lane: LaneStore) -> LaneStore:
    store = open_lane(Settings(lane.root), "m", "backfill-t")
    SpanTable(store, durable=False).ensure()
    return store


def found(lane: LaneStore, start: int = 0, end: int = END) -> list[SpanSegment]:
    return KeptTopic([lane], "t", LIFE).segments({0: (start, end)})[0]


def copied(lane: LaneStore, own: LaneStore, start: int, end: int) -> ReadResult:
    task = KeptTask(own, 0, 0, (KeptRange(rules(start, end), tuple(found(lane, start, end))),), durable=False)
    return run_kept(pickle.loads(pickle.dumps(task)))  # noqa: S301 - made here


def offsets(own: LaneStore, result: ReadResult) -> list[int]:
    """The offsets of the records that were written."""
    assert result.part is not None
    records = []
    with SpanReader(own) as reader:
        for ref in result.part.spans:
            view = reader.payload(ref)
            for at, header in headers(view):
                records += [record.offset for record in open_batch(view[at : at + header.size])]
    return records


def holes(refs: tuple[SpanRef, ...]) -> list[tuple[int, int, HoleCause]]:
    return [(hole.start, hole.end, hole.cause) for ref in refs for hole in ref.holes]


def test_everything_comes_back_with_the_causes_of_its_holes(lane: LaneStore, own: LaneStore) -> None:
    result = copied(lane, own, 0, END)
    assert result.part is not None
    assert offsets(own, result) == [*range(3, 15), *range(16, 30)]
    assert holes(result.part.spans) == [(0, 2, HoleCause.ABORTED), (2, 3, HoleCause.MARKER), (15, 16, HoleCause.MARKER)]
    (outcome,) = result.outcomes
    assert (outcome.next, outcome.records, outcome.error, outcome.halt) == (30, 26, "", None)


@pytest.mark.parametrize(("start", "end"), [(1, 5), (4, 7), (12, 25), (2, 3), (15, 16), (14, 17), (29, 30), (9, 11)])
def test_a_range_may_begin_and_end_anywhere(lane: LaneStore, own: LaneStore, start: int, end: int) -> None:
    result = copied(lane, own, start, end)
    assert offsets(own, result) == [offset for offset in [*range(3, 15), *range(16, 30)] if start <= offset < end]
    assert result.part is not None
    assert (result.part.spans[0].start, result.part.spans[-1].end, result.outcomes[0].next) == (start, end, end)


def test_a_span_that_is_not_what_was_written_is_named_and_nothing_is_kept(lane: LaneStore, own: LaneStore) -> None:
    (file,) = Path(lane.table("archive")).glob("*.parquet")
    data = bytearray(file.read_bytes())
    with SpanReader(lane, table="archive") as reader:
        payload = bytes(reader.payload(found(lane)[0].span.ref))
    at = bytes(data).index(payload) + len(payload) - 3
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(BufferDamaged, match=r"the span of offsets 0 to 19 of t\[0\] is damaged: its digest is another one"):
        copied(lane, own, 0, END)
    assert list(Path(own.table("spans")).glob("*.parquet")) == []


def test_a_span_without_digests_is_checked_batch_by_batch(lane: LaneStore, own: LaneStore) -> None:
    (first, second) = found(lane)
    plain = replace(first, span=replace(first.span, ref=replace(first.span.ref, digests=())))
    task = KeptTask(own, 0, 0, (KeptRange(rules(0, END), (plain, second)),), durable=False)
    assert run_kept(task).outcomes[0].next == END
    (file,) = Path(lane.table("archive")).glob("*.parquet")
    with SpanReader(lane, table="archive") as reader:
        damaged = reader.payload(first.span.ref)
    data = bytearray(file.read_bytes())
    at = bytes(data).index(bytes(damaged)) + len(damaged) - 3
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(BufferDamaged, match="is damaged"):
        run_kept(task)


def test_a_file_that_was_moved_is_looked_up_again(lane: LaneStore, own: LaneStore) -> None:
    source = KeptSource({SOURCE: (0, END)}, KeptTopic([lane], "t", LIFE).segments)
    planned = rules(0, END)
    first = source.range_of(planned)
    move(Archive(lane, durable=False), spans := SpanTable(lane, durable=False), [2])
    spans.vacuum(grace=0.0, orphan_age=0.0)
    task = KeptTask(own, 0, 0, (first,), durable=False)
    (outcome,) = run_kept(task).outcomes
    assert (outcome.next, "was moved" in outcome.error) == (20, True)
    source.range_of(rules(20, END))
    later = source.range_of(rules(20, END))
    assert run_kept(KeptTask(own, 1, 0, (later,), durable=False)).outcomes[0].next == END


def test_spans_that_have_left_are_named(lane: LaneStore) -> None:
    source = KeptSource({SOURCE: (0, END)}, KeptTopic([lane], "t", LIFE).segments)
    Archive(lane, durable=False).drop_oldest(2**40)
    with pytest.raises(BufferUnusable, match=r"offsets 0 to 19 of t\[0\] have left the archive"):
        source.range_of(rules(0, END))


def test_ranges_are_cut_where_the_source_takes_over() -> None:
    source = KeptSource({SOURCE: (0, 20)}, lambda ranges: {})
    planned = OffsetRange("t", 0, 5, 100, 1000, LIFE)
    assert (source.clipped(planned).end, source.clipped(planned).hard_end) == (20, True)
    assert source.holds(source.clipped(planned))
    beyond = replace(planned, start=20)
    assert source.clipped(beyond) == beyond
    assert not source.holds(beyond)
    assert source.clipped(replace(planned, partition=1)) == replace(planned, partition=1)
