"""`lanes` changed between two runs: no topic is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.errors import UsageError
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce

IN_PROCESS = {"inline_bytes": "1GB"}


@pytest.fixture
def topics(clusters: ClusterPair, new_topic_name: Callable[[], str]) -> list[str]:
    """Eight topics with 20 records each: with two or three lanes all have some."""
    names = [new_topic_name() for _ in range(8)]
    for name in names:
        create_topic(clusters[0].bootstrap_servers, name)
        produce(clusters[0].bootstrap_servers, name, 20)
    return names


@pytest.mark.parametrize(("before", "after"), [(2, 1), (3, 1), (1, 3)])
def test_all_topics_are_copied_on_with_another_number_of_lanes(
    clusters: ClusterPair, tmp_path: Path, topics: list[str], before: int, after: int
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)

    def mirror(lanes: int) -> Mirror:
        return make_mirror(tmp_path, east, west, topics, lanes=lanes, engine=IN_PROCESS)

    first = mirror(before).run(once=True)
    assert (first.state, first.records) == ("ok", 160)
    for name in topics:
        produce(east, name, 10, start=20)
    now = mirror(after)
    open_lane(now.flow.config.buffer, "m", "lane-7")  # a folder, and nothing in it
    assert sorted(t.topic for t in now.plan().topics) == sorted(topics)
    assert all(finding.ok for finding in now.check())
    assert now.lag().lag_records == 80
    second = now.run(once=True)
    assert (second.state, second.records) == ("ok", 80)
    assert sorted(row.topic for row in second.topics) == sorted(topics)
    assert_identical(now, topics)
    assert now.lag().lag_records == 0
    again = now.run(once=True)
    assert (again.state, again.records, len(again.topics)) == ("ok", 0, 8)
    with pytest.raises(UsageError, match="not lane-7"):
        now.run(once=True, lane=7)


def test_a_lane_of_before_can_be_run_alone(clusters: ClusterPair, tmp_path: Path, topics: list[str]) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    assert make_mirror(tmp_path, east, west, topics, lanes=2, engine=IN_PROCESS).run(once=True).state == "ok"
    fewer = make_mirror(tmp_path, east, west, topics, lanes=1, engine=IN_PROCESS)
    rows = [fewer.run(once=True, lane=number).topics for number in (0, 1)]
    assert sorted(row.topic for lane in rows for row in lane) == sorted(topics) and all(rows)
