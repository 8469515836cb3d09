"""How many requests a broker gets for what there is to read over a short link."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.read.messages import ReadTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.short_fetch import ONE_REQUEST_BYTES, ShortFetch, Throttle
from mirror_pipeline.model import OffsetRange, TopicPartition
from tests.support.read_tasks import Written, handler_of

PARTITIONS = 4


@pytest.mark.parametrize(("waiting", "connections"), [(ONE_REQUEST_BYTES, 1), (ONE_REQUEST_BYTES + 400, 2)])
def test_a_trickle_takes_one_request_a_broker_and_more_takes_two(waiting: int, connections: int) -> None:
    ranges = [OffsetRange("t", p, 10, 10 + waiting // PARTITIONS // 100, 10**6, "id", bytes_per_offset=100.0) for p in range(PARTITIONS)]
    rules = tuple(RangeRules(each, 10**6, True, False) for each in ranges)
    task = ReadTask(LaneStore("/nowhere"), ClusterSettings("east", ("a:1",)), 0, 0, rules, 1 << 20, 1 << 20, 10**9, 5.0, 5.0, False)
    opened: list[tuple[int, int]] = []

    def connection(node: int, lane: int, **_: float) -> object:
        opened.append((node, lane))
        return SimpleNamespace(round_trip=0.001, limit=lambda seconds: None)

    client = SimpleNamespace(round_trip=0.0, connection=connection)
    handler, outcomes = handler_of(task, Written(), client)
    sources = [TopicPartition("t", number) for number in range(PARTITIONS)]
    ShortFetch(task, client, handler, outcomes, Throttle(None)).open({4: sources})  # type: ignore[arg-type]
    assert opened == [(4, lane) for lane in range(connections)]
