from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.delta import CHECKPOINT_EVERY, DeltaLog
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import Hole, HoleCause, PartFile, TopicPartition
from tests.support.buffer_samples import LIFE, draft

Stage = Callable[..., PartFile]
ORDERS = TopicPartition("orders", 0)


def on_disk(store: LaneStore) -> set[str]:
    return {entry.name for entry in os.scandir(store.table("spans")) if entry.name.endswith(".parquet")}


def test_pending_is_the_same_from_memory_and_from_disk(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    holes = (Hole(12, 13, HoleCause.MARKER), Hole(15, 20, HoleCause.ABORTED))
    odd = SpanDraft("ödd", 2, "other", 10, 20, 4, 2, -1, 0, holes)
    first = [stage(0, [draft(0, 10), draft(0, 5, partition=1)]), stage(0, [odd], task=1)]
    second = [stage(1, [draft(10, 25), draft(5, 7, partition=1)])]
    assert spans.commit(0, first)
    assert spans.commit(1, second)
    fresh = SpanTable(store)
    everything = fresh.pending({})
    assert everything == spans.pending({})
    order = [("orders", 0, 0), ("orders", 0, 10), ("orders", 1, 0), ("orders", 1, 5), ("ödd", 2, 10)]
    assert [(ref.topic, ref.partition, ref.start) for ref in everything] == order
    assert everything[-1].holes == holes
    assert [r.start for r in fresh.pending({ORDERS: 10}) if r.source == ORDERS] == [10]
    assert [r.start for r in fresh.pending({ORDERS: 11}) if r.source == ORDERS] == [10]
    assert [r.start for r in fresh.pending({ORDERS: 25}) if r.source == ORDERS] == []
    assert [r.topic for r in fresh.pending({}, incarnations={"orders": "another", "ödd": "other"})] == ["ödd"]
    assert fresh.bytes() == fresh.disk_bytes() == sum(part.size for part in (*first, *second))


def test_a_floor_spares_opening_files(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    parts = [stage(number, [draft(number, number + 1)]) for number in range(3)]
    for part in parts:
        spans.commit(part.micro_batch, [part])
    Path(store.table("spans"), parts[0].path).write_bytes(b"not Parquet")
    assert [ref.micro_batch for ref in SpanTable(store).pending({}, above=0)] == [1, 2]
    with pytest.raises(BufferUnusable, match=parts[0].path):
        SpanTable(store).pending({})


def test_committing_twice_changes_nothing(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    part = stage(4, [draft(0, 10)])
    assert spans.commit(4, [part]) is True
    assert spans.commit(4, [part]) is False
    twin = stage(4, [draft(0, 10)])
    other = SpanTable(store)
    assert other.commit(4, [twin]) is False
    assert other.commit(3, [stage(3, [draft(0, 10)])]) is False
    assert [ref.path for ref in SpanTable(store).pending({})] == [part.path]
    assert other.last_micro_batch() == spans.last_micro_batch() == 4


def test_of_two_writers_of_one_micro_batch_one_wins(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    tables = [SpanTable(store, durable=False) for _ in range(4)]
    for number in range(5):
        parts = [stage(number, [draft(number, number + 1)], task=task) for task in range(4)]
        for table in tables:
            table.last_micro_batch()
        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(lambda pair, number=number: pair[0].commit(number, [pair[1]]), zip(tables, parts, strict=True)))
        assert won.count(True) == 1
        assert [ref.path for ref in SpanTable(store).pending({}, above=number - 1)] == [parts[won.index(True)].path]


KILLED = """
import os, signal, sys
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
store, when = LaneStore(sys.argv[1]), sys.argv[2]
writer = PartFileWriter(store, 0, 0)
writer.add(SpanDraft("orders", 0, "i", 0, 9, 9, 1, 1, 2), b"x" * 1000)
if when == "open":
    os.kill(os.getpid(), signal.SIGKILL)
part = writer.close()
if when == "closed":
    os.kill(os.getpid(), signal.SIGKILL)
SpanTable(store).commit(0, [part])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("when", "committed"), [("open", -1), ("closed", -1), ("committed", 0)])
def test_a_kill_leaves_all_or_nothing(store: LaneStore, spans: SpanTable, stage: Stage, when: str, committed: int) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, store.uri, when]).returncode == -signal.SIGKILL
    assert len(on_disk(store)) == 1
    assert spans.last_micro_batch() == committed
    assert len(spans.pending({})) == committed + 1
    part = stage(committed + 1, [draft(9, 12)])
    assert spans.commit(committed + 1, [part])
    assert spans.vacuum(orphan_age=3600) == 0
    spans.vacuum(orphan_age=0)
    assert on_disk(store) == {ref.path for ref in spans.pending({})}


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_with_unknown_outcome_lands_once(spans: SpanTable, stage: Stage, monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
    really = DeltaLog._write
    calls: list[bool] = []

    def broken(self: DeltaLog, *args: object) -> None:
        calls.append(landed)
        if landed or len(calls) > 1:
            really(self, *args)  # type: ignore[arg-type]
        if len(calls) == 1:
            raise DeltaError("connection reset while writing the log")

    monkeypatch.setattr(DeltaLog, "_write", broken)
    part = stage(0, [draft(0, 10)])
    assert spans.commit(0, [part]) is True
    assert len(calls) == (1 if landed else 2)
    assert [ref.path for ref in spans.pending({})] == [part.path]
    assert DeltaTable(spans._log.uri).version() == 1


def test_a_commit_that_never_lands_is_an_error(spans: SpanTable, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: DeltaLog, *args: object) -> None:
        raise DeltaError("Generic LocalFileSystem error: No space left on device (os error 28)")

    monkeypatch.setattr(DeltaLog, "_write", broken)
    with pytest.raises(BufferUnusable, match="disk is full") as caught:
        spans.commit(0, [stage(0, [draft(0, 10)])])
    assert caught.value.retryable


def test_a_commit_and_an_eviction_at_the_same_time_both_land(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    evictor = SpanTable(store, durable=False)
    for number in range(4):
        spans.commit(number, [stage(number, [draft(number, number + 1)])])
    parts = [stage(number, [draft(number, number + 1)]) for number in range(4, 12)]
    with ThreadPoolExecutor(2) as pool:
        committing = pool.submit(lambda: [spans.commit(part.micro_batch, [part]) for part in parts])
        evicting = pool.submit(lambda: [evictor.evict([number], target_bytes=0) for number in range(4)])
    assert committing.result() == [True] * 8
    assert evicting.result() == [[0], [1], [2], [3]]
    assert [ref.micro_batch for ref in spans.pending({})] == list(range(4, 12))
    assert spans.pending({}) == SpanTable(store).pending({})


def test_two_evictors_do_not_disturb_each_other(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    for number in range(3):
        spans.commit(number, [stage(number, [draft(number, number + 1)])])
    other = SpanTable(store)
    other.bytes()
    assert spans.evict([0, 1], target_bytes=0) == [0, 1]
    assert other.evict([0, 1, 2], target_bytes=0) == [2]
    assert spans.pending({}) == []


def test_eviction_respects_age_room_and_what_is_produced(spans: SpanTable, stage: Stage) -> None:
    for number in range(4):
        drafts = [draft(number * 10, number * 10 + 10), draft(0, number + 1, partition=1)]
        spans.commit(number, [stage(number, drafts, payload=b"x" * 1000)])
    done = spans.produced({("orders", 0, LIFE): 39, ("orders", 1, LIFE): 4})
    assert done == {0, 1, 2}
    assert spans.evict(done) == []
    assert spans.evict(done, older_than=int((time.time() - 3600) * 1000)) == []
    each = spans.bytes() // 4
    assert spans.evict(done, target_bytes=3 * each + 100) == [0]
    assert spans.evict(done, older_than=int((time.time() + 60) * 1000)) == [1, 2]
    assert [ref.micro_batch for ref in spans.pending({})] == [3, 3]


def test_evicted_files_stay_for_their_grace(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    part = stage(0, [draft(0, 10)])
    os.utime(Path(store.table("spans"), part.path), (1, 1))
    spans.commit(0, [part])
    assert spans.evict([0], target_bytes=0) == [0]
    assert spans.bytes() == 0
    assert spans.disk_bytes() == part.size
    assert spans.vacuum(grace=600) == 0
    assert SpanTable(store).vacuum(grace=0, orphan_age=600) == 0  # another process: the file's age counts from its eviction
    assert spans.vacuum(grace=0) == part.size
    assert spans.disk_bytes() == 0


def test_files_of_tasks_at_work_are_never_removed(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    spans.commit(5, [stage(5, [draft(0, 10)])])
    at_work = stage(6, [draft(10, 20)])
    late_twin = stage(5, [draft(0, 10)])
    abandoned = stage(4, [draft(0, 10)])
    for part in (at_work, abandoned):
        os.utime(Path(store.table("spans"), part.path), (1, 1))
    assert spans.vacuum() == abandoned.size
    assert {at_work.path, late_twin.path} <= on_disk(store)
    assert spans.commit(6, [at_work])


def test_files_of_a_commit_in_progress_stay_on_a_server_whose_clock_is_behind_this_host(
    store: LaneStore, spans: SpanTable, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their age is measured by the clock that stamps them; as seen from here they were written long ago."""
    spans.commit(1, [stage(1, [draft(0, 10)])])
    in_progress = stage(0, [draft(10, 20)])
    log = Ledger(store, durable=False)
    log.ensure()
    row = Path(store.table("gaps"), "part-1-in-progress.parquet")
    row.write_bytes(b"row")
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 7200)
    assert spans.vacuum(orphan_age=60) == 0
    assert log.maintain(orphan_age=60).removed == 0
    assert row.exists() and in_progress.path in on_disk(store)
    os.utime(row, (1, 1))
    assert log.maintain(orphan_age=60).removed == 1


def test_a_commit_during_vacuum_is_safe(store: LaneStore, spans: SpanTable, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    part = stage(0, [draft(0, 10)])
    from mirror_pipeline.buffer.spans import spans as module

    really = vars(module)["found_files"]

    def listed_then_committed(*args: object) -> object:
        found = really(*args)
        assert SpanTable(store, durable=False).commit(0, [part])
        return found

    monkeypatch.setattr(module, "found_files", listed_then_committed)
    assert spans.vacuum(orphan_age=0) == 0
    assert len(spans.pending({})) == 1


def test_checkpoints_and_clean_logs_lose_nothing(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    stale = SpanTable(store, durable=False)
    assert stale.last_micro_batch() == -1
    commits = CHECKPOINT_EVERY + 5
    for number in range(commits):
        spans.commit(number, [stage(number, [draft(number, number + 1)])])
    log = Path(store.table("spans"), "_delta_log")
    assert spans._log._background is not None
    spans._log._background.join()
    assert list(log.glob("*.checkpoint.parquet"))
    for entry in log.glob("*.json"):
        os.utime(entry, (1, 1))
    spans._log.checkpoint()
    assert len(list(log.glob("*.json"))) < CHECKPOINT_EVERY
    for table in (stale, spans, SpanTable(store)):
        assert table.last_micro_batch() == commits - 1
        assert [ref.micro_batch for ref in table.pending({})] == list(range(commits))
    assert stale.commit(commits - 1, [stage(commits - 1, [draft(0, 1)])]) is False
    assert stale.commit(commits, [stage(commits, [draft(commits, commits + 1)])]) is True


def test_the_end_of_the_process_waits_for_a_checkpoint_of_a_daemon_thread(spans: SpanTable, stage: Stage) -> None:
    """Lanes commit in daemon threads, and a thread is by default what its maker is: cut off in Rust code, it crashed runs at their end."""

    def work() -> None:
        for number in range(CHECKPOINT_EVERY + 1):
            spans.commit(number, [stage(number, [draft(number, number + 1)])])

    lane = threading.Thread(target=work, daemon=True)
    lane.start()
    lane.join()
    checkpoint = spans._log._background
    assert checkpoint is not None
    checkpoint.join()
    assert not checkpoint.daemon


def test_a_file_rewritten_by_others_is_named(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    part = stage(0, [draft(0, 10), draft(10, 20)])
    spans.commit(0, [part])
    path = Path(store.table("spans"), part.path)
    pq.write_table(pq.read_table(path), path)
    with pytest.raises(BufferUnusable, match="rewritten by another program"):
        SpanTable(store).pending({})


def test_a_table_that_is_not_there_is_said_clearly(store: LaneStore) -> None:
    assert not SpanTable(store).exists()
    with pytest.raises(BufferUnusable, match="no such table"):
        SpanTable(store).pending({})
