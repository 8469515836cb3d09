"""Runs of one mirror on hosts whose clocks differ by hours: nothing in the ledger is ordered or judged by them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror
from mirror_pipeline.features.failover.report import FailoverOptions
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.integration.processes import kill_tree, start_mirror
from tests.support.deleted_topics import recreate
from tests.support.groups import IN_PROCESS, carry, commit, committed
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import add_partitions, create_topic, end_offsets, make_mirror, produce, values

pytestmark = pytest.mark.long

HOURS = 2 * 3600.0
# Records this old are forgotten by brokers whatever they remember of younger ones.
OLD = 1_000_000_000
FORGETFUL = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "300"}


def run(folder: Path, *, ahead: float = 0.0) -> int:
    """One run of the mirror in a process of its own; its exit code."""
    process = start_mirror(folder / "mirror.yaml", "run", "--once", "--json", ahead=ahead)
    try:
        return process.wait(120)
    finally:
        kill_tree(process)


def copied(mirror: Mirror, topic: str, partitions: int) -> list[str]:
    return sorted(value.rstrip(".") for number in range(partitions) for value in values(mirror, f"east.{topic}", number))


def expected(count: int) -> list[str]:
    return sorted(f"value-{number}" for number in range(count))


def test_partitions_added_after_a_run_on_a_fast_host_are_known_to_all(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    produce(east, topic_name, 100, partitions=2)
    groups = {"include": [f"{topic_name}.*"]}
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS, groups=groups)
    assert run(tmp_path, ahead=HOURS) == 0
    add_partitions(east, topic_name, 4)
    produce(east, topic_name, 200, partitions=4, start=100)
    commit(east, topic_name, {Place(topic_name, number): 10 for number in range(4)})
    assert mirror.run(once=True).records == 200
    assert mirror.run(once=True).records == 0
    carry(mirror)
    places = mirror.sql("SELECT partition, next_source_offset FROM positions ORDER BY partition", session=spark).collect()
    assert [tuple(row) for row in places] == [(0, 100), (1, 100), (2, 50), (3, 50)]
    verified = mirror.verify()
    assert (verified.ok, verified.records) == (True, 300)
    assert {tp: at for tp, (at, _) in committed(west, topic_name).items()} == {(f"east.{topic_name}", number): 10 for number in range(4)}
    look = mirror.failover(FailoverOptions(dry_run=True))
    assert [(part.partition, part.source_offset) for part in look.topics[0].partitions] == [(0, 100), (1, 100), (2, 50), (3, 50)]
    assert look.missing == ()


@pytest.mark.parametrize("brokers", [{}, FORGETFUL], ids=["remember", "forget"])
def test_a_kill_before_the_ledger_is_written_doubles_nothing_in_added_partitions(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: dict[str, str]
) -> None:
    source, target = cluster_factory(2, brokers=1, config=brokers)  # one broker forgets for all of its partitions
    east, west = source.bootstrap_servers, target.bootstrap_servers
    create_topic(east, "t", 2, retention__ms="-1")
    produce(east, "t", 100, partitions=2, at=OLD)
    mirror = make_mirror(tmp_path, east, west, ["t"], engine=IN_PROCESS)
    assert run(tmp_path, ahead=HOURS) == 0
    add_partitions(east, "t", 4)
    produce(east, "t", 200, partitions=4, start=100, at=OLD)
    monkeypatch.setenv("MIRROR_CRASH_AT", "record.before")
    assert run(tmp_path) == -signal.SIGKILL
    monkeypatch.delenv("MIRROR_CRASH_AT")
    assert sum(end_offsets(mirror, "east.t", target=True).values()) == 300, "acknowledged, and not recorded"
    time.sleep(6 if brokers else 0)
    assert run(tmp_path) == 0, (tmp_path / "stdout.txt").read_text()
    assert copied(mirror, "t", 4) == expected(300)
    assert mirror.run(once=True).records == 0


@pytest.mark.parametrize("again", [recreate, add_partitions])
def test_partitions_that_come_back_continue_behind_the_generation_that_had_them(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, again: Callable[[str, str, int], None]
) -> None:
    """Six partitions, two, then eight: brokers remember what the first generation sent."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    create_topic(east, topic_name, 6)
    produce(east, topic_name, 60, partitions=6)
    assert mirror.run(once=True).state == "ok"
    recreate(east, topic_name, 2)
    produce(east, topic_name, 20, partitions=2, start=60)
    assert mirror.run(once=True).state == "halted"
    mirror.resolve(topic_name, "recreated")
    assert mirror.run(once=True).state == "ok"
    again(east, topic_name, 8)
    produce(east, topic_name, 80, partitions=8, start=80)
    if again is recreate:
        assert mirror.run(once=True).state == "halted"
        mirror.resolve(topic_name, "recreated")
    assert mirror.run(once=True).state == "ok"
    produce(east, topic_name, 80, partitions=8, start=160)
    assert mirror.run(once=True).records == 80
    assert copied(mirror, topic_name, 8) == expected(240)
