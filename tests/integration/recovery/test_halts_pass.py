"""Halts whose cause lies on a cluster pass in the same run once the cluster is mended; those that protect data stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from mirror_pipeline import Mirror
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver import lane, state
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.reports import TopicState
from mirror_pipeline.topics.alter import alter_topics
from tests.integration.processes import wait_until
from tests.integration.secured import Secured
from tests.integration.worlds import World, world
from tests.support.groups import running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import add_partitions, assert_identical, create_topic
from tests.support.scram import USER

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "DISCOVER_SECONDS", 1.0)
    monkeypatch.setattr(lane, "RAREST_DISCOVER_SECONDS", 1.0)
    monkeypatch.setattr(state, "FIRST_TRIAL_SECONDS", 2.0)
    monkeypatch.setattr(state, "TRIAL_SECONDS", 1.0)


@pytest.fixture
def guarded(secured_clusters: Secured) -> World:
    return world("sasl_acl", None, secured_clusters)


@contextmanager
def denied(place: World, alias: str, topic: str, operation: str) -> Iterator[None]:
    """Take a right on a topic away from the mirror's user for a while; brokers know of it within a moment."""
    assert place.secured is not None
    admin = place.secured.operator(alias)
    acl = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation[operation], AclPermissionType.DENY
    )
    for future in admin.create_acls([acl]).values():
        future.result(30)
    try:
        yield
    finally:
        for future in admin.delete_acls([_filter(acl)]).values():
            future.result(30)


def _filter(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type
    )


def row(mirror: Mirror, topic: str) -> TopicState:
    return next(row for row in mirror.status().lanes[0].topics if row.topic == topic)


def caught_up(mirror: Mirror) -> bool:
    return mirror.lag().lag_records == 0 and all(each.state == "ok" for each in mirror.status().lanes[0].topics)


@pytest.mark.parametrize(("alias", "operation"), [("east", "READ"), ("west", "WRITE")])
def test_a_right_is_taken_away_and_given_back(guarded: World, tmp_path: Path, topic_name: str, alias: str, operation: str) -> None:
    topic, other = f"{topic_name}.a", f"{topic_name}.b"
    for name in (topic, other):
        guarded.create(name, 3)
        guarded.produce(name, 30, partitions=3)
    mirror = guarded.mirror(tmp_path, topic_name)
    with running(mirror):
        wait_until(lambda: caught_up(mirror), 60, "the first records")
        with denied(guarded, alias, topic if alias == "east" else f"east.{topic}", operation):
            time.sleep(1)
            guarded.produce(topic, 30, partitions=3, start=30)
            wait_until(lambda: "tried again" in row(mirror, topic).hint, 60, "the halt, and when it is tried again")
            assert (row(mirror, topic).state, row(mirror, topic).code) == ("halted", "topic_authorization_failed")
            guarded.produce(other, 30, partitions=3, start=30)
            wait_until(lambda: row(mirror, other).records == 60, 60, "the other topic")
            time.sleep(6)
        guarded.produce(topic, 30, partitions=3, start=60)
        wait_until(lambda: caught_up(mirror), 60, "the topic to continue")
    assert_identical(mirror, [topic, other])


def test_a_target_topic_that_may_not_be_described_at_a_start_is_not_called_deleted(
    guarded: World, tmp_path: Path, topic_name: str
) -> None:
    guarded.create(topic_name)
    guarded.produce(topic_name, 20)
    mirror = guarded.mirror(tmp_path, topic_name)
    mirror.run(once=True)
    guarded.produce(topic_name, 20, start=20)
    with denied(guarded, "west", f"east.{topic_name}", "DESCRIBE"):
        time.sleep(1)
        (once,) = mirror.run(once=True).topics
        assert (once.state, once.code) == ("halted", "topic_authorization_failed")
        assert "delete" not in once.reason + once.hint and "tried again" not in once.hint
    mirror.run(once=True)
    assert_identical(mirror, [topic_name])


@pytest.mark.parametrize(("alias", "operation"), [("east", "DESCRIBE"), ("west", "DESCRIBE"), ("west", "READ")])
def test_a_right_that_is_missing_at_a_start_is_given_back(
    guarded: World, tmp_path: Path, topic_name: str, alias: str, operation: str
) -> None:
    guarded.create(topic_name, 2)
    guarded.produce(topic_name, 20, partitions=2)
    mirror = guarded.mirror(tmp_path, topic_name)
    mirror.run(once=True)
    guarded.produce(topic_name, 20, partitions=2, start=20)
    with ExitStack() as right:
        right.enter_context(denied(guarded, alias, topic_name if alias == "east" else f"east.{topic_name}", operation))
        time.sleep(1)
        with running(mirror):
            wait_until(lambda: row(mirror, topic_name).state == "halted", 60, "the halt")
            right.close()
            wait_until(lambda: caught_up(mirror), 60, "the topic to continue")
    assert_identical(mirror, [topic_name])


def limit(servers: str, topic: str, size: str) -> None:
    with Admin(ClusterSettings("any", (servers,))) as admin:
        assert alter_topics(admin, {topic: {"max.message.bytes": size}}) == {topic: None}


def test_a_limit_of_the_target_topic_is_lowered_and_raised(guarded: World, tmp_path: Path, topic_name: str) -> None:
    guarded.create(topic_name)
    guarded.produce(topic_name, 20)
    topics = {"include": [topic_name], "configs": {"sync": False}}
    mirror = guarded.mirror(tmp_path, topic_name, topics=topics)
    with running(mirror):
        wait_until(lambda: caught_up(mirror), 60, "the first records")
        limit(guarded.west, f"east.{topic_name}", "50000")
        time.sleep(1)
        producer = Producer({"bootstrap.servers": guarded.east})
        for number in range(3):
            producer.produce(topic_name, bytes(200_000), f"{number}".encode(), 0)
        assert producer.flush(30) == 0
        wait_until(lambda: row(mirror, topic_name).code in ("message_too_large", "record_list_too_large"), 60, "the halt")
        limit(guarded.west, f"east.{topic_name}", "1000000")
        wait_until(lambda: caught_up(mirror), 60, "the topic to continue")
    assert_identical(mirror, [topic_name])


def test_a_recreated_topic_stays_halted(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    place = world("prefix", clusters, None)
    place.create(topic_name)
    place.produce(topic_name, 20)
    mirror = place.mirror(tmp_path, topic_name)
    with running(mirror):
        wait_until(lambda: caught_up(mirror), 60, "the first records")
        admin = AdminClient({"bootstrap.servers": place.east})
        admin.delete_topics([topic_name])[topic_name].result(15)
        time.sleep(1)
        create_topic(place.east, topic_name)
        place.produce(topic_name, 30)
        wait_until(lambda: row(mirror, topic_name).code == "recreated", 60, "the halt")
        time.sleep(6)
        assert row(mirror, topic_name).code == "recreated"
        assert "tried again" not in row(mirror, topic_name).hint
        assert row(mirror, topic_name).records == 20


def test_a_once_run_ends_with_the_halt_named(guarded: World, tmp_path: Path, topic_name: str) -> None:
    guarded.create(topic_name)
    guarded.produce(topic_name, 20)
    mirror = guarded.mirror(tmp_path, topic_name)
    mirror.run(once=True)
    guarded.produce(topic_name, 20, start=20)
    with denied(guarded, "west", f"east.{topic_name}", "WRITE"):
        time.sleep(1)
        report = mirror.run(once=True)
    assert [(each.state, each.code) for each in report.topics] == [("halted", "topic_authorization_failed")]
    assert "tried again" not in report.topics[0].hint
    mirror.run(once=True)
    assert_identical(mirror, [topic_name])


def test_partitions_that_may_not_be_added_wait_and_the_others_go_on(guarded: World, tmp_path: Path, topic_name: str) -> None:
    guarded.create(topic_name, 2)
    guarded.produce(topic_name, 20, partitions=2)
    mirror = guarded.mirror(tmp_path, topic_name)
    assert guarded.secured is not None
    guarded.secured.allow("west", "topic", f"east.{topic_name}", "ALTER")
    with ExitStack() as right:
        with running(mirror):
            wait_until(lambda: caught_up(mirror), 60, "the first records")
            right.enter_context(denied(guarded, "west", f"east.{topic_name}", "ALTER"))
            time.sleep(1)
            add_partitions(guarded.east, topic_name, 3)
            wait_until(lambda: "ALTER" in row(mirror, topic_name).reason, 60, "the missing right")
            assert row(mirror, topic_name).state == "behind"
            guarded.produce(topic_name, 20, partitions=2, start=20)
            wait_until(lambda: row(mirror, topic_name).records == 40, 60, "the other partitions")
        guarded.produce(topic_name, 30, partitions=3, start=40)
        (once,) = mirror.run(once=True).topics
        assert (once.state, once.records) == ("behind", 20) and "ALTER" in once.reason
        with running(mirror):
            wait_until(lambda: "ALTER" in row(mirror, topic_name).reason, 60, "the missing right")
            right.close()
            wait_until(lambda: caught_up(mirror), 60, "the new partition")
    assert_identical(mirror, [topic_name])
