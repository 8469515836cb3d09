"""Two hundred single changes, each of a kind drawn by chance, over millions of records: all are found, and nothing else.

``MIRROR_VERIFY_RECORDS`` gives the number of records (1,000,000 by default), ``MIRROR_VERIFY_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline import load_config
from mirror_pipeline.kafka.records.batch import OpenRecord, seal, tail_of
from mirror_pipeline.local.shapes.ground import Ground
from mirror_pipeline.verify.external import verify_external
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import write_config

RECORDS = int(os.environ.get("MIRROR_VERIFY_RECORDS", "1000000"))
CHANGES = 200
PARTITIONS = 4
PER_BATCH = 500
APART = 10
"""Changes lie so many records from each other, so that each is a single one."""
KINDS = ("missing", "value", "key", "header", "timestamp", "duplicate", "swap")

Expected = tuple[str, int, int | None, int | None]


def record_of(partition: int, number: int, **change: bytes | int) -> OpenRecord:
    """A record whose every field can be changed alone."""
    key, value = change.get("key", b"k%d" % (number % 1000)), change.get("value", b"value %d/%d" % (partition, number))
    moment = change.get("timestamp", 1_700_000_000_000 + number)
    assert isinstance(key, bytes) and isinstance(value, bytes) and isinstance(moment, int)
    header = change.get("header", b"h%d" % (number % 10))
    assert isinstance(header, bytes)
    return OpenRecord(number, moment, tail_of(key, value, ((b"name", header), (b"empty", b""))))


ALTER: dict[str, Callable[[int], dict[str, bytes | int]]] = {
    "value": lambda number: {"value": b"valuE %d" % number},
    "key": lambda number: {"key": b"K%d" % (number % 1000)},
    "header": lambda number: {"header": b"H%d" % (number % 10)},
    "timestamp": lambda number: {"timestamp": 1_700_000_000_001 + number},
}


def changed(partition: int, records: list[OpenRecord], changes: dict[int, str], held: list[OpenRecord]) -> list[OpenRecord]:
    """The records of one batch as the target gets them; a swap with the next batch's first record waits in ``held``."""
    result: list[OpenRecord] = []
    for record in records:
        kind = changes.get(record.offset, "")
        if kind == "swap":
            held.append(record)
            continue
        if kind != "missing":
            result.append(record_of(partition, record.offset, **ALTER[kind](record.offset)) if kind in ALTER else record)
        if kind == "duplicate":
            result.append(record)
        result += held
        held.clear()
    return result


def expectations(partition: int, changes: dict[int, str]) -> Iterator[set[Expected]]:
    """What may be said of each change; of two records that changed places either may be called the one that moved."""
    shift = 0
    for at, kind in sorted(changes.items()):
        if kind == "missing":
            yield {("missing", partition, at, None)}
            shift -= 1
        elif kind == "duplicate":
            yield {("duplicate", partition, None, at + shift + 1)}
            shift += 1
        elif kind == "swap":
            yield {("order", partition, at + 1, at + shift), ("order", partition, at, at + 1 + shift)}
        else:
            yield {("altered", partition, at, at + shift)}


def draw(chance: random.Random, count: int) -> dict[int, dict[int, str]]:
    """Which records are changed, and how, by partition."""
    changes: dict[int, dict[int, str]] = {partition: {} for partition in range(PARTITIONS)}
    places = chance.sample(range(1, count // PARTITIONS // APART - 1), CHANGES)
    for place in places:
        changes[chance.randrange(PARTITIONS)][place * APART + chance.randrange(3)] = chance.choice(KINDS)
    return changes


def write(source: str, target: str, topic: str, count: int, changes: dict[int, dict[int, str]]) -> None:
    """Both topics, batch by batch; batches without a change are the same bytes."""
    with closing(Ground(source)) as east, closing(Ground(target)) as west:
        for ground, name in ((east, topic), (west, f"copy-{topic}")):
            ground.create(name, PARTITIONS)
        for partition in range(PARTITIONS):
            held: list[OpenRecord] = []
            for first in range(0, count // PARTITIONS, PER_BATCH):
                records = [record_of(partition, number) for number in range(first, min(first + PER_BATCH, count // PARTITIONS))]
                whole = seal(records, codec=0, base_offset=0)
                east.append(topic, partition, whole)
                copies = changed(partition, records, changes[partition], held)
                west.append(f"copy-{topic}", partition, whole if copies == records else seal(copies, codec=0, base_offset=0))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_one_of_many_changes_is_found(clusters: ClusterPair, tmp_path: Path, spark: SparkSession, topic_name: str) -> None:
    seed = int(os.environ.get("MIRROR_VERIFY_SEED", str(random.randrange(1 << 32))))
    source, target = (c.bootstrap_servers for c in clusters)
    changes = draw(random.Random(seed), RECORDS)
    write(source, target, topic_name, RECORDS, changes)

    config = load_config(write_config(tmp_path, source, target, ["x"]))
    began = time.monotonic()
    report = verify_external(config, "east", "west", {topic_name: f"copy-{topic_name}"}, session=spark)
    seconds = time.monotonic() - began
    print(f"\nseed {seed}: {report.records:,} records, {report.bytes / 1e6:.0f} MB on each side, {seconds:.1f} s")

    found: list[Expected] = [(d.kind, d.partition, d.source_offset, d.target_offset) for d in report.differences]
    wanted = [choices for partition, some in changes.items() for choices in expectations(partition, some)]
    assert [choices for choices in wanted if not choices & set(found)] == [], f"not found, seed {seed}"
    assert [one for one in found if not any(one in choices for choices in wanted)] == [], f"not there, seed {seed}"
    assert (len(found), report.records, report.more) == (CHANGES, RECORDS, False)
