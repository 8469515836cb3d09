"""How two topics are compared, by their settings."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.cluster_info import ConfigValue
from mirror_pipeline.verify.record_tasks import Terms

Settings = Mapping[str, ConfigValue] | BrokerError | None


def terms_of(source: Settings, target: Settings) -> Terms:
    """Terms by the effective settings; Kafka's defaults where they may not be read."""
    limits = [_value(target, name, "-1" if name == "retention.bytes" else "") for name in ("retention.ms", "retention.bytes")]
    return Terms(
        thin_source="compact" in _value(source, "cleanup.policy", "delete"),
        thin_target="compact" in _value(target, "cleanup.policy", "delete"),
        timeless=_value(target, "message.timestamp.type", "CreateTime") == "LogAppendTime",
        ends_deleted="delete" in _value(target, "cleanup.policy", "delete") and any(limit != "-1" for limit in limits),
    )


def read_terms(source: ClusterSettings, target: ClusterSettings, pairs: Mapping[str, str]) -> dict[str, Terms]:
    """Terms of source topics and their target topics. Raises ClusterUnreachable."""
    with Admin(source) as left, Admin(target) as right:
        ours, theirs = left.topic_configs(list(pairs)), right.topic_configs(list(pairs.values()))
    return {topic: terms_of(ours.get(topic), theirs.get(name)) for topic, name in pairs.items()}


def read_target_terms(target: ClusterSettings, pairs: Mapping[str, str]) -> dict[str, Terms]:
    """The same for staged data, which compaction does not thin out: only the target is asked."""
    with Admin(target) as right:
        theirs = right.topic_configs(list(pairs.values()))
    return {topic: terms_of(None, theirs.get(name)) for topic, name in pairs.items()}


def _value(settings: Settings, name: str, default: str) -> str:
    if settings is None or isinstance(settings, BrokerError) or name not in settings:
        return default
    return settings[name].value or default
