"""A broker of another cluster answers where one of ours was: nothing of it is read, written, believed or counted, and nothing halts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.embedded.ports import free_port
from mirror_pipeline.local.embedded.settings import BROKER
from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters
from mirror_pipeline.local.shapes.ground import local_settings
from mirror_pipeline.model import TopicPartition
from tests.integration.processes import document, kill_tree, start_mirror, wait_until
from tests.support.mirrors import assert_identical, create_topic, end_offsets, make_mirror, produce, write_config
from tests.support.proxy import KafkaProxy

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PARTITIONS = 6
SECONDS = 120
STRANGE_SECONDS = 8.0
ENGINE = {"inline_bytes": "1GB", "request_timeout": "10s"}
STAYS = {"broker.session.timeout.ms": "20000", "auto.leader.rebalance.enable": "false"}
"""A broker that has died leads on for so long, as it does for 9 s by default; one that comes back is let in again after that."""


class Places(NamedTuple):
    """A cluster of three brokers, one that it is mirrored from or to, and one of somebody else."""

    three: LocalCluster
    one: LocalCluster
    strange: LocalCluster


@pytest.fixture(scope="module")
def places(kafka_version: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("strangers")
    (three,) = start_clusters(folder, names=["three"], brokers=3, heap="256m", config=STAYS, version=kafka_version)
    one, strange = start_clusters(folder, names=["one", "strange"], heap="256m", version=kafka_version)
    yield Places(three, one, strange)
    for cluster in (three, one, strange):
        cluster.kill()


def led_by(cluster: LocalCluster, topic: str, node: int) -> list[int]:
    with WireClient(local_settings(cluster.bootstrap_servers)) as client:
        return [number for number, part in client.metadata([topic]).topics[topic].partitions.items() if part.leader == node]


def ends(servers: str, topic: str) -> dict[int, int]:
    with WireClient(local_settings(servers)) as client:
        tps = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return {tp.partition: answer.offset for tp, answer in client.list_offsets(dict.fromkeys(tps, LATEST_TIME), isolation=0).items()}


@contextmanager
def replaced(cluster: LocalCluster, strange: LocalCluster, node: int = 2) -> Iterator[None]:
    """Kill a broker; somebody else's answers at its address until the broker comes back."""
    port = cluster.ports[node - 1][BROKER]
    cluster.kill(node=node)
    proxy = KafkaProxy(port, ("127.0.0.1", strange.ports[0][BROKER]))
    try:
        yield
    finally:
        proxy.close()
        cluster.start()


@contextmanager
def running(folder: Path, source: str, target: str, topic: str) -> Iterator[tuple[Mirror, dict[str, Any]]]:
    """The mirror in a process of its own; its report is in the dictionary at the end."""
    config = write_config(folder, source, target, [topic], engine=ENGINE)
    process = start_mirror(config, "run", "--for", "20m", "--json")
    report: dict[str, Any] = {}
    try:
        yield make_mirror(folder, source, target, [topic], engine=ENGINE), report
        assert process.poll() is None, (folder / "stderr.txt").read_text()[-2000:]
        process.terminate()
        process.wait(120)
        report |= document(config)["mirrors"][0]  # type: ignore[index]
    finally:
        kill_tree(process)


def holds_there(servers: str, topic: str, records: int) -> Callable[[], bool]:
    """Whether the copy holds so many records."""

    def reached() -> bool:
        with WireClient(local_settings(servers)) as client:
            if client.metadata([f"east.{topic}"]).topics[f"east.{topic}"].error:
                return False
        return sum(ends(servers, f"east.{topic}").values()) >= records

    return reached


def test_nothing_is_read_of_a_stranger(places: Places, tmp_path: Path) -> None:
    three, one, strange = places
    topic, source, target = "read", three.bootstrap_servers, one.bootstrap_servers
    for servers, replicas in ((source, 1), (strange.bootstrap_servers, 1)):
        create_topic(servers, topic, PARTITIONS, replicas=replicas)
    produce(source, topic, 600, partitions=PARTITIONS)
    produce(strange.bootstrap_servers, topic, 1_800, partitions=PARTITIONS, start=100_000)
    with running(tmp_path, source, target, topic) as (mirror, report):
        wait_until(holds_there(target, topic, 600), SECONDS, "the first records")
        with replaced(three, strange):
            time.sleep(STRANGE_SECONDS)
            assert sum(ends(target, f"east.{topic}").values()) == 600, "foreign records"
        produce(source, topic, 300, partitions=PARTITIONS, start=600)
        wait_until(holds_there(target, topic, 900), SECONDS, "all records")
    assert [(row["state"], row["reason"]) for row in report["topics"]] == [("ok", "")]
    assert_identical(mirror, [topic])


def test_nothing_is_written_to_a_stranger(places: Places, tmp_path: Path) -> None:
    three, one, strange = places
    topic, source, target = "written", one.bootstrap_servers, three.bootstrap_servers
    create_topic(source, topic, PARTITIONS, replicas=1)
    create_topic(target, f"east.{topic}", PARTITIONS, replicas=1)
    create_topic(strange.bootstrap_servers, f"east.{topic}", PARTITIONS, replicas=1)
    produce(source, topic, 600, partitions=PARTITIONS)
    produce(strange.bootstrap_servers, f"east.{topic}", 600, partitions=PARTITIONS, start=100_000)  # ends where the copy does
    theirs = ends(strange.bootstrap_servers, f"east.{topic}")
    with running(tmp_path, source, target, topic) as (mirror, report):
        wait_until(holds_there(target, topic, 600), SECONDS, "the first records")
        with replaced(three, strange):
            produce(source, topic, 300, partitions=PARTITIONS, start=600)
            time.sleep(STRANGE_SECONDS)
            assert ends(strange.bootstrap_servers, f"east.{topic}") == theirs, "records were appended to the other cluster"
            assert mirror.undelivered().lag_records or mirror.lag().lag_records, "they are not acknowledged"
        wait_until(holds_there(target, topic, 900), SECONDS, "all records")
    assert [(row["state"], row["reason"]) for row in report["topics"]] == [("ok", "")]
    assert_identical(mirror, [topic])


def test_a_stranger_among_the_bootstrap_servers_is_passed_over(places: Places, tmp_path: Path) -> None:
    three, one, strange = places
    topic, target = "among", one.bootstrap_servers
    source = three.bootstrap_servers
    create_topic(source, topic, PARTITIONS, replicas=3)
    produce(source, topic, 60, partitions=PARTITIONS)
    assert make_mirror(tmp_path, source, target, [topic], engine=ENGINE).run(once=True).records == 60
    produce(source, topic, 60, partitions=PARTITIONS, start=60)
    astray = make_mirror(tmp_path, f"{strange.bootstrap_servers},{source}", target, [topic], engine=ENGINE)
    assert [(row.state, row.lag_records) for row in astray.lag().topics] == [("ok", 60)]
    report = astray.run(once=True)
    assert (report.records, [row.state for row in report.topics]) == (60, ["ok"])
    with Admin(astray.flow.source) as admin:
        assert topic in admin.topics() and admin.cluster_id() == three.cluster_id
    assert sum(end_offsets(astray, f"east.{topic}", target=True).values()) == 120
    turned = make_mirror(tmp_path, source, f"{strange.bootstrap_servers},{target}", [topic], engine=ENGINE)
    produce(source, topic, 60, partitions=PARTITIONS, start=120)
    assert turned.run(once=True).records == 60
    assert_identical(turned, [topic])


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_start_at_a_strangers_address_goes_on_once_the_address_is_right(places: Places, tmp_path: Path, side: str) -> None:
    """There is one address, and it leads elsewhere: topics halt, and go on in the same run."""
    three, one, strange = places
    topic, target = f"start-{side}", three.bootstrap_servers
    create_topic(one.bootstrap_servers, topic, PARTITIONS, replicas=1)
    produce(one.bootstrap_servers, topic, 60, partitions=PARTITIONS)
    assert make_mirror(tmp_path, one.bootstrap_servers, target, [topic], engine=ENGINE).run(once=True).records == 60
    produce(one.bootstrap_servers, topic, 60, partitions=PARTITIONS, start=60)
    right = one.ports[0][BROKER] if side == "source" else three.ports[0][BROKER]
    proxy = KafkaProxy(free_port(), ("127.0.0.1", strange.ports[0][BROKER]))
    via = f"127.0.0.1:{proxy.port}"
    addresses = (via, target) if side == "source" else (one.bootstrap_servers, via)
    code = "other_cluster" if side == "source" else "other_target_cluster"
    try:
        assert [(row.state, row.code) for row in make_mirror(tmp_path, *addresses, [topic], engine=ENGINE).run(once=True).topics] == [
            ("halted", code)
        ]
        with running(tmp_path, *addresses, topic) as (mirror, report):
            time.sleep(STRANGE_SECONDS)
            proxy.upstream = "127.0.0.1", right
            wait_until(holds_there(target, topic, 120), SECONDS, "all records")
    finally:
        proxy.close()
    assert [(row["state"], row["reason"]) for row in report["topics"]] == [("ok", "")]
    assert_identical(make_mirror(tmp_path, one.bootstrap_servers, target, [topic], engine=ENGINE), [topic])
