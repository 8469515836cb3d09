"""Connections that were idle are dropped without a word, as firewalls and address translators do: both sides go on within seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.shapes.ground import local_settings
from mirror_pipeline.model import TopicPartition
from tests.integration.processes import document, kill_tree, start_mirror, wait_until
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce, write_config
from tests.support.proxy_cluster import ProxiedCluster, proxied_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PAUSE_SECONDS = 8.0
BAR_SECONDS = 15.0
SLACK_SECONDS = 5.0
"""Of a busy machine."""


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxiedCluster, ProxiedCluster]]:
    folder = tmp_path_factory.mktemp("idle")
    made = proxied_cluster(folder / "east", seed=1, brokers=1), proxied_cluster(folder / "west", seed=2, brokers=1)
    yield made
    for side in made:
        side.proxy.close()
        side.cluster.kill()


def count(side: ProxiedCluster, topic: str) -> int:
    with WireClient(local_settings(side.direct)) as client:
        if client.metadata([topic]).topics[topic].error:
            return 0
        return client.list_offsets({TopicPartition(topic, 0): -1}, isolation=0)[TopicPartition(topic, 0)].offset


@pytest.mark.parametrize("which", ["both", "source", "target"])
def test_dropped_connections_are_replaced_within_seconds(
    sides: tuple[ProxiedCluster, ProxiedCluster], tmp_path: Path, topic_name: str, which: str
) -> None:
    east, west = sides
    chosen = {"both": [east, west], "source": [east], "target": [west]}[which]
    create_topic(east.direct, topic_name)
    produce(east.direct, topic_name, 50)
    engine = {"inline_bytes": "1GB", "request_timeout": "30s"}
    config = write_config(tmp_path, east.via, west.via, [topic_name], engine=engine)
    process = start_mirror(config, "run", "--for", "20m", "--json")
    took = []
    try:
        wait_until(lambda: count(west, f"east.{topic_name}") == 50, 90, "the first records")
        for number in (1, 2):
            time.sleep(PAUSE_SECONDS)
            assert sum(side.proxy.silence_all() for side in chosen)
            produce(east.direct, topic_name, 50, start=50 * number)
            began = time.monotonic()
            wait_until(lambda number=number: count(west, f"east.{topic_name}") == 50 * number + 50, 90, "records after the pause")  # type: ignore[misc]
            took.append(time.monotonic() - began)
        process.terminate()
        assert process.wait(60) == 0, (tmp_path / "stderr.txt").read_text()[-2000:]
        (report,) = document(config)["mirrors"]  # type: ignore[misc]
    finally:
        kill_tree(process)
    assert max(took) < BAR_SECONDS + SLACK_SECONDS, took
    assert [(row["state"], row["reason"]) for row in report["topics"]] == [("ok", "")]
    assert_identical(make_mirror(tmp_path, east.direct, west.direct, [topic_name], engine=engine), [topic_name])
