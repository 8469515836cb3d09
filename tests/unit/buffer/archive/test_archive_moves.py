"""Spans in the archive: complete, once each, whenever the process that moves them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirror_pipeline import crash_points
from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.archive.merged import ArchivedFile, draft_of, joinable, merged
from mirror_pipeline.buffer.archive.move import move, settle
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.index import read_index
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import ARCHIVE
from mirror_pipeline.model import Hole, HoleCause, LeafDigest, SpanRef
from tests.support.buffer_samples import LIFE, Settings, draft

ROUNDS = 4


@pytest.fixture
def store(tmp_path: Path) -> LaneStore:
    return open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")


def stage(store: LaneStore, rounds: int = ROUNDS) -> SpanTable:
    """Micro-batches of two topics with two partitions each; the payload of an offset is its number, four bytes."""
    spans = SpanTable(store, durable=False)
    spans.ensure()
    for number in range(spans.last_micro_batch() + 1, rounds):
        writer = PartFileWriter(store, number, 0, durable=False)
        for topic in ("orders", "payments"):
            for partition in (0, 1):
                start = 10 * number
                payload = b"".join(offset.to_bytes(4, "big") for offset in range(start, start + 10))
                writer.add(draft(start, start + 10, topic=topic, partition=partition), payload)
        part = writer.close()
        assert part is not None
        assert spans.commit(number, [part])
    return spans


def offsets(store: LaneStore, *, archive: bool) -> list[tuple[str, int, int]]:
    """Every offset in a table, by its payload, sorted; twice if it is there twice."""
    if archive and not Archive(store).exists():
        return []
    table = ARCHIVE.name if archive else "spans"
    refs = archived(store) if archive else SpanTable(store).spans()
    found = []
    with SpanReader(store, table=table) as reader:
        for ref in refs:
            view = bytes(reader.payload(ref))
            numbers = [int.from_bytes(view[at : at + 4], "big") for at in range(0, len(view), 4)]
            assert numbers == list(range(ref.start, ref.end))
            found += [(ref.topic, ref.partition, number) for number in numbers]
    return sorted(found)


def archived(store: LaneStore) -> list[SpanRef]:
    return [ref for file in Archive(store).files().values() for ref in read_index(store, file, ARCHIVE)]


def expected(rounds: int = ROUNDS) -> list[tuple[str, int, int]]:
    return sorted((topic, number, offset) for topic in ("orders", "payments") for number in (0, 1) for offset in range(10 * rounds))


def test_moved_spans_are_in_the_archive_and_no_longer_in_the_buffer(store: LaneStore) -> None:
    spans, archive = stage(store), Archive(store, durable=False)
    archive.ensure()
    assert move(archive, spans, [0, 1, 3]) == [0, 1, 3]
    assert offsets(store, archive=False) == [row for row in expected() if row[2] // 10 == 2]
    assert offsets(store, archive=True) == [row for row in expected() if row[2] // 10 != 2]
    # What follows was joined, what does not was not.
    assert sorted({(ref.start, ref.end) for ref in archived(store)}) == [(0, 20), (30, 40)]
    assert {file.values[0] for file in archive.files().values()} == {"orders", "payments"}
    totals = archive.totals()
    assert (totals.spans, totals.files, len(totals.by_day)) == (8, 2, 1)


KILLED = """
import sys
from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.archive.move import move, settle
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.spans import SpanTable
store = LaneStore(sys.argv[1], "m", "lane-0")
archive, spans = Archive(store, durable=False), SpanTable(store, durable=False)
archive.ensure()
settle(archive, spans)
move(archive, spans, [0, 1])
"""


@pytest.mark.parametrize("point", crash_points.ARCHIVE_POINTS)
def test_a_killed_move_loses_nothing_and_lists_nothing_twice(store: LaneStore, point: str) -> None:
    stage(store)
    ended = subprocess.run([sys.executable, "-c", KILLED, store.uri], env={**os.environ, crash_points.CRASH: point}, check=False)
    assert ended.returncode == -signal.SIGKILL
    both = sorted({*offsets(store, archive=True), *offsets(store, archive=False)})
    assert both == expected()  # whoever looks now may find some in both places, and none missing
    archive, spans = Archive(store, durable=False), SpanTable(store, durable=False)
    archive.ensure()
    settle(archive, spans)
    assert sorted([*offsets(store, archive=True), *offsets(store, archive=False)]) == expected()
    move(archive, spans, range(ROUNDS))
    assert offsets(store, archive=True) == expected()
    assert offsets(store, archive=False) == []
    settle(archive, spans)
    assert offsets(store, archive=True) == expected()


def test_a_move_that_only_slept_is_refused_after_another_process_has_settled(store: LaneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    spans, archive = stage(store), Archive(store, durable=False)
    archive.ensure()

    def asleep(name: str) -> None:
        if name == "archive.noted":
            settle(Archive(store, durable=False), SpanTable(store, durable=False))

    monkeypatch.setattr("mirror_pipeline.buffer.archive.move.crash_point", asleep)
    with pytest.raises(Exception, match="another process moves spans"):
        move(archive, spans, [0, 1])
    assert offsets(store, archive=False) == expected()
    assert archive.files() == {}


def test_small_files_become_one_and_old_ones_leave(store: LaneStore) -> None:
    spans, archive = stage(store, 9), Archive(store, durable=False)
    archive.ensure()
    for number in range(9):
        move(archive, spans, [number])
    assert len(archive.files()) == 18
    done = archive.maintain(over="", orphan_age=600.0, space=2**30)
    assert done.joined == 18
    assert len(archive.files()) == 2
    assert offsets(store, archive=True) == expected(9)
    assert {(ref.start, ref.end) for ref in archived(store)} == {(0, 90)}
    assert archive.expire(int(time.time() * 1000) - 3_600_000) == 0
    assert archive.drop_oldest(1) > 0
    assert len(archive.files()) == 1
    assert archive.expire(int(time.time() * 1000) + 60_000) > 0
    assert archive.files() == {}


def test_a_day_that_is_over_becomes_one_file() -> None:
    def file(number: int, size: int, day: str) -> ArchivedFile:
        return ArchivedFile(LiveFile(f"p{number}", size, number, 0, ("orders", day)), 3)

    files = [file(1, 10**6, "2026-11-01"), file(2, 10**3, "2026-11-01"), file(3, 10**3, "2026-11-02"), file(4, 10**3, "2026-11-02")]
    assert [[f.path for f in group] for group in joinable(files, over="2026-11-02")] == [["p1", "p2"]]
    grown = [file(0, 10**8, "2026-11-02"), *(file(n, 10**3, "2026-11-02") for n in range(1, 9))]
    assert [len(group) for group in joinable(grown, over="2026-11-02")] == [8]  # the large one is not written again


def test_neighbours_become_one_span_with_the_sums_of_their_digests() -> None:
    def ref(start: int, end: int, life: str = LIFE, size: int = 10, **more: object) -> SpanRef:
        return SpanRef("t", 0, life, 0, start, end, end - start, 1, size, start, end, (), "p", 0, **more)  # type: ignore[arg-type]

    low, high = LeafDigest(0, (2**128 - 1).to_bytes(16, "big"), 3), LeafDigest(0, (2).to_bytes(16, "big"), 4)
    first, second = ref(0, 3, digests=(low,)), ref(3, 8, digests=(high, LeafDigest(1, bytes(16), 1)))
    (group,) = merged([second, first])
    assert draft_of(group).digests == (LeafDigest(0, (1).to_bytes(16, "big"), 7), LeafDigest(1, bytes(16), 1))
    assert (draft_of(group).start, draft_of(group).end, draft_of(group).records) == (0, 8, 8)
    apart = [ref(0, 3), ref(4, 5), ref(5, 6, life="other"), ref(6, 7, digests=(low,))]
    assert [len(group) for group in merged(apart)] == [1, 1, 1, 1]
    assert [len(group) for group in merged([ref(n, n + 1) for n in range(6)], most_bytes=20)] == [2, 2, 2]
    hole = SpanRef("t", 0, LIFE, 0, 3, 5, 0, 0, 0, -1, -1, (Hole(3, 5, HoleCause.ABORTED),), "p", 1)
    (group,) = merged([ref(0, 3, digests=(low,)), hole, ref(5, 6, digests=(high,))])
    assert (draft_of(group).min_timestamp, draft_of(group).max_timestamp, draft_of(group).holes) == (0, 6, hole.holes)
