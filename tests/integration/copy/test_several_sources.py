"""One topic from several clusters that hold it with the same offsets (``sources``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from tests.support.exact import assert_same_offsets, transactions
from tests.support.mirrors import create_topic
from tests.support.three_clusters import Trio, flow, mirrors_of

EXACT = {"naming": "identity", "offsets": "exact"}
MB = 1_000_000


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Four clusters of one broker: east is the source, north and west hold copies, home is the target."""
    folder = tmp_path_factory.mktemp("four")
    names = ("east", "north", "west", "home")
    try:
        yield dict(zip(names, start_clusters(folder, names=names), strict=True))
    finally:
        stop_clusters(folder)


def fill(bootstrap: str, topic: str, size: int, *, partitions: int = 3) -> None:
    """About ``size`` bytes that do not compress, spread over partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 65_536})
    for number in range(size // 1000):
        producer.produce(topic, os.urandom(980), b"%d" % number, partition=number % partitions)
        if not number % 1000:
            producer.poll(0)
    assert producer.flush(60) == 0


def copies_of(folder: Path, four: Trio, topic: str) -> None:
    """Let north and west hold exact copies."""
    made = mirrors_of(folder / "copies", four, flow("east", "north", topic, **EXACT), flow("east", "west", topic, **EXACT))
    for mirror in made.values():
        assert mirror.run(once=True).state == "ok"


def test_a_backlog_comes_from_all_that_hold_it(four: Trio, tmp_path: Path) -> None:
    topic = "several"
    create_topic(four["east"].bootstrap_servers, topic, 3)
    fill(four["east"].bootstrap_servers, topic, 60 * MB)
    transactions(four["east"].bootstrap_servers, topic, 12)
    copies_of(tmp_path, four, topic)
    wanted = flow("east", "home", topic, sources=["north", "west"], **EXACT)
    home = mirrors_of(tmp_path / "home", four, {**wanted, "engine": {"bandwidth": "6MB"}})["east-home"]
    report = home.run(once=True)
    assert report.state == "ok"
    assert report.left_out == {}
    assert set(report.copied) == {"north", "west"}
    assert min(report.copied.values()) > MB
    assert_same_offsets(home, [topic], prefix="")
