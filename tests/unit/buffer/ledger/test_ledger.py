from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables.delta import DeltaLog
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import Gap, HoleCause, Position, Stamp, TopicPartition
from tests.support.buffer_samples import LIFE, hole, life, send

ORDERS = TopicPartition("orders", 0)


def gap(start: int, end: int, at: int = 1_000) -> Gap:
    return Gap("east-to-west", "orders", 0, LIFE, start, end, HoleCause.RETENTION, "on_loss: record_gap", at)


def test_an_empty_ledger_says_so(ledger: Ledger) -> None:
    assert ledger.last_record() == -1
    assert (ledger.positions(), ledger.gaps(), ledger.incarnations(), ledger.sends()) == ({}, [], {}, [])
    assert ledger.producer("west-id") is None
    ledger.audit()


def test_positions_follow_the_sends(ledger: Ledger, store: LaneStore) -> None:
    ledger.add_incarnation(replace(life({0: 5, 1: 0}), target_starts={0: 7, 1: 2}))
    assert ledger.positions() == {ORDERS: Position(5, 7, 0), TopicPartition("orders", 1): Position(0, 2, 0)}
    assert ledger.record(0, [send(5, 15, ordinal=0, target=7), hole(15, 16, ordinal=10, target=17)]) is True
    assert ledger.positions()[ORDERS] == Position(16, 17, 10)
    assert ledger.record(1, [send(16, 20, ordinal=10, target=17)]) is True
    fresh = Ledger(store)
    assert fresh.positions() == {ORDERS: Position(20, 21, 14), TopicPartition("orders", 1): Position(0, 2, 0)}
    first, second, third = fresh.sends("orders", 0)
    assert (first, second) == (send(5, 15, ordinal=0, target=7), hole(15, 16, ordinal=10, target=17))
    assert third == send(16, 20, ordinal=10, target=17)
    assert fresh.sends("orders", 1) == fresh.sends("other") == fresh.sends(incarnation="other") == []
    fresh.audit()


def test_recording_twice_changes_nothing(ledger: Ledger, store: LaneStore) -> None:
    other = Ledger(store)
    other.last_record()
    assert ledger.record(0, [send(0, 10)], [gap(10, 20)]) is True
    assert ledger.record(0, [send(0, 10)], [gap(10, 20)]) is False
    assert other.record(0, [send(0, 10)], [gap(10, 20)]) is False
    assert ledger.sends() == [send(0, 10)]
    assert ledger.gaps() == [gap(10, 20)]
    assert ledger.last_record() == other.last_record() == 0
    assert ledger.record(1, []) is False


def test_a_record_with_unknown_outcome_lands_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    really = DeltaLog._write
    failed: set[str] = set()

    def landed_but_lost(self: DeltaLog, *args: object) -> None:
        really(self, *args)  # type: ignore[arg-type]
        if self.spec.name not in failed:
            failed.add(self.spec.name)
            raise DeltaError("connection reset")

    monkeypatch.setattr(DeltaLog, "_write", landed_but_lost)
    assert ledger.record(0, [send(0, 10)], [gap(10, 20)]) is True
    assert failed == {"sends", "gaps"}
    assert (ledger.sends(), ledger.gaps()) == ([send(0, 10)], [gap(10, 20)])


def test_a_crash_between_gaps_and_sends_loses_nothing(ledger: Ledger, store: LaneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    really = Ledger._append

    def dies(self: Ledger, log: DeltaLog, *args: object) -> bool:
        if log.spec.name == "sends":
            raise KeyboardInterrupt
        return really(self, log, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ledger, "_append", dies)
        ledger.record(0, [send(0, 10)], [gap(10, 20)])
    after = Ledger(store)
    assert after.gaps() == [gap(10, 20)]
    assert after.last_record() == 0
    assert after.record(1, [send(0, 10)], [gap(10, 20), gap(30, 40)]) is True
    assert (after.sends(), after.gaps()) == ([send(0, 10)], [gap(10, 20), gap(30, 40)])


def test_gaps_are_kept_once_and_in_order(ledger: Ledger) -> None:
    assert ledger.add_gap(gap(30, 40, at=3_000)) is True
    assert ledger.add_gap(gap(10, 20, at=1_234)) is True
    assert ledger.add_gap(gap(30, 40, at=9_000)) is False
    assert ledger.gaps() == [gap(10, 20, at=1_234), gap(30, 40, at=3_000)]


def test_the_latest_form_of_the_latest_life_counts(ledger: Ledger, store: LaneStore) -> None:
    ledger.add_incarnation(life({0: 5}))
    ledger.add_incarnation(life({0: 5, 1: 0}))  # same time: partitions were added
    assert Ledger(store).incarnations() == {"orders": life({0: 5, 1: 0})}
    assert set(ledger.positions()) == {ORDERS, TopicPartition("orders", 1)}
    ledger.record(0, [send(5, 9)])
    recreated = life({0: 0}, incarnation="BBBB", at=2_000)
    ledger.add_incarnation(recreated)
    ledger.add_incarnation(life({3: 1}, topic="other"))
    assert ledger.incarnations() == {"orders": recreated, "other": life({3: 1}, topic="other")}
    assert ledger.positions() == {ORDERS: Position(0, 0, 0), TopicPartition("other", 3): Position(1, 1, 0)}


def test_a_stamp_belongs_to_one_cluster(ledger: Ledger, store: LaneStore) -> None:
    ledger.save_producer(Stamp(4_000, 0), "west-id")
    ledger.save_producer(Stamp(7, 0), "north-id")
    ledger.save_producer(Stamp(4_000, 1), "west-id")
    assert Ledger(store).producer("west-id") == Stamp(4_000, 1)
    assert Ledger(store).producer("north-id") == Stamp(7, 0)
    assert Ledger(store).producer("south-id") is None


def test_the_audit_names_what_does_not_tile(ledger: Ledger) -> None:
    ledger.add_incarnation(life({0: 0}))
    ledger.record(0, [send(0, 10)])
    ledger.audit()
    ledger.record(1, [send(12, 20, ordinal=10)])
    with pytest.raises(BufferUnusable, match=r"orders\[0\]: the send of \[12, 20\) leaves a hole"):
        ledger.audit()


def files(store: LaneStore, table: str) -> set[str]:
    return {entry.name for entry in os.scandir(store.table(table)) if entry.name.endswith(".parquet")}


def test_upkeep_bounds_the_files_and_keeps_the_rows(ledger: Ledger, store: LaneStore) -> None:
    ledger.add_incarnation(life({0: 0}))
    for number in range(12):
        ledger.record(number, [send(number, number + 1)], [gap(100 + number, 101 + number)])
    before = (ledger.sends(), ledger.gaps(), ledger.positions(), ledger.last_record())
    assert ledger.maintain(max_files=12).joined == 0
    assert ledger.maintain(max_files=11).joined == 24
    assert len(ledger._sends.files()) == 1
    assert len(files(store, "sends")) == 13  # readers of the version before still find their files
    for name in files(store, "sends"):
        os.utime(Path(store.table("sends"), name), (1, 1))
    assert ledger.maintain().removed == 12
    assert len(files(store, "sends")) == 1
    assert (ledger.sends(), ledger.gaps(), ledger.positions(), ledger.last_record()) == before
    fresh = Ledger(store)
    assert (fresh.sends(), fresh.gaps(), fresh.positions(), fresh.last_record()) == before
    assert fresh.record(11, [send(11, 12)]) is False


def test_joined_files_stay_for_their_readers_however_old(ledger: Ledger, store: LaneStore) -> None:
    for number in range(3):
        ledger.record(number, [send(number, number + 1)])
    for name in files(store, "sends"):
        os.utime(Path(store.table("sends"), name), (1, 1))
    assert ledger.maintain(max_files=1).joined == 3
    assert ledger.maintain(max_files=1).removed == 0


def test_writers_readers_and_upkeep_at_the_same_time(ledger: Ledger, store: LaneStore) -> None:
    ledger.add_incarnation(life({0: 0, 1: 0}))
    twin = Ledger(store, durable=False)
    deadline = time.monotonic() + 60

    def until_done(work: Callable[[], object], done: Callable[[], bool]) -> int:
        turns = 0
        while not done() and time.monotonic() < deadline:
            work()
            turns += 1
        return turns

    with ThreadPoolExecutor(4) as pool:
        writing = pool.submit(lambda: [ledger.record(n, [send(n, n + 1), send(n, n + 1, partition=1)]) for n in range(30)])
        gaps = pool.submit(lambda: [twin.add_gap(gap(number, number + 1)) for number in range(10)])
        keeping = pool.submit(until_done, lambda: twin.maintain(max_files=2), writing.done)
        reading = pool.submit(until_done, ledger.audit, writing.done)
    assert writing.result() == [True] * 30
    assert gaps.result() == [True] * 10
    assert keeping.result() and reading.result()
    ledger.audit()
    assert ledger.positions() == {TopicPartition("orders", partition): Position(30, 30, 30) for partition in (0, 1)}
    assert len(ledger.gaps()) == 10


def test_two_recorders_of_one_number_leave_one(ledger: Ledger, store: LaneStore) -> None:
    books = [Ledger(store, durable=False) for _ in range(3)]
    for number in range(5):
        for book in books:
            book.last_record()
        with ThreadPoolExecutor(3) as pool:
            won = list(pool.map(lambda book, number=number: book.record(number, [send(number, number + 1)]), books))
        assert won.count(True) == 1
    assert ledger.sends() == [send(number, number + 1) for number in range(5)]


def test_a_join_that_comes_too_late_writes_nothing(ledger: Ledger, store: LaneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        ledger.record(number, [send(number, number + 1)])
    late = Ledger(store)
    from mirror_pipeline.buffer.tables import upkeep as module

    really = vars(module)["write_rows"]

    def meanwhile(*args: object, **named: object) -> object:
        monkeypatch.setattr(module, "write_rows", really)
        assert ledger.maintain(max_files=1).joined == 4
        return really(*args, **named)

    monkeypatch.setattr(module, "write_rows", meanwhile)
    assert late.maintain(max_files=1).joined == 0
    assert ledger.sends() == [send(number, number + 1) for number in range(4)]
    assert len(files(store, "sends")) == 5


def test_every_life_and_the_sends_behind_an_offset_are_found(ledger: Ledger) -> None:
    ledger.add_incarnation(life({0: 0}))
    ledger.add_incarnation(life({0: 0, 1: 0}))
    later = life({0: 0}, incarnation="BBBB", at=2_000)
    ledger.add_incarnation(later)
    assert ledger.generations() == {("orders", LIFE): life({0: 0, 1: 0}), ("orders", "BBBB"): later}
    for number in range(4):
        ledger.record(number, [send(number, number + 1), send(number, number + 1, partition=1)])
    ledger.record(4, [replace(send(0, 9), incarnation="BBBB"), hole(4, 5, ordinal=4, target=4)])
    found = ledger.sends_after({("orders", 0, LIFE): 3, ("orders", 1, LIFE): 0, ("orders", 7, "none"): 0})
    assert sorted(zip(found["partition"].to_pylist(), found["source_start"].to_pylist(), strict=True)) == [
        (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (1, 3),
    ]  # fmt: skip
    assert found.schema == ledger.sends_table().schema
    assert ledger.sends_after({}).num_rows == 0
    assert ledger.reached() == {("orders", 0, LIFE): 5, ("orders", 1, LIFE): 4, ("orders", 0, "BBBB"): 9}
