"""What maintenance moves into the archive, and what becomes of the archive when the disk is full."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.place.usage import lane_use
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.index import read_index
from mirror_pipeline.buffer.tables.schema import ARCHIVE
from mirror_pipeline.config import BufferConfig
from mirror_pipeline.engine.driver.maintain import archiving
from mirror_pipeline.engine.driver.maintain.archiving import Archiving, archiving_of
from mirror_pipeline.engine.driver.maintain.rounds import Maintenance
from mirror_pipeline.model import Verdict, Verification
from mirror_pipeline.operations.state.archive_cost import archive_note, staged_by_day
from tests.support.buffer_samples import LIFE, Settings, draft, life, send

DAY = 86_400
CAP = 50 * 10**9
SIZE = 100_000


class Lane:
    """A lane with spans of one offset each, ``verified`` of which are on the target and compared."""

    def __init__(self, folder: Path, *, count: int, verified: int) -> None:
        self.store = open_lane(Settings(str(folder / "buffer")), "m", "lane-0")
        self.spans, self.ledger = SpanTable(self.store, durable=False), Ledger(self.store, durable=False)
        self.spans.ensure()
        self.ledger.ensure()
        self.ledger.add_incarnation(life({0: 0}))
        for number in range(count):
            writer = PartFileWriter(self.store, number, 0, durable=False)
            writer.add(draft(number, number + 1), bytes(SIZE))
            part = writer.close()
            assert part is not None
            assert self.spans.commit(number, [part])
        for number in range(verified):
            assert self.ledger.record(number, [send(number, number + 1)])
        done = Verification("orders", 0, LIFE, 0, verified, 1, verified, "", Verdict.SAME, "staged", int(time.time() * 1000))
        self.ledger.add_verifications([done])

    def round(self, *, retention: int = -1, seconds: int = 90 * DAY, **more: Any) -> Archiving:
        moved = Archiving(Archive(self.store, durable=False), self.spans, retention, seconds)
        maintenance = Maintenance(self.store, self.spans, self.ledger, retention, CAP, archiving=moved)
        self.done = maintenance.run_round(**more)
        return moved

    def live(self) -> list[int]:
        return [ref.start for ref in SpanTable(self.store).spans()]

    def archived(self) -> list[int]:
        archive = Archive(self.store)
        files = archive.files().values() if archive.exists() else ()
        refs = [ref for file in files for ref in read_index(self.store, file, ARCHIVE)]
        return sorted(offset for ref in refs for offset in range(ref.start, ref.end))


def test_what_may_leave_moves_into_the_archive_and_the_rest_stays(tmp_path: Path) -> None:
    lane = Lane(tmp_path, count=5, verified=3)
    lane.round()
    assert (lane.archived(), lane.live()) == ([0, 1, 2], [3, 4])
    assert lane.done.micro_batches == 3
    lane.round()
    assert (lane.archived(), lane.live()) == ([0, 1, 2], [3, 4])


def test_the_archive_does_not_count_towards_the_cap(tmp_path: Path) -> None:
    lane = Lane(tmp_path, count=5, verified=5)
    before = lane_use(lane.store)
    lane.round(excess=10**9, upkeep=False)
    after = lane_use(lane.store)
    assert (before.archive, after.spans, lane.live()) == (0, 0, [])
    assert after.archive > 5 * SIZE
    assert after.total < before.total - 5 * SIZE


def test_little_that_is_due_waits_until_it_is_late_or_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(tmp_path, count=5, verified=5)
    oldest = lane.spans.oldest()
    assert oldest is not None
    moved = Archiving(Archive(lane.store, durable=False), lane.spans, 20, 90 * DAY)  # late after two seconds
    due = int(1000 * (oldest + 1.5))
    assert moved.evict(range(5), older_than=due, target_bytes=None) == []
    assert moved.evict(range(5), older_than=due + 10_000, target_bytes=None) == list(range(5))
    (tmp_path / "other").mkdir()
    other = Lane(tmp_path / "other", count=5, verified=5)
    monkeypatch.setattr(archiving, "LEAST_ARCHIVED_BYTES", 2 * SIZE)
    assert Archiving(Archive(other.store, durable=False), other.spans, 20, 90 * DAY).evict(
        range(5), older_than=int(1000 * time.time()) + 1, target_bytes=None
    ) == list(range(5))


def test_old_spans_leave_the_archive(tmp_path: Path) -> None:
    lane = Lane(tmp_path, count=5, verified=5)
    lane.round(seconds=3600)
    assert lane.archived() == [0, 1, 2, 3, 4]
    lane.round(seconds=-60)
    assert lane.archived() == []


def test_a_full_disk_takes_the_oldest_archived_spans_first(tmp_path: Path) -> None:
    lane = Lane(tmp_path, count=6, verified=6)
    archive = Archive(lane.store, durable=False)
    archive.ensure()
    for number in range(4):
        assert Archiving(archive, lane.spans, -1, 90 * DAY).evict([number], older_than=0, target_bytes=0) == [number]
        time.sleep(0.002)
    lane.round(excess=SIZE, disk=SIZE, retention=DAY)
    assert lane.archived() == [1, 2, 3]  # ... and nothing had to leave the buffer
    assert lane.live() == [4, 5]


def test_where_no_space_is_left_spans_leave_without_a_copy_and_the_round_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(tmp_path, count=3, verified=3)
    monkeypatch.setattr(archiving, "free_bytes", lambda store: 1000)
    lane.round(excess=10**9, disk=10**9)
    assert (lane.archived(), lane.live()) == ([], [])
    assert lane.done.unarchived_bytes > 3 * SIZE


def test_a_backfill_archives_nothing(tmp_path: Path) -> None:
    buffer = BufferConfig(str(tmp_path / "buffer"), archive=DAY)
    lane, filling = (LaneStore(f"{buffer.uri}/m/{name}", "m", name) for name in ("lane-0", "backfill-orders-1"))
    assert archiving_of(lane, SpanTable(lane), buffer) is not None
    assert archiving_of(filling, SpanTable(filling), buffer) is None
    assert archiving_of(lane, SpanTable(lane), BufferConfig(str(tmp_path))) is None


def test_the_plan_says_what_an_archive_costs(tmp_path: Path) -> None:
    lane = Lane(tmp_path, count=5, verified=3)
    lane.round()
    (size,) = staged_by_day([lane.store]).values()
    assert size > 5 * SIZE
    buffer = BufferConfig(str(tmp_path / "buffer"), archive=90 * DAY)
    note = archive_note(buffer, [lane.store])
    assert note.startswith("buffer.archive keeps spans for 90d: about ")
    assert "as today" in note
    assert archive_note(buffer, []) == "buffer.archive keeps spans for 90d: its size is known once data was staged"
    assert archive_note(BufferConfig(str(tmp_path)), [lane.store]) == ""
