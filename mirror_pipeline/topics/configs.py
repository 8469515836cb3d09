"""Topic settings: which are carried over, which are always set, and what the target's defaults are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mirror_pipeline.config.settings import KEPT_BY_TARGET
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.cluster_info import ConfigValue

FOREVER = str(2**63 - 1)
# Kafka's default of message.max.bytes; assumed while the target topic's own value is not known.
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
BEFORE, AFTER, DIFFERENCE = (f"message.timestamp.{word}.max.ms" for word in ("before", "after", "difference"))

KEPT_FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
# Decided by the mirror when it creates a topic, whatever the source has.
_REPLACED = frozenset({"compression.type", "message.timestamp.type", BEFORE, AFTER, DIFFERENCE, "message.format.version"})
_BROKER_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "max.message.bytes": "message.max.bytes",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    AFTER: "log.message.timestamp.after.max.ms",
    BEFORE: "log.message.timestamp.before.max.ms",
}

Settings = Mapping[str, ConfigValue]


def own_settings(configs: Settings) -> dict[str, str]:
    """What a topic has of its own, beside what it takes over from the broker."""
    return {key: entry.value for key, entry in configs.items() if entry.is_explicit and entry.value is not None}


def is_left_out(key: str, exclude: Sequence[str]) -> bool:
    """Whether a setting is the target's own business: the mirror decides it, or a regex of ``exclude`` matches it."""
    return key in _REPLACED or any(re.fullmatch(pattern, key) for pattern in exclude)


def desired_configs(source: Settings, target_broker: Settings | None = None, exclude: Sequence[str] = KEPT_BY_TARGET) -> dict[str, str]:
    """The settings a target topic is created with.

    Args:
        source: all settings in force of the source topic.
        target_broker: settings of a target broker; None when they may not be read.
        exclude: regexes on the names of settings that are left to the target.
    """
    configs = carried_configs(source, target_broker, exclude)
    configs |= {"compression.type": "producer", "message.timestamp.type": "CreateTime"} | open_bounds(target_broker)
    return dict(sorted(configs.items()))


def carried_configs(source: Settings, target_broker: Settings | None, exclude: Sequence[str]) -> dict[str, str]:
    """The explicit settings of the source topic that its target topic should have, and the message size if the target's default is less.

    Arguments as for :func:`desired_configs`.
    """
    carried = {key: value for key, value in own_settings(source).items() if not is_left_out(key, exclude)}
    largest = number(source, "max.message.bytes")
    default = DEFAULT_MAX_MESSAGE_BYTES if target_broker is None else number(target_broker, "message.max.bytes")
    size = "max.message.bytes"
    if size not in carried and not is_left_out(size, exclude) and largest is not None and default is not None and largest > default:
        carried[size] = str(largest)
    if carried.get("cleanup.policy") == "":  # Kafka 4.2 and later; older brokers know only this way of saying it
        carried |= {key: value for key, value in KEPT_FOREVER.items() if not is_left_out(key, exclude)}
    return carried


def open_bounds(target_broker: Settings | None) -> dict[str, str]:
    """Accept records of any age: before/after since Kafka 3.6 (KIP-937), difference before."""
    if target_broker is not None and _BROKER_NAMES[AFTER] not in target_broker:
        return {DIFFERENCE: FOREVER}
    return {BEFORE: FOREVER, AFTER: FOREVER}


def not_copied(source: Settings, exclude: Sequence[str] = KEPT_BY_TARGET) -> list[str]:
    """Explicit settings of the source topic that the target topic does not get, as ``key=value``."""
    left = {key: entry for key, entry in source.items() if entry.is_explicit and key not in _REPLACED}
    return sorted(f"{key}={entry.value}" for key, entry in left.items() if is_left_out(key, exclude))


def number(settings: Settings, key: str) -> int | None:
    """A numeric setting, None when it is not there."""
    entry = settings.get(key)
    try:
        return None if entry is None or entry.value is None else int(entry.value)
    except ValueError:
        return None


def text(settings: Settings, key: str, default: str = "") -> str:
    """A textual setting."""
    entry = settings.get(key)
    return default if entry is None or entry.value is None else entry.value


def retention_ms(settings: Settings | BrokerError | None) -> int | None:
    """How long a topic keeps records; None for ever, not by time, or unknown."""
    if settings is None or isinstance(settings, BrokerError) or "delete" not in text(settings, "cleanup.policy", "delete"):
        return None
    value = number(settings, "retention.ms")
    return value if value is not None and value >= 0 else None


def as_created(configs: Mapping[str, str], target_broker: Settings | None) -> dict[str, ConfigValue]:
    """What would be in force for a topic created with ``configs``: that, over the broker's defaults."""
    inherited: dict[str, ConfigValue] = {}
    if target_broker is not None:
        inherited = {key: target_broker[name] for key, name in _BROKER_NAMES.items() if name in target_broker}
        retention = _default_retention(target_broker)
        if retention is not None:
            inherited["retention.ms"] = ConfigValue(str(retention))
    return inherited | {key: ConfigValue(value, "DYNAMIC_TOPIC_CONFIG") for key, value in configs.items()}


def _default_retention(broker: Settings) -> int | None:
    # Kafka sources, KafkaConfig.logRetentionTimeMillis: the finest unit that is set wins; any negative value means forever.
    for key, milliseconds in (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)):
        value = number(broker, key)
        if value is not None:
            return -1 if value < 0 else value * milliseconds
    return None
