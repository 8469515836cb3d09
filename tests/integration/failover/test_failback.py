"""Failback: after a failover the mirror of the other direction is opened, and back again."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.features.failover.report import FailbackOptions, FailoverOptions
from tests.integration.processes import wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, produce, values, write_config
from tests.support.reverse_pair import IN_PROCESS, pair, states


def test_there_and_back_and_there_again(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    for cluster in (east, west):
        create_topic(cluster, topic_name)
    forth, back = pair(tmp_path, clusters, topic_name)
    produce(east, topic_name, 100)
    assert states(forth) == {topic_name: "ok"}
    assert states(back) == {topic_name: "standby"}
    with pytest.raises(UsageError, match="was not failed over"):
        forth.failback()

    produce(east, topic_name, 7, start=100)  # never comes over
    forth.failover(FailoverOptions(unplanned=True))
    produce(west, topic_name, 30, start=1000)  # applications write on the new primary
    assert states(back) == {topic_name: "standby"}

    with pytest.raises(ProblemFound, match=r"from offset 100 to 107; nothing was opened"):
        forth.failback()
    dry = forth.failback(FailbackOptions(dry_run=True, tail="leave"))
    assert (dry.state, [(t.start, t.end) for t in dry.tail]) == ("ready", [(100, 107)])
    assert states(back) == {topic_name: "standby"}

    done = forth.failback(FailbackOptions(tail="leave"))
    assert (done.state, done.reverse, [t.copied for t in done.topics]) == ("open", "back", [topic_name])
    assert (states(forth), states(back)) == ({topic_name: "promoted"}, {topic_name: "ok"})
    assert len(values(back, f"west.{topic_name}")) == 30
    capsys.readouterr()
    assert main(["failback", "m", "-c", str(tmp_path / "mirror.yaml")]) == 2
    assert "is open already" in capsys.readouterr().err

    produce(west, topic_name, 5, start=1030)
    over = back.failover()
    assert (over.mode, [p.source_offset for t in over.topics for p in t.partitions]) == ("planned", [35])
    assert back.failback().state == "open"
    assert (states(forth), states(back)) == ({topic_name: "ok"}, {topic_name: "promoted"})
    assert len(values(forth, f"east.{topic_name}")) == 107, "with what had never come over"
    assert forth.verify().ok
    assert forth.failover().number == 3


def test_the_tail_is_copied_aside(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    forth, _ = pair(tmp_path, clusters, topic_name)
    produce(east, topic_name, 100, partitions=2)
    forth.run(once=True)
    produce(east, topic_name, 20, partitions=2, start=500)
    forth.failover(FailoverOptions(unplanned=True))
    create_topic(west, topic_name, 2)
    done = forth.failback(FailbackOptions(tail="copy-aside"))
    assert done.aside == ((topic_name, f"{topic_name}.unreplicated"),)
    aside = [value for part in (0, 1) for value in values(forth, f"{topic_name}.unreplicated", part)]
    assert sorted(aside) == [f"value-{n}".ljust(20, ".") for n in range(500, 520)]


def test_a_topic_that_was_recreated_on_the_old_source_never_came_over(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    forth, _ = pair(tmp_path, clusters, topic_name)
    produce(east, topic_name, 100)
    forth.run(once=True)
    forth.failover(FailoverOptions(unplanned=True))
    create_topic(west, topic_name)
    admin = AdminClient({"bootstrap.servers": east})
    admin.delete_topics([topic_name])[topic_name].result(30)
    wait_until(lambda: topic_name not in admin.list_topics(timeout=10).topics, 30, "the topic is gone")
    create_topic(east, topic_name)
    produce(east, topic_name, 7)
    with pytest.raises(ProblemFound, match=r"from offset 0 to 7; nothing was opened"):
        forth.failback()


def test_without_a_reverse_mirror_there_is_no_way_back(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    mirror = Mirror(load_config(write_config(tmp_path, east, west, [topic_name], engine=IN_PROCESS)), "m")
    mirror.run(once=True)
    mirror.failover()
    with pytest.raises(UsageError, match="has no reverse mirror"):
        mirror.failback()
