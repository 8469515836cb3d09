"""What a source, or a target, can do to a mirror: every hazard stops the topic with a reason, and what a person accepts goes on."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.errors import TopicHalted, UsageError
from mirror_pipeline.kafka.answers import LATEST_TIME, ClusterMetadata, OffsetAnswer
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.records.batch import headers
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.model import HoleCause, TopicPartition
from mirror_pipeline.reports import RunReport
from tests.integration.processes import wait_until
from tests.support.deleted_topics import delete_everywhere, recreate
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, end_offsets, make_mirror, produce, trim, values

Case = Callable[..., Mirror]
LEADER_NOT_AVAILABLE = 5
LIST_OFFSETS = WireClient.list_offsets
Offsets = dict[TopicPartition, OffsetAnswer]


@pytest.fixture
def case(clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession) -> Case:
    """A mirror of one topic of the test's own, called ``topic_name``."""

    def make(**settings: object) -> Mirror:
        east, west = (cluster.bootstrap_servers for cluster in clusters)
        return make_mirror(tmp_path, east, west, [topic_name], **settings)

    return make


def once(mirror: Mirror, spark: SparkSession) -> RunReport:
    return mirror.run(once=True, session=spark)


def halted(report: RunReport, code: str) -> None:
    assert [(t.state, t.code) for t in report.topics] == [("halted", code)], report.topics


def test_a_trimmed_source_stops_and_goes_on_when_that_is_accepted(case: Case, topic_name: str, spark: SparkSession) -> None:
    mirror = case()
    east = mirror.flow.source.bootstrap_servers[0]
    create_topic(east, topic_name)
    produce(east, topic_name, 100)
    assert once(mirror, spark).state == "ok"
    produce(east, topic_name, 100, start=100)
    trim(mirror.flow.source.bootstrap_servers[0], topic_name, {0: 150})
    halted(once(mirror, spark), "trimmed")
    (halt,) = mirror.halts()
    assert (halt.start, halt.end, halt.partition) == (100, 150, 0)
    assert f"--topic {topic_name} --accept trimmed" in halt.accept
    assert mirror.gaps() == []
    with pytest.raises(UsageError, match="not halted for 'recreated'"):
        mirror.resolve(topic_name, "recreated")
    assert mirror.resolve(topic_name, "trimmed").spans == {0: (100, 150)}
    assert once(mirror, spark).state == "ok"
    (gap,) = mirror.gaps()
    assert (gap.start, gap.end, gap.cause) == (100, 150, HoleCause.RETENTION)
    assert "@" in gap.decided_by
    assert values(mirror, f"east.{topic_name}") == [f"value-{n}".ljust(20, ".") for n in [*range(100), *range(150, 200)]]
    assert mirror.halts() == []


def test_with_record_gap_a_trimmed_source_is_passed_and_named(case: Case, topic_name: str, spark: SparkSession) -> None:
    mirror = case(on_loss="record_gap")
    east = mirror.flow.source.bootstrap_servers[0]
    create_topic(east, topic_name)
    produce(east, topic_name, 50)
    once(mirror, spark)
    produce(east, topic_name, 50, start=50)
    trim(mirror.flow.source.bootstrap_servers[0], topic_name, {0: 80})
    assert once(mirror, spark).state == "ok"
    (gap,) = mirror.gaps()
    assert (gap.start, gap.end, gap.cause, gap.decided_by) == (50, 80, HoleCause.RETENTION, "on_loss: record_gap")


def test_a_recreated_topic_stops_and_is_appended_when_that_is_accepted(case: Case, topic_name: str, spark: SparkSession) -> None:
    mirror = case()
    east = mirror.flow.source.bootstrap_servers[0]
    create_topic(east, topic_name)
    produce(east, topic_name, 30)
    once(mirror, spark)
    recreate(east, topic_name)
    produce(east, topic_name, 20, start=1000)
    halted(once(mirror, spark), "recreated")
    assert sum(end_offsets(mirror, f"east.{topic_name}", target=True).values()) == 30
    mirror.resolve(topic_name, "recreated")
    assert once(mirror, spark).state == "ok"
    produce(east, topic_name, 5, start=2000)
    assert once(mirror, spark).state == "ok"
    expected = [*range(30), *range(1000, 1020), *range(2000, 2005)]
    assert values(mirror, f"east.{topic_name}") == [f"value-{n}".ljust(20, ".") for n in expected]


def test_a_recreated_target_stops_and_is_filled_again_when_that_is_accepted(case: Case, topic_name: str, spark: SparkSession) -> None:
    mirror = case()
    east, west = mirror.flow.source.bootstrap_servers[0], mirror.flow.target.bootstrap_servers[0]
    create_topic(east, topic_name)
    produce(east, topic_name, 30)
    once(mirror, spark)
    recreate(west, f"east.{topic_name}")
    produce(east, topic_name, 10, start=30)
    halted(once(mirror, spark), "target_recreated")
    mirror.resolve(topic_name, "target_recreated")
    assert once(mirror, spark).state == "ok"
    assert_identical(mirror, [topic_name])


def test_a_topic_that_sends_nothing_learns_that_its_target_is_gone(case: Case, topic_name: str, spark: SparkSession) -> None:
    mirror = case()
    east, west = mirror.flow.source.bootstrap_servers[0], mirror.flow.target.bootstrap_servers[0]
    create_topic(east, topic_name)
    produce(east, topic_name, 30)
    stop = threading.Event()
    lane = threading.Thread(target=lambda: mirror.run(stop=stop, session=spark))
    lane.start()

    def codes() -> set[str]:
        return {topic.code for each in mirror.status().lanes for topic in each.topics}

    try:
        wait_until(lambda: topic_name in {t.topic for each in mirror.status().lanes for t in each.topics}, 60, "the lane")
        wait_until(lambda: mirror.lag().lag_records == 0, 60, lambda: f"the copy: {mirror.lag()}")
        delete_everywhere(west, f"east.{topic_name}")
        wait_until(lambda: codes() == {"target_gone"}, 90, lambda: f"the halt: {mirror.status()}")
    finally:
        stop.set()
        lane.join(60)


def copied(mirror: Mirror, topic: str) -> dict[int, int]:
    return end_offsets(mirror, f"east.{topic}", target=True)


@pytest.mark.parametrize("lane_is", ["stopped", "at work", "idle"])
def test_a_topic_is_copied_afresh_when_that_is_asked_for(case: Case, topic_name: str, spark: SparkSession, lane_is: str) -> None:
    """An idle lane sends nothing, from whose refusal it would learn of the new target topic."""
    mirror = case()
    east, west = mirror.flow.source.bootstrap_servers[0], mirror.flow.target.bootstrap_servers[0]
    create_topic(east, topic_name, 2)
    create_topic(west, f"east.{topic_name}", 2, retention__ms="123456789")
    produce(east, topic_name, 30, partitions=2)
    once(mirror, spark)
    stop = threading.Event()
    lane = threading.Thread(target=lambda: mirror.run(stop=stop, session=spark))
    if lane_is != "stopped":
        lane.start()
        wait_until(lambda: mirror.status().lanes[0].state == "running", 60, "the lane")
    assert mirror.remirror(topic_name).accepted == "target_recreated"
    if lane_is == "idle":
        wait_until(lambda: copied(mirror, topic_name) == {0: 15, 1: 15}, 90, lambda: f"the copy: {mirror.lag()}")
    produce(east, topic_name, 10, partitions=2, start=30)
    if lane_is != "stopped":
        wait_until(lambda: copied(mirror, topic_name) == {0: 20, 1: 20}, 180, lambda: f"the copy: {mirror.lag()}")
        stop.set()
        lane.join(60)
    assert once(mirror, spark).state == "ok"
    assert_identical(mirror, [topic_name])
    with mirror.flow.target_admin() as admin:
        configs = admin.topic_configs([f"east.{topic_name}"])[f"east.{topic_name}"]
    assert not isinstance(configs, Exception) and configs["retention.ms"].value == "123456789"
    look = mirror.fresh_copy(topic_name)
    assert (look.target_topic, look.deleted, look.copied, look.lost) == (f"east.{topic_name}", 40, 40, 0)
    trim(east, topic_name, {0: 5})
    look = mirror.fresh_copy(topic_name)
    assert (look.deleted, look.copied, look.lost) == (40, 35, 5)
    with pytest.raises(UsageError, match="5 offsets that the copy has are not on the source any more"):
        mirror.remirror(topic_name)
    with pytest.raises(UsageError, match="has no copy of another"):
        mirror.remirror("another")
    assert end_offsets(mirror, f"east.{topic_name}", target=True) == {0: 20, 1: 20}
    mirror.remirror(topic_name, accept_loss=True)
    halted(once(mirror, spark), "trimmed")
    mirror.resolve(topic_name, "trimmed")
    assert once(mirror, spark).state == "ok"
    assert end_offsets(mirror, f"east.{topic_name}", target=True) == {0: 15, 1: 20}


def test_a_topic_is_copied_afresh_though_a_broker_shows_its_deleted_topic_for_a_while(
    case: Case, topic_name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = case()
    create_topic(mirror.flow.source.bootstrap_servers[0], topic_name)
    produce(mirror.flow.source.bootstrap_servers[0], topic_name, 30)
    once(mirror, spark)
    target, ask = f"east.{topic_name}", WireClient.metadata
    with mirror.flow.target_client() as client:
        before = client.metadata([target])
    late = iter([True] * 3)

    def metadata(self: WireClient, topics: Iterable[str] | None = None) -> ClusterMetadata:
        return before if topics is not None and list(topics) == [target] and next(late, False) else ask(self, topics)

    monkeypatch.setattr(WireClient, "metadata", metadata)
    with pytest.raises(TopicHalted, match=f"mirrored to {target} so far"):
        case(naming="identity").remirror(topic_name)
    mirror.remirror(topic_name)
    assert next(late, False) is False
    assert once(mirror, spark).state == "ok"
    assert_identical(mirror, [topic_name])


def test_a_record_too_large_for_the_target_goes_to_quarantine_when_that_is_accepted(
    case: Case, topic_name: str, spark: SparkSession
) -> None:
    mirror = case()
    east, west = mirror.flow.source.bootstrap_servers[0], mirror.flow.target.bootstrap_servers[0]
    create_topic(east, topic_name)
    create_topic(west, f"east.{topic_name}", max__message__bytes="2000")
    produce(east, topic_name, 10)
    produce(east, topic_name, 1, start=10, size=5000)
    produce(east, topic_name, 10, start=11)
    halted(once(mirror, spark), "oversize")
    mirror.resolve(topic_name, "oversize")
    assert once(mirror, spark).state == "ok"
    assert values(mirror, f"east.{topic_name}") == [f"value-{n}".ljust(20, ".") for n in [*range(10), *range(11, 21)]]
    (gap,) = mirror.gaps()
    assert (gap.start, gap.end, gap.cause) == (10, 11, HoleCause.QUARANTINED)
    (kept,) = Decisions(mirror.flow.lane_stores()[0]).quarantined()
    assert b"value-10" in kept.payload
    (listed,) = mirror.quarantine()
    assert (listed.topic, listed.start, listed.end, listed.readable, listed.bytes) == (topic_name, 10, 11, True, len(kept.payload))
    assert mirror.quarantine("another") == []
    folder = mirror.flow.config.folder / "out"
    assert mirror.export_quarantine(folder) == [listed]
    (line,) = (folder / f"{topic_name}-0-10.jsonl").read_text().splitlines()
    assert base64.b64decode(json.loads(line)["value"]).startswith(b"value-10.") and json.loads(line)["offset"] == 10
    assert (folder / f"{topic_name}-0-10.batch").read_bytes() == kept.payload
    for _ in range(2):
        assert mirror.send_quarantine(topic_name) == (f"east.{topic_name}.quarantine", [listed])
        assert values(mirror, f"east.{topic_name}.quarantine") == ["value-10".ljust(5000, ".")]
    with pytest.raises(UsageError, match="no records of another in quarantine"):
        mirror.send_quarantine("another")


def cut_log(cluster: LocalCluster, topic: str, records: int) -> None:
    """Take the last ``records`` one-record batches off the only partition's log, as a lost disk cache would."""
    cluster.stop()
    (log,) = cluster.brokers[0].data.glob(f"**/{topic}-0/*.log")
    data = log.read_bytes()
    starts = [at for at, _ in headers(memoryview(data))]
    log.write_bytes(data[: starts[-records]])
    for name in ("*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint"):
        for path in log.parent.glob(name):
            path.unlink()
    for path in [*cluster.brokers[0].data.glob("**/.kafka_cleanshutdown"), *cluster.brokers[0].data.glob("**/*offset-checkpoint")]:
        path.unlink()
    cluster.start()


@pytest.mark.slow
@pytest.mark.parametrize("written_again", [0, 40])
def test_a_truncated_source_is_noticed_and_goes_on_when_that_is_accepted(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, spark: SparkSession, written_again: int
) -> None:
    """Also when the log has grown again past the position, so that its offsets alone look healthy."""
    first, second = cluster_factory(2, brokers=1)  # the log is cut short by hand, which replicas would undo
    east = first.bootstrap_servers
    create_topic(east, "t")
    for start in range(0, 30, 3):
        produce(east, "t", 3, start=start)  # a batch each
    mirror = make_mirror(tmp_path, east, second.bootstrap_servers, ["t"])
    assert once(mirror, spark).state == "ok"
    cut_log(first, "t", 4)
    wait_until(lambda: end_offsets(mirror, "t", target=False) == {0: 18}, 60, "the leader")
    if written_again:
        produce(east, "t", written_again, start=1000)
    halted(once(mirror, spark), "truncated")
    assert mirror.resolve("t", "truncated").spans == {0: (18, 30)}
    assert once(mirror, spark).state == "ok"
    expected = [*range(30), *range(1000, 1000 + written_again)]
    assert values(mirror, "east.t") == [f"value-{n}".ljust(20, ".") for n in expected]
    (gap,) = mirror.gaps()
    assert (gap.start, gap.end, gap.cause) == (18, 30, HoleCause.TRUNCATION)


def test_lag_tells_when_the_source_will_delete_what_is_not_read(case: Case, topic_name: str) -> None:
    mirror = case()
    east = mirror.flow.source.bootstrap_servers[0]
    create_topic(east, topic_name, retention__ms="7200000")
    produce(east, topic_name, 10, at=int(time.time() * 1000) - 3_600_000)
    (topic,) = mirror.lag().topics
    assert topic.expires_seconds is not None
    assert 3400 < topic.expires_seconds < 3600
    assert topic.warnings[0].startswith("source deletes unread data in 59 m")
    assert topic.warnings[0] in mirror.plan().topics[0].warnings


def test_lag_tells_of_a_transaction_that_nobody_ends(case: Case, topic_name: str, spark: SparkSession) -> None:
    mirror = case()
    east = mirror.flow.source.bootstrap_servers[0]
    create_topic(east, topic_name)
    produce(east, topic_name, 5)
    producer = Producer({"bootstrap.servers": east, "transactional.id": topic_name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic_name, b"open", timestamp=int(time.time() * 1000) - 1_800_000)
    assert producer.flush(30) == 0
    produce(east, topic_name, 5, start=5)
    assert once(mirror, spark).state == "ok"
    (topic,) = mirror.lag().topics
    assert (topic.lag_records, topic.held_records) == (0, 6)
    assert "an open transaction has held back 6 offsets for 30 m; it is hanging" in topic.warnings[0]
    producer.abort_transaction(30)
    assert once(mirror, spark).state == "ok"
    assert values(mirror, f"east.{topic_name}") == [f"value-{n}".ljust(20, ".") for n in range(10)]
    assert mirror.lag().topics[0].held_records == 0


def test_plan_warns_of_records_that_the_target_would_delete_at_once(case: Case, topic_name: str) -> None:
    mirror = case()
    east, west = mirror.flow.source.bootstrap_servers[0], mirror.flow.target.bootstrap_servers[0]
    create_topic(east, topic_name, retention__ms="-1")
    create_topic(west, f"east.{topic_name}", retention__ms="3600000")
    produce(east, topic_name, 5, at=int(time.time() * 1000) - 86_400_000)
    (topic,) = mirror.plan().topics
    assert any("it may delete them once they are copied" in warning for warning in topic.warnings), topic.warnings


def slow_ends(monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    """A source that takes its time to tell where partitions end, as over a long link; the first answers are refusals."""
    left = [refused]

    def asked(client: WireClient, at: dict[TopicPartition, int], *, isolation: int = 1, **more: float) -> Offsets:
        found = LIST_OFFSETS(client, at, isolation=isolation, **more)
        if isolation == 1 and set(at.values()) == {LATEST_TIME}:
            time.sleep(1.5)
            if left[0]:
                left[0] -= 1
                return {tp: OffsetAnswer(-1, -1, LEADER_NOT_AVAILABLE) for tp in at}
        return found

    monkeypatch.setattr(WireClient, "list_offsets", asked)


@pytest.mark.long
@pytest.mark.parametrize("refused", [0, 1, 2])
def test_a_run_once_ends_with_what_was_there_when_the_source_told_it(
    case: Case, topic_name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """First a new topic, then one that is known, then one with a new life: none of them is over before its end is known."""
    mirror = case()
    east = mirror.flow.source.bootstrap_servers[0]
    create_topic(east, topic_name)
    expected: list[int] = []
    for life in range(3):
        if life == 2:
            recreate(east, topic_name)
            halted(once(mirror, spark), "recreated")
            mirror.resolve(topic_name, "recreated")
        produce(east, topic_name, 10, start=100 * life)
        expected += range(100 * life, 100 * life + 10)
        slow_ends(monkeypatch, refused)
        report = once(mirror, spark)
        assert (report.state, report.records) == ("ok", 10), report
        assert values(mirror, f"east.{topic_name}") == [f"value-{n}".ljust(20, ".") for n in expected]
