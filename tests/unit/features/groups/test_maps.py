"""Maps that follow a ledger: new rows, joined files, new topics and generations give the same as a fresh reading."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.features.groups.maps import LaneMaps, MirrorMaps
from mirror_pipeline.model import TopicPartition
from tests.support.buffer_samples import LIFE, Settings, hole, life, send

ORDERS = TopicPartition("orders", 0)


def test_maps_follow_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    ledger = Ledger(store, durable=False)
    ledger.ensure()
    ledger.add_incarnations([life({0: 0}), life({0: 0}, topic="pay")])
    maps = MirrorMaps()
    assert maps.refresh([store], {"orders"})[ORDERS].to_target(0).offset == 0
    source = target = 0
    for number in range(30):
        ledger.record(ledger.last_record() + 1, [send(source, source + 5, target=target, ordinal=target)])
        source, target = source + 5, target + 5
        if number % 4 == 0:
            ledger.record(ledger.last_record() + 1, [hole(source, source + 2, ordinal=target, target=target)])
            source += 2
        if number % 7 == 0:  # old rows are joined, so known rows come again in a new file
            monkeypatch.setattr(time, "time", lambda: 4e9)
            ledger.maintain(max_files=1)
            monkeypatch.undo()
        found = maps.refresh([store], {"orders"})
        fresh = LaneMaps(Ledger(store))
        fresh.refresh({"orders"})
        assert set(found) == {ORDERS}
        assert [found[ORDERS].to_target(n) for n in range(source + 2)] == [fresh.maps[ORDERS].to_target(n) for n in range(source + 2)]
        assert found[ORDERS].to_target(source).offset == target


def test_a_new_topic_or_generation_is_read_from_its_beginning(tmp_path: Path) -> None:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    ledger = Ledger(store, durable=False)
    ledger.ensure()
    ledger.add_incarnations([life({0: 0}), life({0: 0}, topic="pay")])
    ledger.record(0, [send(0, 10), send(0, 3, topic="pay")])
    maps = MirrorMaps()
    maps.refresh([store], {"orders"})
    found = maps.refresh([store], {"orders", "pay"})
    assert found[TopicPartition("pay", 0)].to_target(3).offset == 3
    ledger.add_incarnation(life({0: 0}, incarnation=LIFE[:-1] + "B", at=2_000))
    assert maps.refresh([store], {"orders"})[ORDERS].to_target(0).generation == 2
