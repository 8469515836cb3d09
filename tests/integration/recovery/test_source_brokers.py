"""A source of three brokers: answers that come late, a broker that does not answer although it leads, partitions without a leader."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline import Mirror
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters
from mirror_pipeline.model import TopicPartition
from tests.integration.processes import document, kill_tree, start_mirror, wait_until
from tests.support.mirrors import assert_identical, end_offsets, make_mirror, write_config

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SECONDS = 240
PARTITIONS = 12
SETTINGS = {"broker.session.timeout.ms": "600000", "replica.lag.time.max.ms": "600000", "auto.leader.rebalance.enable": "false"}
"""A broker that hangs keeps its leadership, as one does whose clients alone cannot reach it."""
WAYS: dict[str, dict[str, Any]] = {
    "in this process": {"inline_bytes": "1GB"},
    "many connections": {"inline_bytes": "1GB", "connections": 6},
    "spark": {"inline_bytes": 0, "spark_master": "local[4]"},
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """A source whose leaders stay, and a target of one broker."""
    folder = tmp_path_factory.mktemp("brokers")
    (source,) = start_clusters(folder, names=["a"], brokers=3, heap="256m", config=SETTINGS)
    (target,) = start_clusters(folder, names=["b"], heap="256m")
    yield source, target
    for cluster in (source, target):
        cluster.resume()
        cluster.kill()


def make_topic(source: LocalCluster, name: str, partitions: int, replicas: int) -> dict[int, int]:
    """Create it; leaders by partition."""
    admin = AdminClient({"bootstrap.servers": source.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(60)
    found: dict[int, int] = {}

    def led() -> bool:
        found.update({number: part.leader for number, part in admin.list_topics(name, timeout=20).topics[name].partitions.items()})
        return len(found) == partitions and min(found.values()) > 0

    wait_until(led, SECONDS, "leaders")
    return found


class Writer:
    """Numbered records for some partitions, from its own thread until it is stopped or has written ``count`` to each."""

    def __init__(self, source: LocalCluster, topic: str, partitions: Sequence[int], *, count: int | None = None) -> None:
        self._producer = Producer({"bootstrap.servers": source.bootstrap_servers, "enable.idempotence": True, "linger.ms": 5})
        self._topic, self._partitions, self._count = topic, partitions, count
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stop.wait(0.02) and number != self._count:
            for partition in self._partitions:
                self._producer.produce(self._topic, b"%d/%d" % (partition, number), b"key", partition)
            self._producer.poll(0)
            number += 1

    def end(self) -> None:
        """All that was written is acknowledged when this returns."""
        if self._count is None:
            self._stop.set()
        self._thread.join(SECONDS)
        assert self._producer.flush(SECONDS) == 0


def arrived(mirror: Mirror, topic: str, partitions: Sequence[int]) -> Callable[[], bool]:
    """Whether the target has what these partitions of the source hold now; the others are not asked."""

    with WireClient(mirror.flow.source) as client:
        wanted = {n: client.list_offsets({TopicPartition(topic, n): -1})[TopicPartition(topic, n)].offset for n in partitions}

    def there() -> bool:
        try:
            ends = end_offsets(mirror, f"east.{topic}", target=True)
        except KeyError:
            return False
        return all(ends.get(number, 0) >= end for number, end in wanted.items())

    return there


def stop(config: Path, process: Any, code: int = 0) -> dict[str, Any]:
    """End a run that has no end of its own; the mirror in its JSON document."""
    process.terminate()
    assert process.wait(120) == code, (config.parent / "stderr.txt").read_text()[-3000:]
    (mirror,) = document(config)["mirrors"]  # type: ignore[misc]
    return dict(mirror)


@pytest.mark.parametrize("replicas", [1, 3])
def test_answers_that_come_late_halt_nothing(brokers: tuple[LocalCluster, LocalCluster], tmp_path: Path, replicas: int) -> None:
    source, target = brokers
    name, chance = f"late-{replicas}", random.Random(replicas)
    make_topic(source, name, PARTITIONS, replicas)
    servers = source.bootstrap_servers, target.bootstrap_servers
    config = write_config(tmp_path, *servers, [name], engine=WAYS["in this process"])
    mirror = make_mirror(tmp_path, *servers, [name], engine=WAYS["in this process"])
    writer = Writer(source, name, range(PARTITIONS))
    process = start_mirror(config, "run", "--for", "10m", "--json")
    try:
        wait_until(lambda: process.poll() is not None or arrived(mirror, name, range(PARTITIONS))(), SECONDS, "the first records")
        for _ in range(12):
            node = chance.randint(1, 3)
            source.pause(node=node)
            time.sleep(chance.uniform(0.2, 2.5))
            source.resume(node=node)
            time.sleep(chance.uniform(0.2, 1.0))
        writer.end()
        there = arrived(mirror, name, range(PARTITIONS))
        wait_until(lambda: process.poll() is not None or there(), SECONDS, "all records on the target")
        report = stop(config, process)
    finally:
        kill_tree(process)
    assert (report["state"], [topic["state"] for topic in report["topics"]]) == ("ok", ["ok"])
    assert_identical(mirror, [name])


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_that_does_not_answer_costs_the_others_nothing(
    brokers: tuple[LocalCluster, LocalCluster], tmp_path: Path, way: str
) -> None:
    source, target = brokers
    name = f"silent-{way.replace(' ', '-')}"
    leaders = make_topic(source, name, PARTITIONS, 1)
    node = leaders[0]
    theirs = [number for number, leader in leaders.items() if leader != node]
    servers = source.bootstrap_servers, target.bootstrap_servers
    config = write_config(tmp_path, *servers, [name], engine=WAYS[way])
    mirror = make_mirror(tmp_path, *servers, [name], engine=WAYS[way])
    Writer(source, name, range(PARTITIONS), count=50).end()
    process = start_mirror(config, "run", "--for", "10m", "--json")
    try:
        there = arrived(mirror, name, range(PARTITIONS))
        wait_until(lambda: process.poll() is not None or there(), SECONDS, "the first records")
        whole = Writer(source, name, range(PARTITIONS))
        source.pause(node=node)
        for _ in range(3):
            Writer(source, name, theirs, count=30).end()
            there = arrived(mirror, name, theirs)
            wait_until(lambda t=there: process.poll() is not None or t(), 60, "records of the brokers that answer")  # type: ignore[misc]
        assert process.poll() is None
        source.resume(node=node)
        whole.end()
        there = arrived(mirror, name, range(PARTITIONS))
        wait_until(lambda: process.poll() is not None or there(), SECONDS, "all records on the target")
        report = stop(config, process)
    finally:
        source.resume(node=node)
        kill_tree(process)
    assert (report["state"], [topic["state"] for topic in report["topics"]]) == ("ok", ["ok"])
    assert_identical(mirror, [name])


def test_a_run_once_copies_what_answers_and_names_what_does_not(brokers: tuple[LocalCluster, LocalCluster], tmp_path: Path) -> None:
    source, target = brokers
    name = "once"
    leaders = make_topic(source, name, PARTITIONS, 1)
    node = leaders[0]
    theirs = [number for number, leader in leaders.items() if leader != node]
    engine = {**WAYS["in this process"], "source_wait": "8s"}
    servers = source.bootstrap_servers, target.bootstrap_servers
    config = write_config(tmp_path, *servers, [name], engine=engine)
    mirror = make_mirror(tmp_path, *servers, [name], engine=engine)
    Writer(source, name, range(PARTITIONS), count=50).end()
    process = start_mirror(config, "run", "--once", "--json")
    assert process.wait(SECONDS) == 0
    Writer(source, name, range(PARTITIONS), count=50).end()
    source.pause(node=node)
    try:
        there = arrived(mirror, name, theirs)
        process = start_mirror(config, "run", "--once", "--json")
        assert process.wait(SECONDS) == 3
        assert there(), "the partitions of brokers that answer"
    finally:
        source.resume(node=node)
    said = (tmp_path / "stdout.txt").read_text() + (tmp_path / "stderr.txt").read_text()
    assert f"{name}[" in said and "cannot be read" in said
    process = start_mirror(config, "run", "--once", "--json")
    assert process.wait(SECONDS) == 0
    assert_identical(mirror, [name])


def test_partitions_without_a_leader_cost_the_others_nothing(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    (source,) = cluster_factory(names=["a"], brokers=3, heap="256m", config={"broker.session.timeout.ms": "6000"})
    (target,) = cluster_factory(names=["b"], heap="256m")
    leaders = make_topic(source, "t", 24, 1)
    theirs = [number for number, leader in leaders.items() if leader != 3]
    engine = {**WAYS["in this process"], "source_wait": "8s"}
    servers = source.bootstrap_servers, target.bootstrap_servers
    config = write_config(tmp_path, *servers, ["t"], engine=engine)
    mirror = make_mirror(tmp_path, *servers, ["t"], engine=engine)
    Writer(source, "t", range(24), count=20).end()
    process = start_mirror(config, "run", "--for", "10m", "--json")
    admin = AdminClient({"bootstrap.servers": source.bootstrap_servers})
    try:
        there = arrived(mirror, "t", range(24))
        wait_until(lambda: process.poll() is not None or there(), SECONDS, "the first records")
        whole = Writer(source, "t", range(24), count=20)
        source.kill(node=3)

        def leaderless() -> bool:
            return min(part.leader for part in admin.list_topics("t", timeout=20).topics["t"].partitions.values()) < 0

        wait_until(leaderless, SECONDS, "partitions without a leader")
        for _ in range(3):
            Writer(source, "t", theirs, count=30).end()
            there = arrived(mirror, "t", theirs)
            wait_until(lambda t=there: process.poll() is not None or t(), 60, "records of partitions with a leader")  # type: ignore[misc]
        stop(config, process, code=1)  # the topic stays behind
        process = start_mirror(config, "run", "--once", "--json")
        assert process.wait(SECONDS) == 3
        source.start()
        whole.end()
        process = start_mirror(config, "run", "--once", "--json")
        assert process.wait(SECONDS) == 0
    finally:
        kill_tree(process)
    assert_identical(mirror, ["t"])
