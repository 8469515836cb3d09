"""How a target topic's settings follow its source's: what is changed, what waits, what is drift. Pure.

A value that the target topic has of its own stays: the mirror changes what it has set itself or has found in step once (``made``), and
sets what the target inherits. With ``defaults_from: source`` every setting follows, own values of the target included.

Two changes could make the target refuse records that the source has taken before: a smaller limit, and compaction, which refuses records
without a key. They wait until everything that the source held when the change was seen is on the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirror_pipeline.config import TopicConfigs
from mirror_pipeline.kafka.cluster_info import ConfigValue
from mirror_pipeline.kafka.records.merge import MERGED_BATCH_BYTES
from mirror_pipeline.topics.configs import Settings, carried_configs, is_left_out

SIZES = ("max.message.bytes", "segment.bytes")
WAITS = "once everything that the source held at the time of the change is on the target"


@dataclass(frozen=True, slots=True)
class SettingsStep:
    """One topic's step. ``changes``: new values, None removes one; ``made``: what the ledger should say; the rest are sentences.

    ``waiting`` are changes that may be made once the topic is ``delivered``.
    """

    changes: Mapping[str, str | None] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)
    waiting: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()

    def told(self, target: Settings) -> list[str]:
        """The changes in words."""
        return [_words(key, value, target.get(key)) for key, value in self.changes.items()]


def settings_step(
    source: Settings,
    target: Settings,
    rules: TopicConfigs,
    made: Mapping[str, str],
    *,
    broker: Settings | None = None,
    delivered: bool = False,
) -> SettingsStep:
    """Compare the settings in force on both sides.

    Args:
        source, target: all settings of the two topics.
        rules: the mirror's ``topics.configs``.
        made: settings of the target topic that the mirror has made or found in step, with their values.
        broker: settings of a target broker; None when they may not be read.
        delivered: everything that the source held when a change was seen is on the target.
    """
    wanted = _wanted(source, target, broker, rules)
    changes: dict[str, str | None] = {}
    kept: dict[str, str] = {}
    waiting, drift = [], []
    for key, value in sorted({**dict.fromkeys(made, None), **wanted}.items()):
        held = target.get(key)
        if is_left_out(key, rules.exclude):
            continue
        if value is not None and held is None:
            drift.append(f"{key}={value} on the source: the target does not know this setting")
        elif value is None and (held is None or not held.is_explicit):
            continue
        elif value is not None and held is not None and _same(key, held.value, value):
            kept |= {key: value} if held.is_explicit else {}
        elif held is not None and held.is_explicit and key not in made and rules.defaults_from == "target":
            drift.append(f"{key} is {held.value} on the target, by a setting of its own, and {value} on the source")
        elif never := _never(key, value, held):
            drift.append(never)
            kept |= {key: made[key]} if key in made else {}
        elif _must_wait(key, value, held) and not delivered:
            waiting.append(f"{_words(key, value, held)}, {WAITS}")
            kept |= {key: made[key]} if key in made else {}
        else:
            changes[key] = value
            kept[key] = value if value is not None else made[key]
    return SettingsStep(changes, kept, tuple(waiting), tuple(drift))


def _wanted(source: Settings, target: Settings, broker: Settings | None, rules: TopicConfigs) -> dict[str, str]:
    carried = carried_configs(source, broker, rules.exclude)
    if rules.defaults_from == "target":
        return carried
    defaults = {k: e.value for k, e in source.items() if k in target and e.value is not None and not is_left_out(k, rules.exclude)}
    return defaults | carried


def _same(key: str, one: str | None, other: str) -> bool:
    if key == "cleanup.policy":
        return set((one or "").split(",")) == set(other.split(","))
    return one == other


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.lstrip("-").isdecimal() else None


def _lowered(key: str, value: str | None, held: ConfigValue | None) -> bool:
    new, old = _number(value), _number(held.value if held is not None else None)
    return key in SIZES and old is not None and (new is None or new < old)


def _never(key: str, value: str | None, held: ConfigValue | None) -> str:
    """Why a change is not made at all; "" if it is."""
    new = _number(value)
    if not _lowered(key, value, held) or new is None or new >= MERGED_BATCH_BYTES or held is None:
        return ""
    stays = f"{key} stays {held.value} on the target, {value} on the source"
    return f"{stays}: the mirror joins small batches up to {MERGED_BATCH_BYTES:,} bytes"


def _must_wait(key: str, value: str | None, held: ConfigValue | None) -> bool:
    before = held.value if held is not None else None
    compacts = key == "cleanup.policy" and (value is None or "compact" in value) and "compact" not in (before or "")
    return compacts or _lowered(key, value, held)


def _words(key: str, value: str | None, held: ConfigValue | None) -> str:
    before = held.value if held is not None else None
    return f"remove {key} (was {before})" if value is None else f"set {key}={value} (was {before})"
