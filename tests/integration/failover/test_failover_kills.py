"""Failover and failback killed after each of their steps, with kill -9: the same command finishes them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mirror_pipeline.crash_points import FAILOVER_POINTS
from mirror_pipeline.features.failover.report import FailoverOptions
from tests.support.commands import command
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, produce, values
from tests.support.reverse_pair import pair, states


@pytest.mark.long
@pytest.mark.parametrize("point", FAILOVER_POINTS)
def test_the_same_command_finishes_what_was_killed(clusters: ClusterPair, tmp_path: Path, topic_name: str, point: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    for cluster in (east, west):
        create_topic(cluster, topic_name, 2)
    forth, back = pair(tmp_path, clusters, topic_name)
    produce(east, topic_name, 100, partitions=2)
    forth.run(once=True)
    produce(east, topic_name, 20, partitions=2, start=100)
    over = ("failover", "m", *(() if point.startswith("failover") else ("--unplanned",)))
    if point.startswith("failover"):
        assert command(tmp_path, *over, crash=point) == -signal.SIGKILL
        promoted = point in ("failover.promoted", "failover.written")
        assert states(forth) == {topic_name: "promoted" if promoted else "ok"}
        assert command(tmp_path, *over) == (2 if point == "failover.written" else 0)
        wanted = 120
    else:
        forth.failover(FailoverOptions(unplanned=True))
        wanted = 100
    assert states(forth) == {topic_name: "promoted"}
    assert sum(len(values(forth, f"east.{topic_name}", part)) for part in (0, 1)) == wanted

    produce(west, topic_name, 30, partitions=2, start=1000)
    tail = ("failback", "m", *(("--tail", "copy-aside") if wanted == 100 else ()))
    if point.startswith("failback"):
        assert command(tmp_path, *tail, crash=point) == -signal.SIGKILL
        assert states(back) == {topic_name: "ok" if point == "failback.opened" else "standby"}
        assert command(tmp_path, *tail) == (2 if point == "failback.opened" else 0)
        assert sum(len(values(forth, f"{topic_name}.unreplicated", part)) for part in (0, 1)) == 20
    else:
        assert command(tmp_path, *tail) == 0
    assert states(back) == {topic_name: "ok"}
    assert sum(len(values(back, f"west.{topic_name}", part)) for part in (0, 1)) == 30
