"""The log of a local table: what deltalake writes is read, what is written deltalake reads, and no writer overwrites another."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable, Schema

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.handle_log import HandleLog
from mirror_pipeline.buffer.tables.local_log import STAGED_AGE, LocalLog, sweep
from mirror_pipeline.buffer.tables.schema import SPANS

APP = "test"


@pytest.fixture
def log(store: LaneStore) -> DeltaLog:
    log = DeltaLog(store, SPANS)
    log.ensure()
    return log


def put(log: DeltaLog, number: int, name: str = "") -> bool:
    stats = {"numRecords": 1}
    action = add_action(name or f"part-{number:010d}.parquet", 10 + number, stats, {"micro_batch": str(number)}, modified=1000 + number)
    return log.commit([action], app_id=APP, version=number)


def by_deltalake(log: DeltaLog) -> HandleLog:
    """Another program's handle on the same table."""
    other = HandleLog(log.uri, Schema.from_arrow(SPANS.schema), SPANS.partition_by, steps=100, durable=False)
    other.load(DeltaTable(log.uri), [], numbered=True)
    return other


def test_deltalake_reads_what_was_written(log: DeltaLog) -> None:
    for number in range(4):
        assert put(log, number)
    files = log.files()
    assert [f.path for f in log.replace([files["part-0000000001.parquet"]])] == ["part-0000000001.parquet"]
    assert isinstance(log._log, LocalLog)
    table = DeltaTable(log.uri)
    other = by_deltalake(log)
    assert other.live == log.files()
    assert sorted(file.micro_batch for file in other.live.values()) == [0, 2, 3]
    assert (other.number(APP), table.version()) == (3, 5)
    assert {entry["operation"] for entry in table.history(4)} == {"WRITE"}
    assert not [name for name in os.listdir(f"{log.uri}/_delta_log") if "#" in name]


def test_entries_of_others_are_taken_over(log: DeltaLog) -> None:
    put(log, 0)
    other = by_deltalake(log)
    for number in range(1, 9, 2):
        other.append([add_action(f"other-{number}.parquet", 5, {"numRecords": 1}, {"micro_batch": str(number)})], {APP: number})
        assert put(log, number) is False
        assert log.transaction(APP) == number
        assert put(log, number + 1)
        other.advance()
    assert log.files() == other.live
    assert len(log.files()) == 9


def test_an_entry_is_never_replaced(log: DeltaLog) -> None:
    put(log, 0)
    mine = log._log
    assert isinstance(mine, LocalLog)
    by_deltalake(log).append([add_action("other.parquet", 5, {"numRecords": 1}, {"micro_batch": "1"})], {APP: 1})
    taken = Path(log.uri, "_delta_log", f"{2:020d}.json")
    before = taken.read_bytes()
    with pytest.raises(FileExistsError):
        mine.append([add_action("late.parquet", 5, {"numRecords": 1}, {"micro_batch": "1"})], {APP: 1})
    assert taken.read_bytes() == before
    assert mine.version == 1
    assert "late.parquet" not in mine.live


def test_each_number_lands_once_whoever_commits_it(store: LaneStore, log: DeltaLog) -> None:
    logs = [log, DeltaLog(store, SPANS, durable=False)]

    def commit_all(index: int) -> set[int]:
        return {number for number in range(30) if put(logs[index], number, f"part-{index}-{number}.parquet")}

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(commit_all, range(2))
    assert not first & second
    live = {file.path for file in DeltaLog(store, SPANS).files().values()}
    assert live == {f"part-0-{n}.parquet" for n in first} | {f"part-1-{n}.parquet" for n in second}
    assert max(first | second) == 29


def test_a_stale_writer_does_not_write_below_a_checkpoint(store: LaneStore, log: DeltaLog) -> None:
    put(log, 0)
    stale = DeltaLog(store, SPANS)
    stale.transaction(APP)
    for number in range(1, 6):
        put(log, number)
    for entry in Path(log.uri, "_delta_log").glob("*.json"):
        os.utime(entry, (1, 1))
    log.checkpoint()
    assert not Path(log.uri, "_delta_log", f"{2:020d}.json").exists()
    assert put(stale, 3) is False
    assert put(stale, 6)
    assert log.files().keys() == stale.files().keys() == by_deltalake(log).live.keys()
    assert len(log.files()) == 7


@pytest.mark.parametrize("entry", ['{"metaData": {}}', '{"unknown": {}}', '{"add": {"path": "x"}}', "[]", "not JSON"])
def test_what_is_not_understood_is_left_to_deltalake(log: DeltaLog, entry: str) -> None:
    put(log, 0)
    mine = log._log
    assert isinstance(mine, LocalLog)
    live = dict(mine.live)
    Path(log.uri, "_delta_log", f"{2:020d}.json").write_text(entry)
    assert mine.advance() is False
    assert (mine.live, mine.version) == (live, 1)


def test_a_table_with_other_features_is_left_to_deltalake(log: DeltaLog) -> None:
    put(log, 0)
    assert isinstance(log._log, LocalLog)
    DeltaTable(log.uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true", "delta.minWriterVersion": "4"})
    assert put(log, 1)
    assert isinstance(log._log, HandleLog)
    assert put(log, 1) is False
    assert sorted(file.micro_batch for file in log.files().values()) == [0, 1]


def test_unfinished_entries_are_removed_once_they_are_old(log: DeltaLog) -> None:
    folder = Path(log.uri, "_delta_log")
    old, young = folder / f"{7:020d}.json#12", folder / f"{7:020d}.json#13"
    for path in (old, young):
        path.write_text("{")
    long_ago = old.stat().st_mtime - STAGED_AGE - 1
    os.utime(old, (long_ago, long_ago))
    assert put(log, 0)
    assert DeltaTable(log.uri).version() == 1
    sweep(log.uri, time.time)
    assert (old.exists(), young.exists()) == (False, True)
