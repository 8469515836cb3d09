"""Topic settings: which are carried over, which are always set, and what the target's defaults are."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_pipeline.kafka.cluster_info import ConfigValue

FOREVER = str(2**63 - 1)
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
BEFORE, AFTER, DIFFERENCE = (f"message.timestamp.{word}.max.ms" for word in ("before", "after", "difference"))

# What a topic keeps and how it is cleaned. Durability, throttles, tiering and flushing are the target's own business.
COPIED = frozenset(
    {
        "cleanup.policy",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)

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


def desired_configs(source: Settings, target_broker: Settings | None = None) -> dict[str, str]:
    """The settings a target topic is created with.

    Args:
        source: all settings in force of the source topic.
        target_broker: settings of a target broker; None when they may not be read.
    """
    configs = {key: entry.value for key, entry in source.items() if entry.is_explicit and key in COPIED and entry.value is not None}
    configs |= {"compression.type": "producer", "message.timestamp.type": "CreateTime"} | open_bounds(target_broker)
    largest = number(source, "max.message.bytes")
    default = DEFAULT_MAX_MESSAGE_BYTES if target_broker is None else number(target_broker, "message.max.bytes")
    if "max.message.bytes" not in configs and largest is not None and default is not None and largest > default:
        configs["max.message.bytes"] = str(largest)
    return dict(sorted(configs.items()))


def open_bounds(target_broker: Settings | None) -> dict[str, str]:
    """Accept records of any age: before/after since Kafka 3.6 (KIP-937), difference before."""
    if target_broker is not None and _BROKER_NAMES[AFTER] not in target_broker:
        return {DIFFERENCE: FOREVER}
    return {BEFORE: FOREVER, AFTER: FOREVER}


def not_copied(source: Settings) -> list[str]:
    """Explicit settings of the source topic that the target topic does not get, as ``key=value``."""
    known = COPIED | _REPLACED
    return sorted(f"{key}={entry.value}" for key, entry in source.items() if entry.is_explicit and key not in known)


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
