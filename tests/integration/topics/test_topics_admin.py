"""Administrative calls and topic management against real brokers."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

from mirror_pipeline.config import BufferConfig, ClusterSettings, Config, FrozenMap, MirrorConfig, SecretRef, Security, TopicSelection
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConfigError, TopicHalted
from mirror_pipeline.kafka.admin import FIRST_CONTACT_TIMEOUT, REFUSED_GRACE, Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.topic_settings import TopicSettings
from mirror_pipeline.local.shapes.ground import known_everywhere
from mirror_pipeline.topics.alter import alter_topics
from mirror_pipeline.topics.catalogue import CatalogueTopic, load_catalogue, refresh_catalogue
from mirror_pipeline.topics.configs import FOREVER
from mirror_pipeline.topics.manage import ensure_target_topic, plan_targets

Admins = tuple[Admin, Admin]
PASSWORD = "correct horse"


@contextlib.contextmanager
def both(clusters: Any) -> Iterator[Admins]:
    a, b = clusters
    with (
        Admin(ClusterSettings("east", tuple(a.bootstrap_servers.split(",")))) as east,
        Admin(ClusterSettings("west", tuple(b.bootstrap_servers.split(",")))) as west,
    ):
        yield east, west


@pytest.fixture
def admins(clusters: Any) -> Iterator[Admins]:
    with both(clusters) as pair:
        yield pair


@pytest.fixture
def versioned_admins(versioned_clusters: Any) -> Iterator[Admins]:
    with both(versioned_clusters) as pair:
        yield pair


def mirror(*include: str, naming: str = "prefix", manage: bool = True) -> MirrorConfig:
    return MirrorConfig("m", "east", "west", TopicSelection(include, manage=manage), naming=naming)


def explicit(admin: Admin, topic: str) -> dict[str, str | None]:
    """What is set for a topic; a broker that has not heard of a topic just created is asked again."""
    deadline = time.monotonic() + 30.0
    while isinstance(answer := admin.topic_configs([topic])[topic], BrokerError) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not isinstance(answer, BrokerError)
    return {key: entry.value for key, entry in answer.items() if entry.is_explicit}


def settled(admin: Admin, topic: str, partitions: int) -> None:
    """Wait until every broker knows the topic: creation is acknowledged by the controller."""
    known_everywhere(admin.cluster, topic, partitions)
    deadline = time.monotonic() + 20
    while (found := admin.topics([topic]).get(topic)) is None or found.partitions != partitions or found.leaderless:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def create(admin: Admin, topic: str, partitions: int, configs: dict[str, str] | None = None) -> None:
    admin.create_topic(topic, partitions, 1, configs)
    settled(admin, topic, partitions)


def test_identity_topics_and_settings(versioned_admins: Admins, topic_name: str) -> None:
    east, west = versioned_admins
    create(east, topic_name, 3, {"retention.ms": "1234567"})
    assert east.cluster_id() != west.cluster_id()
    info = east.topics()[topic_name]
    assert (info.partitions, info.replication_factor, info.internal, info.leaderless) == (3, 1, False, ())
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", info.topic_id)
    assert topic_name not in west.topics()
    answers = east.topic_configs([topic_name, f"{topic_name}-none"])
    assert explicit(east, topic_name) == {"retention.ms": "1234567"}
    missing = answers[f"{topic_name}-none"]
    assert isinstance(missing, BrokerError) and missing.name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert {"READ", "WRITE"} <= east.topic_operations([topic_name])[topic_name]  # type: ignore[operator]
    assert east.broker_configs()["message.max.bytes"].value == "1048588"
    with pytest.raises(BrokerError, match="already exists"):
        east.create_topic(topic_name, 3, 1)
    with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
        east.grow(topic_name, 2)


def test_topic_id_is_the_one_other_clients_see(admins: Admins, clusters: Any, topic_name: str) -> None:
    from mirror_pipeline.kafka.client import WireClient

    create(admins[0], topic_name, 1)
    client = WireClient(ClusterSettings("east", tuple(clusters[0].bootstrap_servers.split(","))))
    try:
        assert client.metadata([topic_name]).topics[topic_name].topic_id == admins[0].topics([topic_name])[topic_name].topic_id
        assert client.metadata([]).cluster_id == admins[0].cluster_id()
    finally:
        client.close()


def test_created_like_the_source(versioned_admins: Admins, topic_name: str) -> None:
    east, west = versioned_admins
    target = f"east.{topic_name}"
    create(
        east,
        topic_name,
        4,
        {"cleanup.policy": "compact,delete", "retention.ms": "99999999", "max.message.bytes": "3000000", "min.insync.replicas": "1"},
    )
    plan = plan_targets(mirror(".*"), east, west, {topic_name: target})[topic_name]
    assert plan.create and not plan.blockers
    ready = ensure_target_topic(west, plan)
    assert (ready.info.partitions, ready.info.leaderless) == (4, ())
    assert ready.done == plan.actions
    settled(west, target, 4)
    assert explicit(west, target) == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "99999999",
        "max.message.bytes": "3000000",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": FOREVER,
        "message.timestamp.after.max.ms": FOREVER,
    }
    again = plan_targets(mirror(".*"), east, west, {topic_name: target})[topic_name]
    assert (again.actions, again.warnings, again.blockers) == ((), (), ())
    assert ensure_target_topic(west, again).done == ()
    assert ensure_target_topic(west, plan).done == ()  # somebody else was first


def test_created_topic_takes_records_of_any_time(admins: Admins, clusters: Any, topic_name: str) -> None:
    east, west = admins
    target = f"east.{topic_name}"
    create(east, topic_name, 1)
    ensure_target_topic(west, plan_targets(mirror(".*"), east, west, {topic_name: target})[topic_name])
    refused: list[Any] = []
    producer = Producer({"bootstrap.servers": clusters[1].bootstrap_servers})
    for stamp in (1, 1_000_000_000_000, 4_102_444_800_000):
        producer.produce(target, b"x", timestamp=stamp, on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(30) == 0
    assert refused == [None, None, None]


@pytest.mark.long
def test_settings_of_an_older_version_are_adjusted(old_clusters: Any, clusters: Any, topic_name: str) -> None:
    if clusters[0].version == old_clusters[0].version:
        pytest.skip("one Kafka version only was asked for")
    with both((old_clusters[0], clusters[1])) as (east, west):
        create(east, topic_name, 1, {"segment.bytes": "100000"})
        plan = plan_targets(mirror(".*", naming="identity"), east, west, {topic_name: topic_name})[topic_name]
        done = ensure_target_topic(west, plan).done
        assert "segment.bytes=1048576 instead of 100000, which this version finds too small" in done
        assert explicit(west, topic_name)["segment.bytes"] == "1048576"


@pytest.mark.long
def test_a_source_that_deletes_nothing_is_copied_to_an_older_version(old_clusters: Any, clusters: Any, topic_name: str) -> None:
    if clusters[0].version == old_clusters[0].version:
        pytest.skip("one Kafka version only was asked for")
    with both((clusters[0], old_clusters[1])) as (east, west):
        create(east, topic_name, 1, {"cleanup.policy": ""})
        plan = plan_targets(mirror(".*", naming="identity"), east, west, {topic_name: topic_name})[topic_name]
        ensure_target_topic(west, plan)
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        assert kept.items() <= explicit(west, topic_name).items()


def test_fewer_partitions_on_the_target(admins: Admins, topic_name: str) -> None:
    east, west = admins
    create(east, topic_name, 5)
    create(west, topic_name, 2, {"message.timestamp.after.max.ms": "3600000"})  # Kafka's default from 4.0 on
    names = {topic_name: topic_name}
    halted = plan_targets(mirror(".*", naming="identity", manage=False), east, west, names)[topic_name]
    with pytest.raises(TopicHalted, match=r"has 2 partitions, its source .* has 5.*kafka-topics\.sh .*--partitions 5") as caught:
        ensure_target_topic(west, halted)
    assert caught.value.halt.topic == topic_name
    assert west.topics([topic_name])[topic_name].partitions == 2
    plan = plan_targets(mirror(".*", naming="identity"), east, west, names)[topic_name]
    assert plan.actions == (f"add partitions to {topic_name} on west: from 2 to 5",)
    assert any("message.timestamp.after.max.ms on the target is 1h" in warning for warning in plan.warnings)
    assert ensure_target_topic(west, plan).info.partitions == 5


def test_a_compacted_target_is_left_alone(admins: Admins, topic_name: str) -> None:
    east, west = admins
    create(east, topic_name, 3)
    create(west, topic_name, 1, {"cleanup.policy": "compact"})
    plan = plan_targets(mirror(".*", naming="identity"), east, west, {topic_name: topic_name})[topic_name]
    with pytest.raises(TopicHalted, match="is compacted, its source is not"):
        ensure_target_topic(west, plan)
    assert west.topics([topic_name])[topic_name].partitions == 1


def test_names_that_collide_on_the_target(admins: Admins, topic_name: str) -> None:
    east, west = admins
    create(east, topic_name, 1)
    create(west, f"east_{topic_name}", 1)
    plan = plan_targets(mirror(".*"), east, west, {topic_name: f"east.{topic_name}"})[topic_name]
    assert f"has topic east_{topic_name}: Kafka refuses east.{topic_name} while that topic exists" in plan.blockers[0]
    with pytest.raises(BrokerError, match="collides with existing topic"):  # it really does
        west.create_topic(f"east.{topic_name}", 1, 1, validate_only=True)


def test_refusals_of_the_target_halt_the_topic_only_and_missing_brokers_may_come_back(admins: Admins, topic_name: str) -> None:
    east, west = admins
    create(east, topic_name, 1)
    rules = TopicSelection((".*",), replication_factor=1)
    plan = plan_targets(MirrorConfig("m", "east", "west", rules), east, west, {topic_name: f"east.{topic_name}"})[topic_name]
    large = replace(plan, replication_factor=7)
    with pytest.raises(BrokerError, match="replication factor") as caught:
        ensure_target_topic(west, large)
    assert not isinstance(caught.value, TopicHalted)
    with pytest.raises(TopicHalted, match="cleanup.policy"):
        ensure_target_topic(west, replace(plan, configs={"cleanup.policy": "nonsense"}))


def test_catalogue_from_a_cluster(admins: Admins, new_topic_name: Callable[[], str], tmp_path: Path) -> None:
    east, _ = admins
    chosen, other = new_topic_name(), new_topic_name()
    create(east, chosen, 2)
    create(east, other, 1)
    create(east, f"west.{chosen}", 1)
    pattern = re.escape(chosen)
    mirrors = [mirror(pattern, rf"west\.{pattern}"), MirrorConfig("n", "north", "west", TopicSelection((pattern,)), naming="east.{topic}")]
    config = Config(
        {c: ClusterSettings(c, ("h:1",)) for c in ("east", "west", "north")}, mirrors, BufferConfig("b"), tmp_path / "mirror.yaml"
    )
    catalogue = refresh_catalogue(config, mirrors[0], east)
    assert [(t.name, t.target_topic, t.partitions) for t in catalogue.topics] == [(chosen, f"east.{chosen}", 2)]
    assert catalogue.topics[0].topic_id == east.topics([chosen])[chosen].topic_id
    reasons = {e.topic: e.why for e in catalogue.excluded}
    assert reasons[other] == "matches no include regex"
    assert "was copied from cluster west" in reasons[f"west.{chosen}"]
    assert load_catalogue(config, "m") == catalogue
    # That another mirror writes the same target topic halts that topic when it is to begin; the catalogue names it all the same.
    assert [topic.name for topic in refresh_catalogue(config, mirrors[1], east).topics] == [chosen]
    gone = CatalogueTopic("gone", "east.gone", 3, "id")
    assert gone in refresh_catalogue(config, mirrors[0], east, [gone, *catalogue.topics]).topics


@pytest.fixture(scope="module")
def silent_port() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        yield listener.getsockname()[1]


def test_unreachable_is_said_within_the_promised_15_seconds() -> None:
    assert REFUSED_GRACE + 5 <= FIRST_CONTACT_TIMEOUT + 1 <= 15 - 4  # 4 s for the command itself to start


@pytest.mark.long
@pytest.mark.timeout(120)
def test_unreachable_clusters(silent_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refused = f"127.0.0.1:{closed.getsockname()[1]}"
    for address, cause in [
        (refused, "Connection refused"),
        ("no-such-host.invalid:9092", "resolve"),
        (f"127.0.0.1:{silent_port}", "no answer"),
    ]:
        with pytest.raises(ClusterUnreachable) as caught:
            Admin(ClusterSettings("east", (address,))).cluster_id()
        error = caught.value
        assert error.message.startswith(f"cluster east at {address} cannot be reached: ") and cause in error.message
        assert (error.cluster, error.exit_code, error.retryable) == ("east", 3, True)
        assert "clusters.east" in error.hint
    assert capfd.readouterr() == ("", "")  # librdkafka writes to standard error by itself


def test_librdkafka_s_own_log_is_there_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "mirror_pipeline.librdkafka"), pytest.raises(ClusterUnreachable):
        Admin(ClusterSettings("east", ("127.0.0.1:1",)), timeout=1).cluster_id()
    assert "Connection refused" in caplog.text
    assert {record.levelno for record in caplog.records if record.name == "mirror_pipeline.librdkafka"} == {logging.DEBUG}


@pytest.mark.parametrize(("key", "value"), [("foo.bar", "1"), ("socket.timeout.ms", "long"), ("socket.timeout.ms", "1")])
def test_client_properties_are_checked(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^clusters.east.client: .*{re.escape(key)}"):
        Admin(ClusterSettings("east", ("127.0.0.1:1",), client=FrozenMap({key: value})))


@pytest.fixture
def guarded(cluster_factory: Callable[..., Any]) -> Any:
    """A cluster with SCRAM users and ACLs; its plain listener is the operator's."""
    users = [f"SCRAM-SHA-512=[name={name},password={PASSWORD}]" for name in ("mirror", "other")]
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    (cluster,) = cluster_factory(
        1,
        brokers=1,  # rights are a matter of each broker
        listeners={"GUARDED": "SASL_PLAINTEXT"},
        storage_args=[word for user in users for word in ("--add-scram", user)],
        config={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.guarded.scram-sha-512.sasl.jaas.config": module,
        },
    )
    return cluster


def guarded_settings(cluster: Any, user: str, mechanism: str = "SCRAM-SHA-512") -> ClusterSettings:
    security = Security("SASL_PLAINTEXT", mechanism, user, SecretRef("${env:GUARDED_PW}"))
    return ClusterSettings("east", tuple(cluster.listener("GUARDED").split(",")), security)


def allow(cluster: Any, topic: str, *operations: AclOperation) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    acls = [
        AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:mirror", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for future in client.create_acls(acls).values():
        future.result(30)


def test_logins_and_rights(guarded: Any, clusters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARDED_PW", PASSWORD)
    operator = Admin(ClusterSettings("east", tuple(guarded.bootstrap_servers.split(","))))
    west = Admin(ClusterSettings("west", tuple(clusters[1].bootstrap_servers.split(","))))
    for topic in ("readable", "visible", "hidden"):
        create(operator, topic, 1, {"retention.ms": "7000000"})
    allow(guarded, "readable", AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    allow(guarded, "visible", AclOperation.DESCRIBE)
    with Admin(guarded_settings(guarded, "mirror")) as east:
        deadline = time.monotonic() + 20  # ACLs reach the broker after the controller has them
        while set(east.topics()) != {"readable", "visible"}:
            assert time.monotonic() < deadline, east.topics()
            time.sleep(0.05)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            east.topics(["hidden"])
        configs = east.topic_configs(["readable", "visible", "hidden"])
        assert configs["readable"]["retention.ms"].value == "7000000"  # type: ignore[index]
        assert isinstance(configs["visible"], BrokerError) and isinstance(configs["hidden"], BrokerError)
        with pytest.raises(BrokerError, match="AUTHORIZATION_FAILED"):
            east.create_topic("mine", 1, 1)
        with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
            east.broker_configs()
        assert "CREATE" not in east.cluster_operations()
        plans = plan_targets(mirror(".*"), east, west, {name: f"guarded.{name}" for name in ("readable", "visible", "hidden")})
        assert set(plans) == {"readable", "visible"}
        assert plans["readable"].create and plans["readable"].configs["retention.ms"] == "7000000"
        (blocker,) = plans["visible"].blockers
        assert blocker.startswith("no right to READ topic visible on cluster east; grant it: kafka-acls.sh")
        assert "User:mirror" in blocker
    with Admin(guarded_settings(guarded, "other")) as nobody:
        assert nobody.topics() == {}
    for mechanism, password in (("SCRAM-SHA-512", "wrong-canary"), ("SCRAM-SHA-256", PASSWORD)):
        monkeypatch.setenv("GUARDED_PW", password)
        with pytest.raises(ClusterUnreachable, match="authentication failed") as caught:
            Admin(guarded_settings(guarded, "mirror", mechanism)).topics()
        assert caught.value.retryable is False
        assert "clusters.east.security" in caught.value.hint
        assert password not in str(caught.value)


def test_settings_read_over_the_wire_are_those_that_librdkafka_reads(versioned_admins: Admins, topic_name: str) -> None:
    east, _ = versioned_admins
    east.create_topic(topic_name, 1, 1, {"retention.ms": "86400000", "cleanup.policy": "compact,delete"})
    known_everywhere(east.cluster, topic_name, 1)  # the two readers may ask different brokers
    settings, missing = TopicSettings(), f"{topic_name}-missing"
    with WireClient(east.cluster) as client:
        found = settings.read(client, [topic_name, missing])
        again = settings.read(client, [topic_name, missing])
        admin_saw = east.topic_configs([topic_name, missing])
        assert found[topic_name] == admin_saw[topic_name], "values, where they come from, and flags"
        assert again[topic_name] is found[topic_name], "the same bytes are not read twice"
        refused, wanted = found[missing], admin_saw[missing]
        assert isinstance(refused, BrokerError) and isinstance(wanted, BrokerError)
        assert (refused.code, refused.name) == (wanted.code, wanted.name)
        alter_topics(east, {topic_name: {"retention.ms": "90000000"}})
        deadline = time.monotonic() + 30.0
        while settings.read(client, [topic_name, missing]) == found and time.monotonic() < deadline:
            time.sleep(0.1)
        changed = settings.read(client, [topic_name, missing])[topic_name]
        assert not isinstance(changed, BrokerError) and changed["retention.ms"].value == "90000000"
