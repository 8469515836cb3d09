"""A client quota on the source: what it holds back comes over the same connections, all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline.engine.tasks.longlink.parallel_fetch import ParallelFetch
from mirror_pipeline.local.shapes.bulk import fill_bulk
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, make_mirror
from tests.support.quotas import set_quotas


@pytest.mark.long
def test_a_quota_costs_no_connection(clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    records = fill_bulk(east, topic_name, 3, 12_000_000)
    lost: list[str] = []
    held: list[float] = []
    lose, throttled = ParallelFetch._lost, ParallelFetch._throttled

    def lose_and_tell(self: ParallelFetch, line: Any, problem: Exception) -> None:
        lost.append(str(problem))
        lose(self, line, problem)

    def count(self: ParallelFetch, line: Any) -> None:
        held.append(line.connection.throttle)
        throttled(self, line)

    monkeypatch.setattr(ParallelFetch, "_lost", lose_and_tell)
    monkeypatch.setattr(ParallelFetch, "_throttled", count)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine={"connections": 16, "inline_bytes": "1GB", "source_wait": "60s"})
    set_quotas(east, {"consumer_byte_rate": 250_000.0})  # per broker
    try:
        report = mirror.run(once=True)
    finally:
        set_quotas(east, {"consumer_byte_rate": None})
    assert (report.state, report.records) == ("ok", records)
    assert held, "the quota held answers back"
    assert lost == []
    assert_identical(mirror, [topic_name])
