"""The odd shapes are really in the broker's log, and the comparison finds every single change between two topics."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from mirror_pipeline.errors import UsageError
from mirror_pipeline.kafka.fetch import fetch
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.kafka.records.batch import BatchHeader, Record, headers, open_batch, seal
from mirror_pipeline.local.shapes.fill import SeededTopic, fill, fill_bulk, local_settings, produce_live
from mirror_pipeline.local.shapes.ground import Ground
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.compare import TopicComparison, compare_topics
from mirror_pipeline.verify.log_walk import is_abort_marker, read_log
from mirror_pipeline.verify.pieces import Piece
from tests.integration.processes import wait_until
from tests.support.damage import DAMAGE, Copied
from tests.support.kafka_source import Cluster

pytestmark = pytest.mark.integration

# librdkafka cannot hand out header keys that are not UTF-8
NOT_FOR_CLIENTS = "raw-headers"


@pytest.fixture(scope="module")
def bootstrap(clusters: tuple[Cluster, Cluster]) -> str:
    return clusters[0].bootstrap_servers


@pytest.fixture(scope="module")
def ground(bootstrap: str) -> Iterator[Ground]:
    with closing(Ground(bootstrap, prefix=f"shapes-{uuid4().hex[:8]}.")) as made:
        yield made


@pytest.fixture(scope="module")
def shapes(ground: Ground) -> dict[str, SeededTopic]:
    """Every shape, by its name without the prefix; up to 15 s of this is waiting for the broker's cleaner."""
    return {topic.name.removeprefix(ground.prefix): topic for topic in fill(ground.bootstrap, scale=1_500, prefix=ground.prefix)}


def pieces(ground: Ground, topic: str, partition: int, isolation: int = 1) -> list[Piece]:
    tp = TopicPartition(topic, partition)
    start, end = log_range(ground.wire, [tp], isolation=isolation)[tp]
    return list(read_log(ground.wire, tp, start, end, isolation=isolation))


def records(ground: Ground, topic: SeededTopic) -> list[Record]:
    return [r for p in range(topic.partitions) for piece in pieces(ground, topic.name, p) for r in piece.records()]


def raw_headers(ground: Ground, topic: str, partition: int) -> list[tuple[BatchHeader, bytes]]:
    """Every batch as it lies in the log, markers and empty ones too."""
    tp = TopicPartition(topic, partition)
    start, end = log_range(ground.wire, [tp], isolation=0)[tp]
    found = []
    while start < end:
        connection = ground.wire.connection(ground.wire.leader(tp))
        answer = fetch(connection, {tp: (start, 1 << 20)}, max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, isolation=0)[tp]
        before = start
        for at, header in headers(answer.records):
            found.append((header, bytes(answer.records[at : at + header.size])))
            start = header.next_offset
        assert start > before
    return found


def all_headers(ground: Ground, topic: SeededTopic) -> list[tuple[BatchHeader, bytes]]:
    return [pair for p in range(topic.partitions) for pair in raw_headers(ground, topic.name, p)]


def consumed(bootstrap: str, topics: list[SeededTopic]) -> Counter[str]:
    """How many records of each topic librdkafka, read_committed, hands out."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count", "enable.auto.commit": False, "enable.partition.eof": True})
    waiting = {(t.name, p) for t in topics for p in range(t.partitions)}
    consumer.assign([ClientPartition(name, p, OFFSET_BEGINNING) for name, p in waiting])
    count: Counter[str] = Counter()
    deadline = time.monotonic() + 60
    while waiting and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0.5):
            if message.error():
                waiting.discard((message.topic(), message.partition()))
            else:
                count[message.topic() or ""] += 1
    consumer.close()
    return count


@pytest.mark.long
def test_counts_are_those_of_the_log_and_of_a_client(bootstrap: str, ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    assert len(shapes) == 19
    told = {name: topic.records_committed for name, topic in shapes.items()}
    assert {name: len(records(ground, topic)) for name, topic in shapes.items()} == told
    by_client = consumed(bootstrap, [topic for name, topic in shapes.items() if name != NOT_FOR_CLIENTS])
    assert {name: by_client[topic.name] for name, topic in shapes.items()} == {**told, NOT_FOR_CLIENTS: 0}
    for name, topic in shapes.items():
        assert sum(len(r.key or b"") + len(r.value or b"") for r in records(ground, topic)) == topic.bytes, name


def test_codecs_are_on_disk(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    """Only batches of several records count: a client sends a single one plain if its codec does not make it smaller."""
    for number, name in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        assert {h.codec for h, _ in all_headers(ground, shapes[f"codec-{name}"]) if h.records > 5} == {number}


def test_transactions_overlap_and_one_is_aborted_at_the_very_end(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    batches = raw_headers(ground, shapes["transactions"].name, 0)
    markers = [is_abort_marker(memoryview(batch)) for header, batch in batches if header.is_control]
    assert True in markers and False in markers
    assert batches[-1][0].is_control and is_abort_marker(memoryview(batches[-1][1]))
    producers = [header.producer_id for header, _ in batches if header.is_transactional and not header.is_control]
    assert any(a == c != b for a, b, c in zip(producers, producers[1:], producers[2:], strict=False))
    topic = shapes["transactions"].name
    assert sum(len(pieces(ground, topic, p, isolation=0)) - len(pieces(ground, topic, p)) for p in range(3)) > 0


def test_odd_records_are_there(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    combinations = {(r.key, r.value if not r.value else b"v") for r in records(ground, shapes["nulls"])}
    assert combinations >= {(key, value) for key in (None, b"", b"k") for value in (None, b"", b"v")}
    names = {name for r in records(ground, shapes["raw-headers"]) for name, _ in r.headers}
    assert {b"", b"\x00", b"\xff\xfe\x80caf\xe9"} <= names
    doubled = [[name for name, _ in r.headers] for r in records(ground, shapes["headers"])]
    assert any(names.count(b"a") == 2 for names in doubled)
    assert {None, b""} <= {value for r in records(ground, shapes["headers"]) for _, value in r.headers}
    assert {0, -1, 1, 1_000_000_000_000} <= {r.timestamp for r in records(ground, shapes["times"])}
    assert sum(r.value is None for r in records(ground, shapes["tombstones"])) == 300
    assert max(len(r.value or b"") for r in records(ground, shapes["large-records"])) == 900_000
    assert {h.records for h, _ in all_headers(ground, shapes["one-record-batches"])} == {1}


def test_logs_have_odd_borders_and_times(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    tps = [TopicPartition(shapes["trimmed"].name, p) for p in range(2)]
    assert log_range(ground.wire, tps, isolation=0) == {tps[0]: (73, 200), tps[1]: (200, 200)}
    assert all(h.log_append_time for h, _ in all_headers(ground, shapes["append-time"]))
    assert min(r.timestamp for r in records(ground, shapes["append-time"])) > (time.time() - 3600) * 1000
    assert [bool(pieces(ground, shapes["empty-partition"].name, p)) for p in range(3)] == [True, False, True]


def test_compaction_left_holes_of_every_kind_and_goes_no_further(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    topic = shapes["compacted"]
    batches = [header for header, _ in raw_headers(ground, topic.name, 0)]
    assert any(0 < h.records <= h.last_offset_delta for h in batches), "a hole inside a batch"
    assert any(b.base_offset > a.next_offset for a, b in zip(batches, batches[1:], strict=False)), "a hole between batches"
    assert any(h.records == 0 for h in batches), "an emptied batch that keeps its producer's sequence"
    assert any(r.value is None for r in records(ground, topic))
    lag = ground.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic.name)])
    assert next(iter(lag.values())).result(30)["min.compaction.lag.ms"].value == "9223372036854775807"


def copy(ground: Ground, topic: SeededTopic, target: str, change: Callable[[Copied], None] = lambda _: None) -> None:
    """A mirror in ten lines: committed records, sealed anew; ``change`` damages what goes into partition 0."""
    target = ground.create(target, topic.partitions)
    for partition in range(topic.partitions):
        batches = pieces(ground, topic.name, partition)
        opened = [[r for r in open_batch(p.batch) if p.low <= r.offset < p.high] for p in batches]
        if partition == 0:
            flat = [r for some in opened for r in some]
            change(flat)
            opened = [flat[i : i + 40] for i in range(0, len(flat), 40)] if change.__name__ != "<lambda>" else opened
        for piece, some in zip(batches + batches[-1:] * len(opened), opened, strict=False):
            ground.append(target, partition, seal(some, codec=piece.header.codec, base_offset=0))


def compare(ground: Ground, pairs: dict[str, str]) -> list[TopicComparison]:
    settings = local_settings(ground.bootstrap)
    return compare_topics(settings, settings, {ground.prefix + topic: ground.prefix + target for topic, target in pairs.items()})


def test_a_faithful_copy_of_every_shape_is_identical(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    for name, topic in shapes.items():
        copy(ground, topic, f"copy.{name}")
    found = compare(ground, {name: f"copy.{name}" for name in shapes})
    assert {c.topic: (c.verdict, c.differences) for c in found} == {t.name: ("identical", ()) for t in shapes.values()}
    assert {c.topic: (c.partitions, c.records) for c in found} == {t.name: (t.partitions, t.records_committed) for t in shapes.values()}


@pytest.mark.parametrize(("damage", "expected"), DAMAGE.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_each_single_change_is_found(
    ground: Ground,
    shapes: dict[str, SeededTopic],
    damage: Callable[[Copied], None],
    expected: tuple[str, int | None, int | None],
) -> None:
    target = f"damaged.{damage.__name__}"
    copy(ground, shapes["codec-zstd"], target, damage)
    found = compare(ground, {"codec-zstd": target})[0]
    assert found.verdict == "different"
    first = found.differences[0]
    assert (first.kind, first.source_offset, first.target_offset, first.partition) == (*expected, 0)
    assert {d.kind for d in found.differences} == {expected[0]}


def test_aborted_records_on_the_target_are_extra(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    found = compare(ground, {"transactions": "transactions"})[0]
    assert found.verdict == "different"
    assert {d.kind for d in found.differences} == {"extra"}


def test_absent_topics_and_partitions_are_differences(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    ground.create("fewer", 2)
    found = compare(ground, {"empty": "not-there", "not-there": "empty", "codec-none": "fewer", "many-partitions": "empty"})
    assert [c.verdict for c in found] == ["different"] * 4
    assert [c.differences[0].detail for c in found[:2]] == [
        f"topic {ground.prefix}not-there does not exist on the target",
        f"topic {ground.prefix}not-there does not exist on the source",
    ]
    assert {d.partition for d in found[2].differences} == {0, 1, 2}


def test_given_offsets_bound_what_is_compared(bootstrap: str, shapes: dict[str, SeededTopic]) -> None:
    settings, name = local_settings(bootstrap), shapes["codec-lz4"].name
    source = target = TopicPartition(name, 1)
    same = compare_topics(
        settings,
        settings,
        {name: name},
        source_from={source: 33},
        target_from={target: 33},
        source_to={source: 99},
        target_to={target: 99},
    )[0]
    assert (same.verdict, same.records) == ("identical", 1_000 + 66)
    shifted = compare_topics(settings, settings, {name: name}, source_from={source: 33}, target_from={target: 34})[0]
    assert [(d.kind, d.source_offset) for d in shifted.differences] == [("missing", 33)]


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_bulk_is_unique_and_as_large_as_asked(bootstrap: str, ground: Ground, codec: str) -> None:
    topic = f"{ground.prefix}bulk-{codec}"
    count = fill_bulk(bootstrap, topic, 3, 6_000_000, record_bytes=500, batch_bytes=8_000, codec=codec)
    values = [r.value for p in range(3) for piece in pieces(ground, topic, p) for r in piece.records()]
    assert len(values) == len(set(values)) == count
    assert sum(len(v or b"") for v in values) == pytest.approx(6_000_000, rel=0.02)


def test_live_records_are_unique_and_some_are_aborted(bootstrap: str, ground: Ground) -> None:
    topics = [ground.create("live-one", 2), ground.create("live-two", 1)]
    stop = threading.Event()
    result: dict[str, int] = {}
    writer = threading.Thread(target=lambda: result.update(produce_live(bootstrap, topics, 400, stop)))
    writer.start()
    deadline = time.monotonic() + 30
    while sum(h.is_control for h, _ in raw_headers(ground, topics[1], 0)) < 3 and time.monotonic() < deadline:
        stop.wait(0.2)
    stop.set()
    writer.join(30)

    def seen() -> dict[str, list[bytes | None]]:
        return {
            t: [r.value for p in range(n) for piece in pieces(ground, t, p) for r in piece.records()]
            for t, n in zip(topics, (2, 1), strict=True)
        }

    # The answer to a commit comes before its markers are in all partitions.
    wait_until(lambda: {t: len(values) for t, values in seen().items()} == result, 30, f"the last transaction: {result}")
    assert all(max(Counter(values).values()) == 1 for values in seen().values())
    assert any(is_abort_marker(memoryview(batch)) for header, batch in raw_headers(ground, topics[1], 0) if header.is_control)


def test_a_second_fill_is_refused(ground: Ground, shapes: dict[str, SeededTopic]) -> None:
    with pytest.raises(UsageError, match="exists already"):
        fill(ground.bootstrap, scale=10, prefix=ground.prefix)
