"""A target of three brokers of which one is dead or does not answer: its partitions wait, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.model import TopicPartition
from tests.integration.processes import document, kill_tree, start_mirror, wait_until
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce, write_config

pytestmark = pytest.mark.long

PARTITIONS = 30
SECONDS = 240
INLINE = {"inline_bytes": "512MB", "request_timeout": "30s", "target_wait": "15s"}
STAYS = {"broker.session.timeout.ms": "600000"}  # leadership stays with a broker that has stopped answering


Start = Callable[..., list[LocalCluster]]


def start(cluster_factory: Start, config: dict[str, str] | None = None) -> tuple[LocalCluster, LocalCluster]:
    """A source of one broker and a target of three."""
    (source,) = cluster_factory(names=["east"], heap="256m")
    (target,) = cluster_factory(names=["west"], brokers=3, config=config, heap="256m")
    return source, target


def ends(client: WireClient, numbers: list[int]) -> int:
    """Records in these target partitions."""
    wanted = {TopicPartition("east.t", number): LATEST_TIME for number in numbers}
    return sum(answer.offset for answer in client.list_offsets(wanted, isolation=0).values())


def reached(client: WireClient, numbers: list[int], records: int) -> bool:
    """Whether these target partitions hold exactly so many records."""
    return ends(client, numbers) == records


@contextmanager
def running(tmp_path: Path, east: str, west: str) -> Iterator[Mirror]:
    config = write_config(tmp_path, east, west, ["t"], engine=INLINE)
    process = start_mirror(config, "run", "--for", "20m", "--json")
    try:
        yield make_mirror(tmp_path, east, west, ["t"], engine=INLINE)
        assert process.poll() is None, (tmp_path / "stderr.txt").read_text()[-2000:]
        process.terminate()
        process.wait(120)
    finally:
        kill_tree(process)


@pytest.mark.parametrize("trouble", ["paused", "killed"])
def test_partitions_of_healthy_brokers_go_on(cluster_factory: Start, tmp_path: Path, trouble: str) -> None:
    source, target = start(cluster_factory, STAYS if trouble == "paused" else None)
    east, west = source.bootstrap_servers, target.bootstrap_servers
    create_topic(east, "t", PARTITIONS)
    create_topic(west, "east.t", PARTITIONS, replicas=1)  # nobody takes over from a broker
    produce(east, "t", 300, partitions=PARTITIONS)
    with running(tmp_path, east, west) as mirror, WireClient(mirror.flow.target) as client:
        everywhere = list(range(PARTITIONS))
        wait_until(lambda: ends(client, everywhere) == 300, SECONDS, "the first records")
        leaders, _ = client.leaders([TopicPartition("east.t", n) for n in everywhere])
        node = leaders[TopicPartition("east.t", 0)]
        well = [n for n in everywhere if leaders[TopicPartition("east.t", n)] != node]
        assert 0 < len(well) < PARTITIONS
        target.pause(node=node) if trouble == "paused" else target.kill(node=node)
        for turn in range(1, 5):  # again and again: nobody waits for the broker twice
            produce(east, "t", 300, partitions=PARTITIONS, start=300 * turn)
            wait_until(partial(reached, client, well, len(well) * 10 * (turn + 1)), 40, f"healthy partitions, turn {turn}")
        target.resume(node=node) if trouble == "paused" else target.start()
        wait_until(lambda: ends(client, everywhere) == 1500, SECONDS, "all records")
    assert_identical(mirror, ["t"])
    topics = document(tmp_path / "mirror.yaml")
    assert "halted" not in str(topics), topics


def test_a_run_ends_when_only_partitions_of_a_dead_broker_are_left(cluster_factory: Start, tmp_path: Path) -> None:
    source, target = start(cluster_factory)
    east, west = source.bootstrap_servers, target.bootstrap_servers
    create_topic(east, "t", PARTITIONS)
    create_topic(west, "east.t", PARTITIONS, replicas=1)  # nobody takes over from a broker
    config = write_config(tmp_path, east, west, ["t"], engine=INLINE)
    mirror = make_mirror(tmp_path, east, west, ["t"], engine=INLINE)
    process = start_mirror(config, "run", "--once", "--json")
    assert process.wait(SECONDS) == 0
    produce(east, "t", 300, partitions=PARTITIONS)
    with WireClient(mirror.flow.target) as client:
        leaders, _ = client.leaders([TopicPartition("east.t", n) for n in range(PARTITIONS)])
        node = leaders[TopicPartition("east.t", 0)]
        well = [tp.partition for tp, leader in leaders.items() if leader != node]
        target.kill(node=node)
        process = start_mirror(config, "run", "--once", "--json")
        assert process.wait(SECONDS) == 3, (tmp_path / "stderr.txt").read_text()[-2000:]
        assert ends(client, well) == 10 * len(well)
    target.start()
    process = start_mirror(config, "run", "--once", "--json")
    assert process.wait(SECONDS) == 0, (tmp_path / "stderr.txt").read_text()[-2000:]
    assert_identical(mirror, ["t"])
