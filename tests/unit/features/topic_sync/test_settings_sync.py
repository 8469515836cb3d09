"""What a round does to one topic's settings: follow, wait, or leave alone and say so."""

from __future__ import annotations

from mirror_pipeline.config import TopicConfigs
from mirror_pipeline.features.topic_sync.settings_sync import SettingsStep, settings_step
from mirror_pipeline.kafka.cluster_info import ConfigValue


def own(**values: str) -> dict[str, ConfigValue]:
    return {key.replace("__", "."): ConfigValue(value, "DYNAMIC_TOPIC_CONFIG") for key, value in values.items()}


DEFAULTS = {
    "retention.ms": ConfigValue("604800000"), "cleanup.policy": ConfigValue("delete"), "max.message.bytes": ConfigValue("1048588"),
    "min.insync.replicas": ConfigValue("1"),
}  # fmt: skip


def step(
    source: dict[str, ConfigValue], target: dict[str, ConfigValue], made: dict[str, str] | None = None, *, delivered: bool = False,
    **rules: object,
) -> SettingsStep:  # fmt: skip
    return settings_step(DEFAULTS | source, DEFAULTS | target, TopicConfigs(**rules), made or {}, delivered=delivered)  # type: ignore[arg-type]


def test_a_setting_follows_and_is_the_mirrors_from_then_on() -> None:
    first = step(own(retention__ms="7"), {})
    assert first.changes == first.made == {"retention.ms": "7"}
    assert step(own(retention__ms="7"), own(retention__ms="7")).made == {"retention.ms": "7"}, "found in step"
    assert step(own(retention__ms="9"), own(retention__ms="7"), dict(first.made)).changes == {"retention.ms": "9"}
    assert step({}, own(retention__ms="7"), dict(first.made)).changes == {"retention.ms": None}


def test_a_setting_of_the_targets_own_is_drift_and_one_that_someone_changed_is_set_back() -> None:
    found = step(own(retention__ms="7"), own(retention__ms="5"))
    assert not found.changes and found.drift == ("retention.ms is 5 on the target, by a setting of its own, and 7 on the source",)
    assert step(own(retention__ms="7"), own(retention__ms="5"), {"retention.ms": "7"}).changes == {"retention.ms": "7"}
    assert step({}, own(retention__ms="5")) == SettingsStep(), "the source says nothing of it"


def test_what_is_excluded_is_left_alone() -> None:
    assert step(own(min__insync__replicas="2"), {}) == SettingsStep()
    assert step(own(retention__ms="7"), {}, exclude=(r"retention\..*",)) == SettingsStep()


def test_the_sources_defaults_come_along_where_that_is_asked_for() -> None:
    source = {"retention.ms": ConfigValue("42")}
    assert step(source, {}) == SettingsStep()
    found = step(source, {}, defaults_from="source")
    assert found.changes == {"retention.ms": "42"}
    assert step(source, own(retention__ms="5"), defaults_from="source").changes == {"retention.ms": "42"}


def test_what_could_refuse_older_records_waits_until_they_are_delivered() -> None:
    for source, target in (
        (own(cleanup__policy="compact"), {}),
        (own(max__message__bytes="2000000"), own(max__message__bytes="3000000")),
    ):
        made = {key: value.value or "" for key, value in target.items()}
        found = step(source, target, made)
        assert not found.changes and len(found.waiting) == 1 and found.made == made
        assert step(source, target, made, delivered=True).changes == {key: value.value for key, value in source.items()}
    assert step(own(max__message__bytes="3000000"), {}).changes == {"max.message.bytes": "3000000"}, "a larger one does not"


def test_the_order_of_policies_is_no_difference() -> None:
    assert not step(own(cleanup__policy="compact,delete"), own(cleanup__policy="delete,compact")).changes
