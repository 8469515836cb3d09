"""Failover: what a planned and an unplanned one take along, and what they say of the rest."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place

from mirror_pipeline import Mirror
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.features.failover.report import FailoverOptions
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.topics.alter import alter_topics
from tests.integration.processes import wait_until
from tests.support.groups import commit, committed, running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import add_partitions, create_topic, make_mirror, nowhere, produce, values
from tests.support.reverse_pair import IN_PROCESS, states

pytestmark = pytest.mark.long


def mirror_of(folder: Path, clusters: ClusterPair, *topics: str, **more: Any) -> Mirror:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    return make_mirror(folder, east, west, topics, engine=IN_PROCESS, **more)


def copied(folder: Path, clusters: ClusterPair, topic: str) -> Mirror:
    """A mirror after its first run over ten records."""
    east = clusters[0].bootstrap_servers
    create_topic(east, topic)
    produce(east, topic, 10)
    mirror = mirror_of(folder, clusters, topic)
    mirror.run(once=True)
    return mirror


def places(mirror: Mirror, options: FailoverOptions | None = None) -> dict[str, list[tuple[int, int, int]]]:
    report = mirror.failover(options)
    return {t.topic: [(p.partition, p.source_offset, p.target_offset) for p in t.partitions] for t in report.topics}


def test_partitions_that_the_source_has_got_since_the_last_run_are_promoted_too(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    east = clusters[0].bootstrap_servers
    mirror = copied(tmp_path, clusters, topic_name)
    add_partitions(east, topic_name, 2)
    produce(east, topic_name, 20, partitions=2, start=10)
    assert places(mirror) == {topic_name: [(0, 20, 20), (1, 10, 10)]}
    assert len(values(mirror, f"east.{topic_name}", 1)) == 10


def test_every_lane_is_handed_over_in_one_commit(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east = clusters[0].bootstrap_servers
    names = [f"{topic_name}.{n}" for n in range(6)]
    for number, name in enumerate(names):
        create_topic(east, name, 2)
        produce(east, name, 10 + 2 * number, partitions=2)
    mirror = mirror_of(tmp_path, clusters, f"{topic_name}.*", lanes=2)
    mirror.run(once=True)
    produce(east, names[0], 4, partitions=2, start=100)
    found = places(mirror)
    wanted = {name: 10 + 2 * number + 4 * (number == 0) for number, name in enumerate(names)}
    assert {name: sum(at for _, at, _ in rows) for name, rows in found.items()} == wanted
    assert len(mirror.flow.lane_stores()) == 2
    assert set(states(mirror).values()) == {"promoted"}


def test_a_topic_that_was_never_copied_is_named(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east = clusters[0].bootstrap_servers
    for name in ("a", "b"):
        create_topic(east, f"{topic_name}.{name}")
        produce(east, f"{topic_name}.{name}", 5)
    mirror = mirror_of(tmp_path, clusters, f"{topic_name}.*")
    mirror.run(once=True, topics=[f"{topic_name}.a"])
    assert f"{topic_name}.b was never copied" in "; ".join(mirror.failover(FailoverOptions(dry_run=True)).notes)
    report = mirror.failover()
    assert [t.topic for t in report.topics] == [f"{topic_name}.a"]
    assert f"{topic_name}.b was never copied" in "; ".join(report.notes)
    assert states(mirror) == {f"{topic_name}.a": "promoted", f"{topic_name}.b": "ok"}
    assert [t.topic for t in mirror.failover().topics] == [f"{topic_name}.b"], "the rest, by the same command"


def test_a_group_that_had_read_further_than_the_copy_continues_at_its_end(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    group = f"{topic_name}-g"
    create_topic(east, topic_name)
    produce(east, topic_name, 100)
    mirror = mirror_of(tmp_path, clusters, topic_name, groups={"include": [f"{topic_name}.*"], "interval": "1s"})
    commit(east, group, {Place(topic_name, 0): 60})
    mirror.run(once=True)
    assert committed(west, group)[f"east.{topic_name}", 0][0] == 60
    produce(east, topic_name, 20, start=100)
    commit(east, group, {Place(topic_name, 0): 115})
    mirror.carry_groups()  # seen, and not written: its record is not copied
    assert committed(west, group)[f"east.{topic_name}", 0][0] == 60
    mirror.flow.source = nowhere(mirror.flow.source)
    report = mirror.failover()
    assert [(row.offset, row.why) for row in report.groups] == [(100, "")]
    assert committed(west, group)[f"east.{topic_name}", 0][0] == 100
    assert any("up to offset 115, the copy ends at 100" in note for note in report.notes)


def test_records_that_others_have_written_to_the_copy_are_named(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = copied(tmp_path, clusters, topic_name)
    produce(west, f"east.{topic_name}", 3, start=500)
    report = mirror.failover(FailoverOptions(unplanned=True))
    assert any("holds 3 records of others from offset 10 on" in note for note in report.notes)


def test_a_source_that_was_not_asked_is_not_said_to_be_down(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    mirror = copied(tmp_path, clusters, topic_name)
    mirror.failover(FailoverOptions(unplanned=True))
    assert mirror.undelivered().source_down_since is None


def test_producers_of_many_partitions_are_asked_for_together(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    east = clusters[0].bootstrap_servers
    create_topic(east, topic_name, 12)
    produce(east, topic_name, 12, partitions=12)
    mirror = mirror_of(tmp_path, clusters, topic_name)
    mirror.run(once=True)
    produce(east, topic_name, 12, partitions=12)
    asked: list[int] = []
    real = WireClient.describe_producers

    def counted(self: WireClient, tps: Any, **more: Any) -> Any:
        asked.append(len(tps))
        return real(self, tps, **more)

    monkeypatch.setattr(WireClient, "describe_producers", counted)
    assert len(mirror.failover(FailoverOptions(dry_run=True)).producing) == 12
    assert asked == [12]


def test_a_stop_before_the_promotion_promotes_nothing(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    create_topic(clusters[0].bootstrap_servers, topic_name)
    produce(clusters[0].bootstrap_servers, topic_name, 10)
    mirror = mirror_of(tmp_path, clusters, topic_name)
    mirror.run(once=True)
    stop = threading.Event()
    stop.set()
    with pytest.raises(ProblemFound, match="stopped before the promotion: nothing was promoted"):
        mirror.failover(stop=stop)
    assert states(mirror) == {topic_name: "ok"}


def test_a_source_that_is_written_to_all_the_time_is_not_waited_for_longer_than_asked(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    east = clusters[0].bootstrap_servers
    mirror = copied(tmp_path, clusters, topic_name)
    ended = threading.Event()

    def write() -> None:
        number = 10
        while not ended.wait(0.02):
            produce(east, topic_name, 1, start=number)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(ProblemFound, match="is still written to") as caught:
            mirror.failover(FailoverOptions(wait=2))
    finally:
        ended.set()
        writer.join()
    assert "--unplanned" in caught.value.hint
    assert states(mirror) == {topic_name: "ok"}
    assert mirror.failover().state == "promoted"


def retention(servers: str, topic: str, wanted: str | None = None) -> str | None:
    """The topic's retention.ms, set first when ``wanted`` says to what."""
    with Admin(ClusterSettings("any", tuple(servers.split(",")))) as admin:
        if wanted is not None:
            assert alter_topics(admin, {topic: {"retention.ms": wanted}}) == {topic: None}
        found = admin.topic_configs([topic])[topic]
        assert isinstance(found, dict), found
        return found["retention.ms"].value


def test_settings_of_a_promoted_topic_are_the_applications_own(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    names = [f"{topic_name}.{n}" for n in ("over", "stays")]
    for name in names:
        create_topic(east, name, retention__ms="90000000")
        produce(east, name, 5)
    mirror = mirror_of(tmp_path, clusters, topics={"include": [f"{topic_name}.*"], "configs": {"interval": "1s"}})
    mirror.run(once=True)
    mirror.failover(FailoverOptions(topics=names[:1]))
    for name in names:
        retention(east, name, "70000000")
    with running(mirror):
        wait_until(lambda: retention(west, f"east.{names[1]}") == "70000000", 60, "the other topic's setting to follow")
    assert retention(west, f"east.{names[0]}") == "90000000"
