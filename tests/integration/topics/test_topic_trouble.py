"""Topics that wait for brokers, or that others make meanwhile: each waits alone, in a thread apart; the other topics never stand still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline import Mirror
from mirror_pipeline.engine.driver import lane
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.local.shapes.ground import local_settings
from mirror_pipeline.reports import RunReport
from tests.integration.processes import wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import add_partitions, create_topic, end_offsets, make_mirror, produce

Start = Callable[..., list[LocalCluster]]
ENGINE = {"inline_bytes": "1GB", "request_timeout": "10s"}
HEALTHY_SECONDS = 10.0
LOST = 3


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs look for new topics every second."""
    monkeypatch.setattr(lane, "DISCOVER_SECONDS", 1.0)
    monkeypatch.setattr(lane, "RAREST_DISCOVER_SECONDS", 1.0)


@contextmanager
def running(mirror: Mirror) -> Iterator[list[RunReport]]:
    """A continuous run in a thread; its report is in the list afterwards."""
    stop, reports = threading.Event(), list[RunReport]()
    thread = threading.Thread(target=lambda: reports.append(mirror.run(stop=stop)), daemon=True)
    thread.start()
    try:
        yield reports
    finally:
        stop.set()
        thread.join(120)
    assert reports, "the run failed"


def place(bootstrap: str, names: Sequence[str], node: int) -> None:
    """Topics of one partition whose only replica is on this broker."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 1, replica_assignment=[[node]]) for name in names]).values():
        future.result(30)


def fill(bootstrap: str, names: Sequence[str]) -> None:
    """One record for each topic."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for name in names:
        producer.produce(name, b"one", b"key", 0)
    assert producer.flush(60) == 0


def leaderless(cluster: LocalCluster, names: Sequence[str]) -> bool:
    with WireClient(local_settings(cluster.bootstrap_servers)) as client:
        topics = client.metadata(names).topics.values()
        return all(part.leader < 0 for topic in topics for part in topic.partitions.values())


def copied(mirror: Mirror, topic: str, count: int) -> Callable[[], bool]:
    return lambda: end_offsets(mirror, f"east.{topic}", target=True) == {0: count}


def states(mirror: Mirror) -> Mapping[str, tuple[str, str]]:
    (status,) = mirror.status().lanes
    return {row.topic: (row.state, row.reason) for row in status.topics}


@pytest.mark.long
def test_topics_without_leaders_on_either_side_wait_alone(cluster_factory: Start, tmp_path: Path, soon: None) -> None:
    source, target = cluster_factory(names=["east", "west"], brokers=3, heap="256m")
    east, west = source.bootstrap_servers, target.bootstrap_servers
    of_source, of_target = [f"t-s{number}" for number in range(100)], [f"t-t{number}" for number in range(10)]
    place(east, ["t-ok", *of_target], 1)
    place(east, of_source, LOST)
    place(west, [f"east.{name}" for name in of_target], LOST)
    place(west, ["east.t-ok"], 1)
    fill(east, [*of_source, *of_target])
    topics = {"include": ["t-.*"], "replication_factor": 1}
    mirror = make_mirror(tmp_path, east, west, ["t-.*"], topics=topics, engine=ENGINE)
    source.kill(node=LOST)
    target.kill(node=LOST)
    wait_until(lambda: leaderless(source, of_source) and leaderless(target, [f"east.{name}" for name in of_target]), 60, "the loss")
    with running(mirror) as reports:
        for turn in range(1, 5):
            produce(east, "t-ok", 10, start=10 * turn)
            wait_until(copied(mirror, "t-ok", 10 * turn), HEALTHY_SECONDS if turn > 1 else 60, f"the healthy topic, turn {turn}")
            place(east, [f"t-new{turn}"], 1)
            fill(east, [f"t-new{turn}"])
            wait_until(lambda new=f"t-new{turn}": f"east.{new}" in mirror.flow.target_admin().topics(), HEALTHY_SECONDS, "a new topic")  # type: ignore[misc]
            wait_until(copied(mirror, f"t-new{turn}", 1), HEALTHY_SECONDS, "a new topic's record")
        shown = states(mirror)
        assert {shown[name][0] for name in (*of_source, *of_target)} == {"behind"}, "they wait, and are not halted"
        assert all("LEADER_NOT_AVAILABLE" in shown[name][1] for name in (*of_source, *of_target))
        began = time.monotonic()
        assert any(row.topic == "t-ok" and row.partitions for row in mirror.lag().topics)
        assert time.monotonic() - began < HEALTHY_SECONDS, "nor does a command wait for them"
        assert {row.topic for row in mirror.plan().topics if row.blockers} == set()
        source.start()
        target.start()
        for name in (*of_source, *of_target):
            wait_until(copied(mirror, name, 1) if name in of_target else _there(mirror, name), 60, name)
    assert {row.state for row in reports[0].topics} == {"ok"}


def _there(mirror: Mirror, name: str) -> Callable[[], bool]:
    return lambda: states(mirror).get(name, ("", ""))[0] == "ok" and copied(mirror, name, 1)()


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.3.0", "3.9.1"])
def test_new_topics_wait_for_a_broker_that_is_down(cluster_factory: Start, tmp_path: Path, version: str) -> None:
    (source,) = cluster_factory(names=["east"], brokers=1)
    # The cluster does not say how many replicas are usual; before Kafka 4 only topics tell which brokers there are.
    (target,) = cluster_factory(names=["west"], brokers=3, heap="256m", version=version, config={"default.replication.factor": "1"})
    east, west = source.bootstrap_servers, target.bootstrap_servers
    create_topic(east, "t")
    produce(east, "t", 10)
    create_topic(west, "mine", replicas=3)
    mirror = make_mirror(tmp_path, east, west, ["t", "u"], engine=ENGINE | {"target_wait": "3s"})
    target.kill(node=LOST)
    wait_until(lambda: LOST not in mirror.flow.target_admin().describe().brokers, 60, "the broker to be missed")
    (row,) = mirror.plan().topics
    said = f"waits for broker {LOST} of cluster west: 3 replicas, 2 brokers are up"
    assert not row.blockers and said in row.warnings
    report = mirror.run(once=True)
    assert [(each.state, said in each.reason) for each in report.topics] == [("halted", True)], "a run that ends names it"
    assert "east.t" not in mirror.flow.target_admin().topics()
    with running(mirror):
        wait_until(lambda: said in states(mirror).get("t", ("", ""))[1], 60, "the reason")
        target.start()
        wait_until(lambda: "east.t" in mirror.flow.target_admin().topics(), 90, "the topic")
        wait_until(copied(mirror, "t", 10), 60, "its records")
    assert mirror.flow.target_admin().topics(["east.t"])["east.t"].replication_factor == 3
    create_topic(east, "u")
    create_topic(west, "east.u", replicas=2)
    (row,) = [row for row in mirror.plan().topics if row.topic == "u"]
    assert any("east.u on west has 2 replicas, made today it would get 3" in warning for warning in row.warnings)


@pytest.mark.long
def test_a_target_of_two_brokers_waits_for_no_third(cluster_factory: Start, tmp_path: Path, clusters: ClusterPair, topic_name: str) -> None:
    (target,) = cluster_factory(names=["west"], brokers=2, config={"default.replication.factor": "1"})
    east = clusters[0].bootstrap_servers
    create_topic(east, topic_name)
    produce(east, topic_name, 10)
    mirror = make_mirror(tmp_path, east, target.bootstrap_servers, [topic_name], engine=ENGINE)
    assert mirror.run(once=True).state == "ok"
    assert mirror.flow.target_admin().topics([f"east.{topic_name}"])[f"east.{topic_name}"].replication_factor == 2


def overtaken(monkeypatch: pytest.MonkeyPatch, west: str, name: str, partitions: int, records: int = 0) -> list[str]:
    """Somebody else makes the target topic just before the mirror's request arrives; what the mirror is told."""
    told: list[str] = []
    create = AdminClient.create_topics

    def late(self: AdminClient, topics: list[NewTopic], **options: Any) -> Any:
        if told or [topic.topic for topic in topics] != [name]:
            return create(self, topics, **options)
        told.append("")
        create_topic(west, name, partitions)
        if records:
            produce(west, name, records)
        answers = create(self, topics, **options)
        refusal: Any = answers[name].exception(30)
        told[0] = refusal.args[0].name()
        return answers

    monkeypatch.setattr(AdminClient, "create_topics", late)
    return told


@pytest.mark.parametrize(("partitions", "there"), [(1, 6), (6, 6), (8, 8)])
def test_a_topic_that_others_create_meanwhile_is_looked_at_again(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch, partitions: int, there: int
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 6)
    produce(east, topic_name, 60, partitions=6)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=ENGINE)
    told = overtaken(monkeypatch, west, f"east.{topic_name}", partitions)
    began = time.monotonic()
    report = mirror.run(once=True)
    assert (report.state, report.records, told) == ("ok", 60, ["TOPIC_ALREADY_EXISTS"])
    assert time.monotonic() - began < 25, "nothing waits for partitions that nobody adds"
    assert len(end_offsets(mirror, f"east.{topic_name}", target=True)) == there


def test_a_topic_that_others_create_and_fill_meanwhile_is_refused(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=ENGINE)
    overtaken(monkeypatch, west, f"east.{topic_name}", 1, records=3)
    (row,) = mirror.run(once=True).topics
    assert (row.state, row.code) == ("halted", "target_filled")


def test_a_topic_that_others_grow_meanwhile_is_looked_at_again(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 4)
    create_topic(west, f"east.{topic_name}", 2)
    produce(east, topic_name, 40, partitions=4)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=ENGINE)
    grow, refusals = Admin.grow, list[str]()

    def late(self: Admin, name: str, partitions: int) -> None:
        if not refusals:
            add_partitions(west, name, 5)
        try:
            grow(self, name, partitions)
        except BrokerError as error:
            refusals.append(error.name)
            raise

    monkeypatch.setattr(Admin, "grow", late)
    report = mirror.run(once=True)
    assert (report.state, report.records, refusals) == ("ok", 40, ["INVALID_PARTITIONS"])
