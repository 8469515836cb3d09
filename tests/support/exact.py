"""Help for tests of ``offsets: exact``: logs with holes and late starts, and whether both sides have the same offsets."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer
from confluent_kafka import TopicPartition as Place

from mirror_pipeline import Mirror
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.records.blank import blank_batch
from mirror_pipeline.local.shapes.ground import local_settings
from mirror_pipeline.model import TopicPartition
from tests.support.mirrors import end_offsets, trim

Seen = list[tuple[int, bytes | None, bytes | None]]


def contents(bootstrap: str, topics: Sequence[str], isolation: str = "read_committed") -> dict[tuple[str, int], tuple[Seen, int]]:
    """All of some topics, by partition: offset, key and value of every record, and where a consumer stands at the end."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation, "enable.auto.commit": False,
        "enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20,
    })  # fmt: skip
    try:
        numbers = {topic: consumer.list_topics(topic, timeout=20).topics[topic].partitions for topic in topics}
        found: dict[tuple[str, int], tuple[Seen, int]] = {(topic, number): ([], -1) for topic in topics for number in numbers[topic]}
        consumer.assign([Place(*each, OFFSET_BEGINNING) for each in found])
        left = set(found)
        while left:
            message = consumer.poll(20)
            assert message is not None, f"{sorted(left)}: no end within 20 s"
            each = message.topic() or "", message.partition() or 0
            error = message.error()
            if error is None:
                found[each][0].append((message.offset() or 0, message.key(), message.value()))
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            left.discard(each)
            if seen := found[each][0]:
                found[each] = seen, message.offset() or 0
        return found
    finally:
        consumer.close()


def assert_same_offsets(
    mirror: Mirror, topics: list[str], *, prefix: str = "east.", listeners: tuple[str, str] | None = None, aborted: bool = False
) -> None:
    """Each topic has the same records at the same offsets on both sides.

    ``listeners``: of source and target, if not the mirror's; ``aborted``: the target was the source of transactions before.
    """
    source, target = listeners or (",".join(c.bootstrap_servers) for c in (mirror.flow.source, mirror.flow.target))
    here, there = contents(source, topics), contents(target, [prefix + topic for topic in topics])
    everything = there if aborted else contents(target, [prefix + topic for topic in topics], "read_uncommitted")
    for topic in topics:
        assert end_offsets(mirror, prefix + topic, target=True) == end_offsets(mirror, topic, target=False), topic
    for (topic, partition), expected in here.items():
        assert there[prefix + topic, partition] == expected, (topic, partition)
        assert everything[prefix + topic, partition] == expected, (topic, partition)


def transactions(bootstrap: str, topic: str, count: int, *, records: int = 5, abort_every: int = 3, start: int = 0) -> None:
    """Transactions of some records each; one in ``abort_every`` is aborted, the last one too. All have ended in the log on return."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"t{time.time_ns()}", "linger.ms": 0})
    producer.init_transactions(20)
    for number in range(start, start + count):
        producer.begin_transaction()
        for each in range(records):
            producer.produce(topic, f"{number}-{each}".encode(), f"k{each}".encode())
        if number % abort_every == abort_every - 1 or number == start + count - 1:
            producer.flush(20)
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    with WireClient(local_settings(bootstrap)) as client:
        parts = [TopicPartition(topic, number) for number in client.metadata([topic]).topics[topic].partitions]
        deadline = time.monotonic() + 20
        while log_range(client, parts, isolation=1) != log_range(client, parts, isolation=0):  # a marker comes after the answer to its end
            assert time.monotonic() < deadline, f"{topic}: a transaction does not end"
            time.sleep(0.02)


def begin_at(bootstrap: str, topic: str, start: int, *, partition: int = 0) -> None:
    """Move a log's start and end, as years of records and their retention do."""
    settings, tp = local_settings(bootstrap), TopicPartition(topic, partition)
    with WireClient(settings) as client:
        stamp = client.init_producer_id()
        connection = client.connection(client.leader(tp))
        for at in range(0, start, 500_000):
            batch = blank_batch(min(500_000, start - at), stamp, at, at_ms=int(time.time() * 1000))
            send_produce(connection, {tp: batch}, timeout_ms=20_000)
            assert receive_produce(connection)[tp].error == 0
    trim(bootstrap, topic, {partition: start})
