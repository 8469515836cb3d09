"""What a target topic would do to records that its source does not, and the setting that prevents it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mirror_pipeline.topics.configs import AFTER, BEFORE, DIFFERENCE, FOREVER, Settings, number, text
from mirror_pipeline.units import format_duration, format_size


class SettingDifference(NamedTuple):
    """A sentence, and ``key=value`` on the target that would make it untrue."""

    sentence: str
    key: str
    value: str


def differences(source: Settings, target: Settings) -> Iterator[SettingDifference]:
    """Compare the settings in force on both sides; what is not known is not compared."""
    if "compact" in text(source, "cleanup.policy") and "compact" not in text(target, "cleanup.policy", "delete"):
        sentence = "the source is compacted, the target is not: it keeps all records of a key until retention deletes them"
        yield SettingDifference(sentence, "cleanup.policy", text(source, "cleanup.policy"))
    if "delete" in text(target, "cleanup.policy", "delete"):
        yield from _retention(source, target)
    yield from _size(source, target)
    codec = text(target, "compression.type", "producer")
    if codec != "producer":
        yield SettingDifference(f"compression.type={codec} on the target: its broker recompresses batches", "compression.type", "producer")
    if text(target, "message.timestamp.type", "CreateTime") == "LogAppendTime":
        sentence = "message.timestamp.type=LogAppendTime on the target: the original time of records is lost"
        yield SettingDifference(sentence, "message.timestamp.type", "CreateTime")
    else:
        yield from _bounds(target)


def _retention(source: Settings, target: Settings) -> Iterator[SettingDifference]:
    deletes = "delete" in text(source, "cleanup.policy", "delete")
    for key in ("retention.ms", "retention.bytes"):
        kept, limit = (number(source, key) if deletes else -1), number(target, key)
        if kept is None or limit is None or limit < 0 or 0 <= kept <= limit:
            continue
        have, want = _amount(key, limit), "no limit" if kept < 0 else _amount(key, kept)
        sentence = f"{key} is smaller on the target ({have}) than on the source ({want}): it deletes records earlier"
        yield SettingDifference(sentence, key, str(kept))


def _amount(key: str, value: int) -> str:
    return format_duration(value / 1000) if key.endswith(".ms") else format_size(value)


def _size(source: Settings, target: Settings) -> Iterator[SettingDifference]:
    largest = number(source, "max.message.bytes")
    for key in ("max.message.bytes", "segment.bytes"):
        limit = number(target, key)
        if largest is not None and limit is not None and limit < largest:
            limits = f"{key} on the target is {limit:,}, the source accepts {largest:,} bytes"
            sentence = f"{limits}: larger batches are split, a larger record does not fit"
            yield SettingDifference(sentence, key, str(largest))


def _bounds(target: Settings) -> Iterator[SettingDifference]:
    for key, kind in ((AFTER, "newer"), (BEFORE, "older"), (DIFFERENCE, "older or newer")):
        limit = number(target, key)
        if limit is not None and limit < int(FOREVER):
            span = format_duration(limit / 1000)
            sentence = f"{key} on the target is {span}: it rejects batches with records more than {span} {kind} than its clock"
            yield SettingDifference(sentence, key, FOREVER)
