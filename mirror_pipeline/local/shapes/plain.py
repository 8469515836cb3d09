"""Topics that ordinary clients write: codecs, sizes, partitions, append time."""

from __future__ import annotations

import time

from mirror_pipeline.local.shapes.ground import CODECS, Ground, SeededTopic

VALUE_BYTES = 500
LARGE_BYTES = 900_000
LARGE_RECORDS = 12
YEAR_2001 = 1_000_000_000_000


def codec(ground: Ground, name: str) -> SeededTopic:
    """Many ordinary records, compressed with one codec."""
    topic = ground.create(f"codec-{name}", 3)
    producer = ground.producer(compression_type=name, batch_size=65_536)
    now = int(time.time() * 1000) - ground.scale
    size = 0
    for index in range(ground.scale):
        partition = index % 3
        key, value = f"key-{index % 997}".encode(), ground.value(topic, partition, index, VALUE_BYTES + index % 100)
        producer.produce(
            topic, value, key, partition, timestamp=now + index, headers=[("n", str(index).encode())] if index % 5 == 0 else None
        )
        size += len(key) + len(value)
        if index % 2_000 == 0:
            producer.poll(0)
    ground.flush(producer)
    return SeededTopic(topic, 3, ground.scale, size, f"batches compressed with {name}" if name != "none" else "plain batches", live=True)


def codecs(ground: Ground) -> list[SeededTopic]:
    """One topic for each codec."""
    return [codec(ground, name) for name in CODECS]


def many_partitions(ground: Ground, partitions: int = 24) -> SeededTopic:
    """Few records in many partitions."""
    topic = ground.create("many-partitions", partitions)
    producer = ground.producer()
    size = 0
    count = max(partitions * 5, ground.scale // 10)
    for index in range(count):
        value = ground.value(topic, index % partitions, index, 120)
        producer.produce(topic, value, b"%d" % index, index % partitions)
        size += len(value) + len(b"%d" % index)
    ground.flush(producer)
    return SeededTopic(topic, partitions, count, size, f"{partitions} partitions", live=True)


def large(ground: Ground) -> SeededTopic:
    """Records of 900 KB, near the broker's default limit."""
    topic = ground.create("large-records", 2)
    producer = ground.producer(message_max_bytes=1_048_576)
    for index in range(LARGE_RECORDS):
        producer.produce(topic, ground.value(topic, index % 2, index, LARGE_BYTES), b"large", index % 2)
    ground.flush(producer)
    return SeededTopic(topic, 2, LARGE_RECORDS, LARGE_RECORDS * (LARGE_BYTES + 5), "records of 900 KB")


def empty(ground: Ground) -> SeededTopic:
    """A topic that never held a record."""
    return SeededTopic(ground.create("empty", 2), 2, 0, 0, "no records")


def empty_partition(ground: Ground) -> SeededTopic:
    """Records in the outer partitions, none in the middle one."""
    topic = ground.create("empty-partition", 3)
    producer = ground.producer()
    size = 0
    for index in range(300):
        partition = 0 if index % 2 else 2
        value = ground.value(topic, partition, index, 100)
        producer.produce(topic, value, None, partition)
        size += len(value)
    ground.flush(producer)
    return SeededTopic(topic, 3, 300, size, "the middle partition is empty")


def append_time(ground: Ground) -> SeededTopic:
    """LogAppendTime: the broker's time replaces the producers' times of 2001; uncompressed and compressed."""
    topic = ground.create("append-time", 2, {"message.timestamp.type": "LogAppendTime"})
    size = 0
    for codec_name in ("none", "lz4", "gzip"):
        producer = ground.producer(compression_type=codec_name)
        for index in range(200):
            value = ground.value(f"{topic}/{codec_name}", index % 2, index, 150)
            producer.produce(topic, value, b"t", index % 2, timestamp=YEAR_2001 + index)
            size += len(value) + 1
        ground.flush(producer)
    return SeededTopic(topic, 2, 600, size, "LogAppendTime, producers wrote 2001", live=True)
