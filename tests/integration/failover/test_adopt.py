"""Adoption: a mirror continues in target topics that already hold a copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from mirror_pipeline import Mirror
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.log_walk import read_log
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, end_offsets, make_mirror, produce, trim, values
from tests.support.reverse_pair import IN_PROCESS

Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes]]]


def mirror_of(folder: Path, clusters: ClusterPair, *topics: str, **settings: Any) -> Mirror:
    """A mirror whose buffer knows nothing."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    return make_mirror(folder, east, west, topics, engine=IN_PROCESS, **settings)


def copy_rows(clusters: ClusterPair, topic: str, rows: Callable[[list[Row]], list[Row]] = list, *, partition: int = 0) -> None:
    """Copy a partition as another tool would, in batches of its own; ``rows`` changes what arrives."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirrored = f"east.{topic}"
    producer = Producer({"bootstrap.servers": west, "linger.ms": 20, "enable.idempotence": True})
    for key, value, at, headers in rows(rows_of(east, topic, partition)):
        producer.produce(mirrored, value, key, partition, timestamp=at, headers=list(headers))
    assert producer.flush(60) == 0


def rows_of(bootstrap: str, topic: str, partition: int) -> list[Row]:
    """The committed records of a partition."""
    from mirror_pipeline.kafka.client import WireClient
    from mirror_pipeline.kafka.offsets import log_range
    from mirror_pipeline.local.shapes.ground import local_settings

    place = TopicPartition(topic, partition)
    with WireClient(local_settings(bootstrap)) as client:
        start, end = log_range(client, [place], isolation=1)[place]
        found = [record for piece in read_log(client, place, start, end, isolation=1) for record in piece.records()]
    return [(r.key, r.value, r.timestamp, [(name.decode(), value or b"") for name, value in r.headers]) for r in found]


def both(clusters: ClusterPair, topic: str, partitions: int = 1) -> None:
    """The source topic and its target."""
    create_topic(clusters[0].bootstrap_servers, topic, partitions)
    create_topic(clusters[1].bootstrap_servers, f"east.{topic}", partitions)


def transactions(bootstrap: str, topic: str, count: int) -> None:
    """Transactions of three records, every second one aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    for number in range(count):
        producer.begin_transaction()
        for part in range(3):
            producer.produce(topic, f"{'aborted' if number % 2 else 'tx'}-{number}-{part}".encode(), str(number).encode(), 0)
        producer.flush(30)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(30)


@pytest.mark.long
def test_a_lost_ledger_is_made_anew(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east = clusters[0].bootstrap_servers
    create_topic(east, topic_name, 3)
    produce(east, topic_name, 300, partitions=3)
    mirror = mirror_of(tmp_path, clusters, topic_name)
    mirror.run(once=True)
    produce(east, topic_name, 60, partitions=3, start=300)
    shutil.rmtree(tmp_path / "buffer")
    assert [row.code for row in mirror.run(once=True).topics] == ["target_filled"]

    dry = mirror.adopt(topic_name, dry_run=True)
    assert (dry.state, dry.records, [part.remaining for part in dry.partitions]) == ("ready", 300, [20, 20, 20])
    assert [row.code for row in mirror.run(once=True).topics] == ["target_filled"], "a dry run has written nothing"
    done = mirror.adopt(topic_name)
    assert (done.state, done.records, [part.source_end for part in done.partitions]) == ("adopted", 300, [100, 100, 100])
    with pytest.raises(UsageError, match="copies topic .* already"):
        mirror.adopt(topic_name)
    produce(east, topic_name, 30, partitions=3, start=360)
    assert [(row.state, row.records) for row in mirror.run(once=True).topics] == [("ok", 90)]
    assert_identical(mirror, [topic_name])
    assert mirror.verify().ok
    assert [(row.source_end, row.target_end, row.records) for row in mirror.offset_map()] == [(130, 130, 130)] * 3


def test_what_another_tool_copied_of_a_transactional_topic(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    """Offsets differ on both sides; afterwards they translate over the adopted part, and over what is copied after it."""
    east = clusters[0].bootstrap_servers
    both(clusters, topic_name)
    produce(east, topic_name, 10)
    transactions(east, topic_name, 10)
    copy_rows(clusters, topic_name)
    transactions(east, topic_name, 4)
    mirror = mirror_of(tmp_path, clusters, topic_name)
    (part,) = mirror.adopt(topic_name).partitions
    assert (part.records, part.target_end, part.runs) == (25, 25, 5)
    assert [row.state for row in mirror.run(once=True).topics] == ["ok"]
    assert_identical(mirror, [topic_name])
    assert mirror.verify().ok
    rows = rows_of(east, topic_name, 0)
    from mirror_pipeline.kafka.client import WireClient

    with WireClient(mirror.flow.source) as client:
        offsets = [r.offset for p in read_log(client, TopicPartition(topic_name, 0), 0, 500, isolation=1) for r in p.records()]
    assert len(offsets) == len(rows) == 31
    translated = [mirror.translate(topic_name, offset=offset)[0].target_offset for offset in offsets]
    assert translated == list(range(31))
    back = [mirror.translate(topic_name, offset=number, reverse=True)[0].source_offset for number in range(31)]
    assert back == offsets


def test_a_target_that_differs_is_refused(clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]) -> None:
    def missing(rows: list[Row]) -> list[Row]:
        return rows[:20] + rows[21:50]

    def duplicate(rows: list[Row]) -> list[Row]:
        return [*rows[:30], rows[29], *rows[30:50]]

    def again(rows: list[Row]) -> list[Row]:
        return [*rows[:50], *rows[45:50]]

    def altered(rows: list[Row]) -> list[Row]:
        key, _, at, headers = rows[49]
        return [*rows[:49], (key, b"another value", at, headers)]

    def order(rows: list[Row]) -> list[Row]:
        return [*rows[:10], *rows[11:40], rows[10], *rows[40:50]]

    def foreign(rows: list[Row]) -> list[Row]:
        return [*rows[:50], (b"k", b"a stranger", rows[0][2] - 3_600_000, [])]

    cases = {
        missing: r"source offset 20 of partition 0 is missing",
        duplicate: r"offset 30 is a duplicate",
        again: r"offset 50 is a duplicate; .*offset 51 is a duplicate",
        altered: r"offset 49 differs from source offset 49: value differs",
        order: r"is out of order",
        foreign: r"offset 50 is not on the source .*--allow foreign",
    }
    names = {change: new_topic_name() for change in cases}
    mirror = mirror_of(tmp_path, clusters, *names.values())
    for change, text in cases.items():
        both(clusters, names[change])
        produce(clusters[0].bootstrap_servers, names[change], 100)
        copy_rows(clusters, names[change], change)
        with pytest.raises(ProblemFound, match=text):
            mirror.adopt(names[change])
        assert not (tmp_path / "buffer").exists(), "nothing was written"
    assert mirror.adopt(names[foreign], allow=["foreign"]).partitions[0].foreign == 1
    with pytest.raises(ProblemFound, match="duplicate"):
        mirror.adopt(names[again], allow=["foreign"])
    assert mirror.run(once=True, topics=[names[foreign]]).state == "ok"
    found = values(mirror, f"east.{names[foreign]}")
    assert found[50] == "a stranger"
    assert found[:50] + found[51:] == [f"value-{number}".ljust(20, ".") for number in range(100)]
    assert mirror.verify(topics=[names[foreign]]).ok


def test_foreign_records_anywhere_are_left_where_they_are(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    both(clusters, topic_name)
    produce(clusters[0].bootstrap_servers, topic_name, 100)

    def strewn(rows: list[Row]) -> list[Row]:
        found: list[Row] = []
        for number, row in enumerate(rows[:80]):
            found += [(b"k", f"stranger-{number}".encode(), row[2] - 3_600_000, [])] if number % 9 == 0 else []
            found.append(row)
        return found

    copy_rows(clusters, topic_name, strewn)
    mirror = mirror_of(tmp_path, clusters, topic_name)
    (part,) = mirror.adopt(topic_name, allow=["foreign"]).partitions
    assert (part.records, part.foreign, part.target_end) == (80, 9, 89)
    mirror.run(once=True)
    assert [v for v in values(mirror, f"east.{topic_name}") if "stranger" not in v] == [f"value-{n}".ljust(20, ".") for n in range(100)]
    assert mirror.verify().ok
    assert mirror.translate(topic_name, offset=79)[0].target_offset == 88
    assert mirror.translate(topic_name, offset=80)[0].target_offset == 89


def test_logs_that_have_lost_their_beginnings(clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    names = [new_topic_name() for _ in range(4)]
    mirror = mirror_of(tmp_path, clusters, *names)
    for name in names:
        both(clusters, name)
        produce(east, name, 200)
        copy_rows(clusters, name, lambda rows: rows[:150])
    source, target, gone, emptied = names
    trim(east, source, {0: 40})
    trim(west, f"east.{target}", {0: 60})
    trim(east, gone, {0: 170})
    trim(west, f"east.{emptied}", {0: 150})

    (part,) = mirror.adopt(source).partitions
    assert (part.source_start, part.target_start, part.records, part.unproven) == (40, 40, 110, 40)
    (part,) = mirror.adopt(target).partitions
    assert (part.source_start, part.target_start, part.records, part.unproven) == (60, 60, 90, 0)
    with pytest.raises(ProblemFound, match="its first records are not on the target"):
        mirror.adopt(gone)
    with pytest.raises(ProblemFound, match="the target has deleted all its records"):
        mirror.adopt(emptied)
    assert [(row.state, row.records) for row in mirror.run(once=True, topics=[source, target]).topics] == [("ok", 50), ("ok", 50)]
    assert values(mirror, f"east.{source}") == [f"value-{n}".ljust(20, ".") for n in range(200)]
    assert values(mirror, f"east.{target}") == [f"value-{n}".ljust(20, ".") for n in range(60, 200)]
    assert mirror.verify().ok


def test_the_last_records_alone(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    both(clusters, topic_name)
    produce(clusters[0].bootstrap_servers, topic_name, 1000)
    copy_rows(clusters, topic_name, lambda rows: [*rows[:200], rows[199], *rows[200:800]])
    mirror = mirror_of(tmp_path, clusters, topic_name)
    with pytest.raises(ProblemFound, match="duplicate"):
        mirror.adopt(topic_name, proof="last:750")
    (part,) = mirror.adopt(topic_name, proof="last:200").partitions
    assert (part.source_start, part.source_end, part.target_start, part.target_end, part.unproven) == (600, 800, 601, 801, 601)
    mirror.run(once=True)
    assert end_offsets(mirror, f"east.{topic_name}", target=True) == {0: 1001}
    assert values(mirror, f"east.{topic_name}")[801:] == [f"value-{n}".ljust(20, ".") for n in range(800, 1000)]


def test_records_that_repeat_show_no_place(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    both(clusters, topic_name)
    producer = Producer({"bootstrap.servers": clusters[0].bootstrap_servers})
    for _ in range(300):
        producer.produce(topic_name, b"same", b"key", 0, timestamp=1_700_000_000_000)
    producer.flush(30)
    copy_rows(clusters, topic_name, lambda rows: rows[:200])
    trim(clusters[0].bootstrap_servers, topic_name, {0: 50})
    with pytest.raises(ProblemFound, match="are there twice"):
        mirror_of(tmp_path, clusters, topic_name).adopt(topic_name)


def test_partitions(clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    fewer, more, empty, half = (new_topic_name() for _ in range(4))
    mirror = mirror_of(tmp_path, clusters, fewer, more, empty, half)
    create_topic(east, fewer, 3)
    create_topic(west, f"east.{fewer}", 2)
    create_topic(east, more, 1)
    create_topic(west, f"east.{more}", 2)
    both(clusters, empty)
    both(clusters, half, 2)
    for name, count in ((fewer, 3), (more, 1), (empty, 1), (half, 2)):
        produce(east, name, 60, partitions=count)
    for part in (0, 1):
        copy_rows(clusters, fewer, partition=part)
    copy_rows(clusters, more)
    copy_rows(clusters, half, partition=1)
    produce(west, f"east.{more}", 2, partitions=2)
    with pytest.raises(ProblemFound, match=r"\[1\] holds records, and the source has 1 partition, not 2"):
        mirror.adopt(more)
    with pytest.raises(UsageError, match="is empty: there is nothing to adopt"):
        mirror.adopt(empty)
    assert "has 2 of 3 partitions" in mirror.adopt(fewer).notes[0]
    assert [part.records for part in mirror.adopt(half).partitions] == [0, 30]
    assert {row.state for row in mirror.run(once=True, topics=[fewer, half]).topics} == {"ok"}
    assert_identical(mirror, [fewer, half])
    with pytest.raises(UsageError, match="does not select topic"):
        mirror.adopt("another-topic")
