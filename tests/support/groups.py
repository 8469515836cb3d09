"""Consumer groups of tests: commits on either cluster, rounds, and how the mirror says they stand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from mirror_pipeline import Mirror
from mirror_pipeline.features.groups.carrying import carrying_groups
from mirror_pipeline.reports import CarriedGroup
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import make_mirror

IN_PROCESS = {"inline_bytes": str(2**63 - 1)}


def mirror_of(clusters: ClusterPair, folder: Path, prefix: str, **settings: Any) -> Mirror:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    groups = {"include": [f"{prefix}.*"], "interval": "1s"}
    return make_mirror(folder, east, west, [f"{prefix}.*"], **{"engine": IN_PROCESS, "groups": groups, **settings})


@contextmanager
def running(mirror: Mirror) -> Iterator[None]:
    """A continuous run in this process."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            mirror.run(stop=stop)
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(120)
    assert failures == []


def consumer(servers: str, group: str, **settings: Any) -> Consumer:
    base = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({**base, **settings})


def commit(servers: str, group: str, offsets: dict[Place, int], metadata: str = "") -> None:
    """Commit as a consumer that is done does."""
    client = consumer(servers, group)
    client.commit(offsets=[Place(p.topic, p.partition, offset, metadata=metadata) for p, offset in offsets.items()], asynchronous=False)
    client.close()


def committed(servers: str, group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
    admin = AdminClient({"bootstrap.servers": servers})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {(p.topic, p.partition): (p.offset, p.metadata) for p in asked[group].result(15).topic_partitions or ()}


def rows(mirror: Mirror, group: str) -> dict[int | None, CarriedGroup]:
    return {row.partition: row for row in mirror.groups().groups if row.group == group}


def carry(mirror: Mirror) -> None:
    """One round without a run."""
    with carrying_groups(mirror.flow):
        pass


def in_step(mirror: Mirror, groups: set[str]) -> Callable[[], bool]:
    def look() -> bool:
        own = [row for row in mirror.groups().groups if row.group in groups]
        return {row.group for row in own} == groups and all(row.state == "in_step" for row in own)

    return look
