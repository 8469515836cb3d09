"""What a target topic needs, decided from facts."""

from __future__ import annotations

import pytest

from mirror_pipeline.kafka.cluster_info import ConfigValue, TopicInfo
from mirror_pipeline.topics.configs import FOREVER, desired_configs
from mirror_pipeline.topics.manage import adjust
from mirror_pipeline.topics.plan import TargetCluster, TargetPlan, TopicRules, plan_target

BROKER = {
    "message.max.bytes": ConfigValue("1048588"),
    "log.message.timestamp.after.max.ms": ConfigValue("3600000"),
    "log.retention.hours": ConfigValue("168"),
    "log.retention.ms": ConfigValue(None),
    "log.retention.bytes": ConfigValue("-1"),
    "log.cleanup.policy": ConfigValue("delete"),
    "log.segment.bytes": ConfigValue("1073741824"),
}
OLD_BROKER = {key: value for key, value in BROKER.items() if "after" not in key}
DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "segment.bytes": "1073741824",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": FOREVER,
    "message.timestamp.after.max.ms": FOREVER,
}
ALWAYS = {
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": FOREVER,
    "message.timestamp.after.max.ms": FOREVER,
}


def settings(**explicit: str) -> dict[str, ConfigValue]:
    """All settings in force; keys with ``__`` for dots are explicit."""
    own = {key.replace("__", "."): ConfigValue(value, "DYNAMIC_TOPIC_CONFIG") for key, value in explicit.items()}
    return {key: ConfigValue(value) for key, value in DEFAULTS.items()} | own


def plan(
    source: dict[str, ConfigValue] | None = None,
    target: dict[str, ConfigValue] | None = None,
    *,
    partitions: tuple[int, int] = (3, 3),
    rules: TopicRules | None = None,
    brokers: int = 5,
    broker: dict[str, ConfigValue] | None = BROKER,
    collides: str | None = None,
) -> TargetPlan:
    cluster = TargetCluster("west", "w:1", brokers, broker)
    there = None if target is None else TopicInfo("east.t", partitions[1])
    here = settings() if source is None else source
    return plan_target(
        TopicInfo("t", partitions[0]),
        here,
        there,
        target,
        target_topic="east.t",
        cluster=cluster,
        rules=rules or TopicRules(),
        collides_with=collides,
    )


def test_new_topics_get_the_source_s_shape() -> None:
    made = plan(settings(retention__ms="1000", cleanup__policy="compact,delete", min__insync__replicas="2", segment__bytes="2000000"))
    assert (made.create, made.grow, made.partitions, made.replication_factor, made.blockers) == (True, False, 3, 3, ())
    assert made.configs == {**ALWAYS, "retention.ms": "1000", "cleanup.policy": "compact,delete", "segment.bytes": "2000000"}
    assert made.actions[0].startswith("create east.t on west: 3 partitions, replication factor 3, ")
    assert made.warnings == ("not copied, the target's own values apply: min.insync.replicas=2",)


@pytest.mark.parametrize(("brokers", "wanted", "replicas"), [(1, None, 1), (2, None, 2), (9, None, 3), (9, 5, 5)])
def test_replication_factor(brokers: int, wanted: int | None, replicas: int) -> None:
    assert plan(brokers=brokers, rules=TopicRules(True, wanted)).replication_factor == replicas


def test_more_replicas_than_brokers_is_a_blocker() -> None:
    assert plan(brokers=2, rules=TopicRules(True, 3)).blockers == ("topics.replication_factor is 3, cluster west has 2 brokers",)


@pytest.mark.parametrize(
    "key",
    [
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.storage.enable",
        "local.retention.ms",
        "message.timestamp.type",
        "compression.type",
    ],
)
def test_settings_that_stay_behind(key: str) -> None:
    source = settings() | {key: ConfigValue("x", "DYNAMIC_TOPIC_CONFIG")}
    assert desired_configs(source, BROKER) == ALWAYS


def test_defaults_of_the_source_s_broker_are_not_copied_but_its_size_is() -> None:
    source = settings() | {
        "retention.ms": ConfigValue("5", "STATIC_BROKER_CONFIG"),
        "max.message.bytes": ConfigValue("9000000", "STATIC_BROKER_CONFIG"),
    }
    assert desired_configs(source, BROKER) == {**ALWAYS, "max.message.bytes": "9000000"}
    assert desired_configs(source, None) == {**ALWAYS, "max.message.bytes": "9000000"}
    assert desired_configs(source, BROKER | {"message.max.bytes": ConfigValue("9000000")}) == ALWAYS


def test_a_source_that_deletes_nothing_gets_a_target_that_deletes_nothing_in_words_of_any_version() -> None:
    """Kafka 4.2 and later allow an empty cleanup.policy."""
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    assert desired_configs(settings(cleanup__policy="", retention__ms="5"), BROKER) == {**ALWAYS, **kept}
    assert desired_configs(settings(cleanup__policy=""), BROKER, ["cleanup.*"]) == ALWAYS


def test_old_brokers_know_one_bound_only() -> None:
    wanted = desired_configs(settings(), OLD_BROKER)
    assert wanted["message.timestamp.difference.max.ms"] == FOREVER
    assert "message.timestamp.after.max.ms" not in wanted


def test_shorter_default_retention_of_the_target_is_a_warning() -> None:
    made = plan(settings() | {"retention.ms": ConfigValue("1209600000")})
    assert made.warnings == ("retention.ms is smaller on the target (7d) than on the source (14d): it deletes records earlier",)
    assert plan(settings(retention__ms="1209600000")).warnings == ()
    assert (
        plan(broker=BROKER | {"log.retention.ms": ConfigValue("60000")})
        .warnings[0]
        .startswith("retention.ms is smaller on the target (1m)")
    )


def test_manage_false_gives_the_command() -> None:
    (blocker,) = plan(settings(retention__ms="1000"), rules=TopicRules(False, 2)).blockers
    assert blocker.startswith("topic east.t does not exist on cluster west and topics.manage is false; create it: kafka-topics.sh")
    assert "--partitions 3 --replication-factor 2" in blocker and "--config retention.ms=1000" in blocker
    made = plan(target=settings(), partitions=(6, 2), rules=TopicRules(False))
    assert (made.grow, made.actions) == (False, ())
    assert made.blockers == (
        "topic east.t on west has 2 partitions, its source t has 6, and topics.manage is false;"
        " add them: kafka-topics.sh --bootstrap-server w:1 --alter --topic east.t --partitions 6",
    )


def test_fewer_partitions_grow_and_more_are_fine() -> None:
    made = plan(target=settings(), partitions=(6, 2))
    assert (made.create, made.grow, made.partitions) == (False, True, 6)
    assert made.actions == ("add partitions to east.t on west: from 2 to 6",)
    made = plan(target=settings(), partitions=(2, 6))
    assert (made.create, made.grow, made.blockers) == (False, False, ())
    assert made.warnings == ("topic east.t on west has 6 partitions, its source t has 2: the surplus stays empty",)


def test_nothing_to_do() -> None:
    made = plan(target=settings())
    assert (made.create, made.grow, made.actions, made.warnings, made.blockers) == (False, False, (), (), ())


def test_a_compacted_target_of_an_uncompacted_source_is_a_blocker() -> None:
    made = plan(target=settings(cleanup__policy="compact,delete"), partitions=(6, 2))
    assert not made.grow
    assert "east.t on west is compacted, its source is not" in made.blockers[0]
    assert "--add-config cleanup.policy=delete" in made.blockers[0]
    assert plan(settings(cleanup__policy="compact"), settings(cleanup__policy="compact")).blockers == ()


@pytest.mark.parametrize(
    ("source", "target", "warning", "change"),
    [
        ({}, {"retention__ms": "1000"}, "retention.ms is smaller on the target (1s)", "retention.ms=604800000"),
        ({"retention__ms": "-1"}, {}, "retention.ms is smaller on the target (7d) than on the source (no limit)", "retention.ms=-1"),
        ({}, {"retention__bytes": "1000"}, "retention.bytes is smaller on the target (1kB)", "retention.bytes=-1"),
        ({"max__message__bytes": "5000000"}, {}, "max.message.bytes on the target is 1,048,588", "max.message.bytes=5000000"),
        (
            {},
            {"message__timestamp__after__max__ms": "3600000"},
            "message.timestamp.after.max.ms on the target is 1h",
            "after.max.ms=" + FOREVER,
        ),
        ({}, {"compression__type": "gzip"}, "compression.type=gzip on the target", "compression.type=producer"),
        ({}, {"message__timestamp__type": "LogAppendTime"}, "the original time of records is lost", "message.timestamp.type=CreateTime"),
        ({"cleanup__policy": "compact"}, {"retention__ms": "-1"}, "the source is compacted, the target is not", "cleanup.policy=compact"),
    ],
)
def test_what_an_existing_target_would_do(source: dict[str, str], target: dict[str, str], warning: str, change: str) -> None:
    made = plan(settings(**source), settings(**target))
    assert made.blockers == ()
    assert warning in made.warnings[0]
    assert len(made.warnings) == 2
    assert made.warnings[1].startswith(
        "to end this: kafka-configs.sh --bootstrap-server w:1 --alter --entity-type topics --entity-name east.t"
    )
    assert made.warnings[1].endswith(change)


def test_longer_retention_on_the_target_is_fine() -> None:
    assert plan(settings(retention__ms="1000"), settings(retention__ms="-1", max__message__bytes="9999999")).warnings == ()


def test_a_source_that_stamps_its_records() -> None:
    made = plan(settings(message__timestamp__type="LogAppendTime"))
    assert made.configs["message.timestamp.type"] == "CreateTime"
    assert "LogAppendTime" in made.warnings[0]


def test_settings_that_may_not_be_read() -> None:
    cluster = TargetCluster("west", "w:1", 1, None)
    made = plan_target(TopicInfo("t", 3), None, None, None, target_topic="east.t", cluster=cluster)
    assert made.create and made.configs == ALWAYS
    (warning,) = made.warnings
    assert warning.startswith("the source topic's settings may not be read (DESCRIBE_CONFIGS): the target's defaults apply, and missing")
    made = plan_target(TopicInfo("t", 3), settings(), TopicInfo("east.t", 3), None, target_topic="east.t", cluster=cluster)
    assert "were not compared" in made.warnings[0]


def test_names_that_kafka_holds_to_be_the_same() -> None:
    (blocker,) = plan(collides="east_t").blockers
    assert "cluster west has topic east_t: Kafka refuses east.t while that topic exists" in blocker


@pytest.mark.parametrize(
    ("refusal", "configs", "after"),
    [
        (
            "Unknown topic config name: message.timestamp.before.max.ms",
            {"message.timestamp.before.max.ms": FOREVER, "message.timestamp.after.max.ms": FOREVER},
            {"message.timestamp.difference.max.ms": FOREVER},
        ),
        ("Unknown topic config name: message.timestamp.difference.max.ms", {"message.timestamp.difference.max.ms": FOREVER}, {}),
        (
            "Invalid value 1000 for configuration segment.bytes: Value must be at least 1048576",
            {"segment.bytes": "1000"},
            {"segment.bytes": "1048576"},
        ),
        ("Invalid value x for configuration cleanup.policy: String must be one of", {"cleanup.policy": "x"}, None),
        ("something else", {"a": "b"}, None),
    ],
)
def test_settings_another_version_refuses(refusal: str, configs: dict[str, str], after: dict[str, str] | None) -> None:
    before = dict(configs)
    note = adjust(configs, refusal)
    assert bool(note) is (after is not None)
    assert configs == (before if after is None else after)


@pytest.mark.parametrize(
    ("up", "down", "default", "listed", "replicas"),
    [
        (3, (), None, True, 3), (5, (), None, True, 3), (2, (), None, True, 2), (1, (), "1", True, 1),
        (2, (3,), None, True, 3), (1, (2,), "1", True, 2),  # those of the cluster, not of the brokers that are up
        (4, (), "2", True, 2), (2, (3,), "2", True, 2), (3, (4, 5), "5", True, 5),  # the cluster says it
        (1, (), "3", True, 1), (2, (), "3", False, 3),  # it has no more; or it does not tell
    ],
)  # fmt: skip
def test_replicas_are_those_of_the_cluster(up: int, down: tuple[int, ...], default: str | None, listed: bool, replicas: int) -> None:
    values = {} if default is None else {"default.replication.factor": ConfigValue(default)}
    cluster = TargetCluster("west", "w:1", up, BROKER | values, down, listed)
    made = plan_target(TopicInfo("t", 3), settings(), None, None, target_topic="east.t", cluster=cluster)
    assert (made.create, made.replication_factor, bool(made.waits)) == (True, replicas, replicas > up)
    assert made.waits == "" or made.waits in made.warnings


def test_a_topic_waits_for_the_broker_that_is_down() -> None:
    cluster = TargetCluster("west", "w:1", 2, BROKER, (3,))
    made = plan_target(TopicInfo("t", 3), settings(), None, None, target_topic="east.t", cluster=cluster, rules=TopicRules(True, 3))
    assert (made.waits, made.blockers) == ("waits for broker 3 of cluster west: 3 replicas, 2 brokers are up", ())
    made = plan_target(TopicInfo("t", 3), settings(), None, None, target_topic="east.t", cluster=cluster, rules=TopicRules(True, 4))
    assert (made.waits, made.blockers) == ("", ("topics.replication_factor is 4, cluster west has 3 brokers",))


@pytest.mark.parametrize(
    ("replicas", "wanted", "warned"), [(2, None, True), (3, None, False), (2, 2, False), (1, 2, True), (0, None, False)]
)
def test_a_topic_with_fewer_replicas_than_it_would_get_today_is_named(replicas: int, wanted: int | None, warned: bool) -> None:
    cluster = TargetCluster("west", "w:1", 3, BROKER)
    there = TopicInfo("east.t", 3, replication_factor=replicas)
    rules = TopicRules(True, wanted)
    made = plan_target(TopicInfo("t", 3), settings(), there, settings(), target_topic="east.t", cluster=cluster, rules=rules)
    assert any("made today it would get" in warning for warning in made.warnings) is warned
