"""What the last looks at a mirror said, for plots and for "since when": in memory, so it begins with the process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mirror_pipeline.exporter.facts import Facts

IN_STEP_SECONDS = 30.0
"""A mirror whose target lacks no record older than this is in step: less is the time that a batch takes."""
POINTS_A_MIRROR, POINTS_A_TOPIC = 720, 60
SLOPE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Point:
    """A mirror, or a topic, at a time (seconds since the epoch)."""

    at: float
    lag_records: int
    lag_seconds: float | None
    bytes_per_second: float


class History:
    """Of one mirror; ``behind_since`` is when it fell behind, None while it is in step or nothing is known."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS_A_MIRROR)
        self.topics: dict[str, deque[Point]] = {}
        self.behind_since: float | None = None
        self._bytes: dict[str, tuple[float, int]] = {}

    def add(self, facts: Facts, at: float) -> None:
        """Take a look into it; one that did not reach the source is left out."""
        lag = facts.lag
        if lag is None or facts.lag_at is None or (self.points and facts.lag_at <= self.points[-1].at):
            return
        seconds = lag.lag_seconds
        if seconds is not None:
            self.behind_since = None if seconds <= IN_STEP_SECONDS else self.behind_since or facts.lag_at - seconds
        self.points.append(Point(facts.lag_at, lag.lag_records, seconds, facts.bytes_per_second))
        copied = {topic.topic: topic.bytes for lane in facts.lanes for topic in lane.topics}
        for topic in lag.topics:
            before, now = self._bytes.get(topic.topic), copied.get(topic.topic, 0)
            speed = max(0, now - before[1]) / max(1e-3, at - before[0]) if before is not None else 0.0
            self._bytes[topic.topic] = (at, now)
            points = self.topics.setdefault(topic.topic, deque(maxlen=POINTS_A_TOPIC))
            points.append(Point(facts.lag_at, topic.lag_records, topic.lag_seconds, speed))
        for gone in self.topics.keys() - {topic.topic for topic in lag.topics}:
            del self.topics[gone]
            self._bytes.pop(gone, None)

    def seconds_to_go(self) -> float | None:
        """When it is in step at the pace of the last two minutes; None if it does not come closer, or nothing is known."""
        points = [point for point in self.points if point.at >= self.points[-1].at - SLOPE_SECONDS]
        if len(points) < 2 or points[-1].lag_records >= points[0].lag_records:
            return None
        pace = (points[0].lag_records - points[-1].lag_records) / (points[-1].at - points[0].at)
        return points[-1].lag_records / pace
