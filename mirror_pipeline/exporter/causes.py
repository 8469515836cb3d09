"""What is wrong with a mirror, by its facts: each cause with a name that stays the same while it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.halts import PAUSED
from mirror_pipeline.lags import HALTED
from mirror_pipeline.operations.state.health import NOBODY
from mirror_pipeline.reports import LaneStatus
from mirror_pipeline.text import duration

BEHIND_SECONDS = 300.0
RETENTION_WARNING_SECONDS = 6 * 3600.0
# Kinds that only a measured lag can show, or show to be over.
FROM_LAG = frozenset(("halted", "retention", "unattended", "behind"))


@dataclass(frozen=True, slots=True)
class Cause:
    """``kind`` and ``subject`` (such as a topic) name it, ``text`` is a line, ``detail`` says why and what to do."""

    mirror: str
    kind: str
    subject: str
    text: str
    detail: str = ""

    @property
    def key(self) -> str:
        """The same while the cause lasts."""
        return "\n".join((self.mirror, self.kind, self.subject))

    @property
    def line(self) -> str:
        """The text with its detail."""
        return f"{self.text}: {self.detail}" if self.detail else self.text


def causes(facts: Facts) -> Iterator[Cause]:
    """What is wrong now."""
    name, status, lag = facts.mirror, facts.status, facts.lag
    due = [topic for topic in lag.topics if topic.state != PAUSED] if lag is not None else []
    for lane in facts.lanes:
        yield from _of_lane(name, lane)
    for topic in lag.topics if lag is not None else ():
        if topic.state == HALTED:
            detail = "; ".join(part for part in (topic.reason, topic.hint) if part)
            yield Cause(name, "halted", f"{topic.topic} {topic.code}", f"topic {topic.topic} is halted ({topic.code or 'no code'})", detail)
        if topic.expires_seconds is not None and topic.expires_seconds < RETENTION_WARNING_SECONDS:
            text = f"topic {topic.topic}: the source may delete unread records in {duration(topic.expires_seconds)}"
            yield Cause(name, "retention", topic.topic, text, "raise its retention.ms until the mirror has caught up")
    if status is not None:
        running = any(lane.state == "running" for lane in status.lanes)
        waiting = sum(topic.lag_records for topic in due)
        if waiting and not running:
            yield Cause(name, "unattended", "", f"{waiting:,} records wait", NOBODY)
        for topic_name in status.different:
            text = f"topic {topic_name} differs from its source"
            yield Cause(name, "different", topic_name, text, "`mirror verify` lists the differences")
    oldest = max((topic.lag_seconds or 0.0 for topic in due), default=0.0)
    if oldest > BEHIND_SECONDS:
        yield Cause(name, "behind", "", f"the oldest record that the target lacks is {duration(oldest)} old", "see `mirror lag`")
    if facts.error:
        yield Cause(name, "blind", "", "its lag cannot be measured", facts.error)


def _of_lane(mirror: str, lane: LaneStatus) -> Iterator[Cause]:
    if lane.state == "running" and lane.target_down_since is not None:
        yield Cause(mirror, "target down", "", "the target is down", lane.message)
    if lane.state == "running" and lane.source_down_since is not None:
        yield Cause(mirror, "source down", "", "the source is down", lane.source_down)
    if lane.state == "failed":
        yield Cause(mirror, "failed", lane.lane, f"{lane.lane} failed", lane.message)
    if lane.state == "stale":
        yield Cause(mirror, "stale", lane.lane, f"{lane.lane} was interrupted", "start it again with `mirror run`, or see `mirror status`")
    if lane.buffer is not None and lane.buffer.full_since is not None:
        yield Cause(mirror, "full", "", "the buffer is full, so that reading waits", "raise buffer.max_bytes, or bring the target back")
