"""Delays by hour: from real ledgers, also one that an older version has made, and after its rows were thinned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from mirror_pipeline.buffer.ledger import ledger as ledgers
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.tables import delta, rows
from mirror_pipeline.buffer.tables.files import append_rows
from mirror_pipeline.buffer.tables.schema import SENDS
from mirror_pipeline.cli.show.tables_status import delays as shown
from mirror_pipeline.config.settings import BufferConfig
from mirror_pipeline.errors import UsageError
from mirror_pipeline.operations.state.delays import HOUR_MS, delays, quantile
from tests.support.buffer_samples import send

NOW = 1_790_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> LaneStore:
    return open_lane(BufferConfig(uri=str(tmp_path / "buffer")), "m", "lane-0")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    clock = SimpleNamespace(now=NOW)
    monkeypatch.setattr(ledgers, "_now", lambda: int(clock.now * 1000))
    yield clock


def flow(store: LaneStore) -> Any:
    return SimpleNamespace(name="m", lane_stores=lambda: [store])


def test_records_count_where_their_hour_is_and_with_their_rows_delay(store: LaneStore, clock: SimpleNamespace) -> None:
    ledger = Ledger(store)
    ledger.ensure()
    sent = [(7300, 0, 90, 40), (7290, 90, 100, 5000), (3700, 100, 101, None), (0, 101, 111, 7)]
    for number, (seconds, start, end, delay) in enumerate(sent):
        clock.now = NOW - seconds
        ledger.record(number, [replace(send(start, end), delay_ms=delay)])
    clock.now = NOW
    (topic,) = delays(flow(store), 3 * 3600, NOW).topics
    assert len(topic.hours) == 4
    assert [hour.at % HOUR_MS for hour in topic.hours] == [0] * 4
    assert [(hour.records, hour.delay_p50_ms, hour.delay_p99_ms) for hour in topic.hours if hour.records] == [
        (100, 40, 5000), (1, None, None), (10, 7, 7),
    ]  # fmt: skip
    (recent,) = delays(flow(store), 60, NOW).topics
    assert sum(hour.records for hour in recent.hours) == 10


def test_thinning_keeps_records_and_the_longest_delay(store: LaneStore, clock: SimpleNamespace) -> None:
    ledger = Ledger(store)
    ledger.ensure()
    for number in range(100):
        clock.now = time.time() - 900 + number / 1000
        ledger.record(number, [replace(send(number, number + 1), delay_ms=None if number == 3 else 5 if number % 10 else number)])
    before = delays(flow(store), 7200, time.time())
    assert ledger.maintain(max_files=2).joined > 0 and len(ledger.sends()) < 3
    after = delays(flow(store), 7200, time.time())
    for found in (before, after):
        (topic,) = found.topics
        assert sum(hour.records for hour in topic.hours) == 100
        assert max(hour.delay_p99_ms or 0 for hour in topic.hours) == 90


def test_ledgers_of_older_versions_are_read_and_continued(store: LaneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    older = replace(SENDS, schema=pa.schema([column for column in SENDS.schema if column.name != "delay_ms"]))
    log = delta.DeltaLog(store, older)
    log.ensure()
    old = rows.sends_table(store, [send(0, 10)], int(time.time() * 1000)).select(older.schema.names)
    append_rows(log, old, "mirror-ledger", 0, durable=True)
    ledger = Ledger(store)
    (topic,) = delays(flow(store), 60, time.time()).topics
    assert sum(hour.records for hour in topic.hours) == 10
    assert all(hour.delay_p50_ms is None for hour in topic.hours)
    ledger.ensure()
    ledger.record(1, [replace(send(10, 30), delay_ms=12)])
    (topic,) = delays(flow(store), 60, time.time()).topics
    assert sum(hour.records for hour in topic.hours) == 30
    assert {hour.delay_p99_ms for hour in topic.hours} - {None} == {12}


def test_more_than_the_ledger_keeps_apart_is_refused(store: LaneStore) -> None:
    with pytest.raises(UsageError, match="keeps hours apart"):
        delays(flow(store), 8 * 86_400, NOW)


def test_quantiles_count_records() -> None:
    assert quantile([], 0.5) is None
    assert quantile([(1, 99), (50, 1)], 0.99) == 1
    assert quantile([(1, 98), (50, 2)], 0.99) == 50


def test_what_was_not_sent_is_said(store: LaneStore) -> None:
    Ledger(store).ensure()
    assert shown(delays(flow(store), 60, NOW)) is not None
