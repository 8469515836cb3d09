"""`mirror plan` with a price, beside what the copy then took."""

from __future__ import annotations

import random
from pathlib import Path

from confluent_kafka import Producer

from tests.support.groups import IN_PROCESS
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, trim

RECORD_BYTES = 10_000


def fill(bootstrap: str, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    chance = random.Random(1)
    for number in range(records):
        producer.produce(topic, chance.randbytes(RECORD_BYTES), partition=number % 3)
        producer.poll(0)
    producer.flush(60)


def test_the_price_is_what_the_copy_takes(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    source, target = (c.bootstrap_servers for c in clusters)
    large, small, deleted = f"{topic_name}-l", f"{topic_name}-s", f"{topic_name}-d"
    for name in (large, small, deleted):
        create_topic(source, name, 3)
    fill(source, large, 4_000)
    produce(source, small, 300, partitions=3)
    produce(source, deleted, 30, partitions=3)
    trim(source, deleted, {0: 10, 1: 10, 2: 10})
    topics = {"replication_factor": 2, "include": [f"{topic_name}.*"]}
    mirror = make_mirror(tmp_path, source, target, [], engine=IN_PROCESS, topics=topics)
    planned = mirror.plan()
    sizes, price = {row.topic: row.bytes for row in planned.topics}, planned.price
    assert price is not None and price.seconds is None
    ran = mirror.run(once=True)
    took = {row.topic: row.bytes for row in ran.topics}
    assert sizes[deleted] == 0
    assert abs((sizes[large] or 0) / took[large] - 1) < 0.05
    assert abs((sizes[small] or 0) / took[small] - 1) < 0.5
    assert price.bytes == sum(size or 0 for size in sizes.values())
    assert price.target_bytes == 2 * price.bytes

    fill(source, large, 400)
    again = mirror.plan().price
    assert again is not None and again.bytes_per_second and again.seconds
    assert abs(again.seconds - again.bytes / again.bytes_per_second) < 1e-6
    assert again.target_bytes == 2 * again.bytes
