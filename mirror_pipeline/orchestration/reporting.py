"""When a running lane says something about a topic: at most once an interval, and soon after its state changed.

Every event costs the event log about 9 KB for ever, so a lane reports by time, not by micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mirror_pipeline.orchestration import metadata
from mirror_pipeline.reports import Progress, TopicProgress

STATE_CHANGE_SPACING_SECONDS = 5.0
"""A topic whose state flickers is reported at most this often."""


@dataclass(slots=True)
class _Told:
    """What was last said about a topic."""

    started_at: dict[int, int]
    at: float
    records: int = 0
    bytes: int = 0
    lag: int = 0
    state: str = "ok"
    spoke: bool = False


@dataclass(frozen=True, slots=True)
class TopicReport:
    """Something to say about one topic; ``turned`` when its state is another than was last said."""

    topic: str
    state: str
    metadata: metadata.Metadata = field(hash=False)
    turned: bool = False

    @property
    def made(self) -> bool:
        """Whether it counts as a copy made: a topic that is halted, or waits for a cluster, is not up to date."""
        return self.state == "ok"


class LaneReporter:
    """Turns the moving picture of a run into reports.

    Args:
        interval: seconds between two reports on one topic.
        clock: monotonic seconds.
    """

    def __init__(self, interval: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def due(self, progress: Progress) -> list[TopicReport]:
        """The reports that are due now; asking makes them given."""
        now = self._clock()
        return [self._tell(progress, name, topic, now) for name, topic in sorted(progress.topics.items()) if self._is_due(name, topic, now)]

    def final(self, progress: Progress) -> list[TopicReport]:
        """The last word on every topic that copied something or is not well."""
        now = self._clock()
        return [
            self._tell(progress, name, topic, now)
            for name, topic in sorted(progress.topics.items())
            if topic.records or topic.state != "ok" or self._memory(name, topic, now).spoke
        ]

    def closing(self, progress: Progress, topic: str) -> TopicReport | None:
        """The last word on one topic, whether it copied something or not; None when the run never knew it."""
        known = progress.topics.get(topic)
        return None if known is None else self._tell(progress, topic, known, self._clock())

    def _memory(self, name: str, topic: TopicProgress, now: float) -> _Told:
        if name not in self._told:
            self._told[name] = _Told(dict(topic.position), now)
        told = self._told[name]
        for number, position in topic.position.items():
            told.started_at.setdefault(number, position)
        return told

    def _is_due(self, name: str, topic: TopicProgress, now: float) -> bool:
        told = self._memory(name, topic, now)
        since = now - told.at
        if topic.state != told.state or (topic.records and not told.records):
            return not told.spoke or since >= STATE_CHANGE_SPACING_SECONDS
        changed = (topic.records, topic.lag_records) != (told.records, told.lag)
        return changed and since >= self._interval

    def _tell(self, progress: Progress, name: str, topic: TopicProgress, now: float) -> TopicReport:
        told = self._memory(name, topic, now)
        seconds = now - told.at if told.spoke else progress.seconds
        rates = (
            (topic.records - told.records) / seconds if seconds > 0 else 0.0,
            (topic.bytes - told.bytes) / seconds if seconds > 0 else 0.0,
        )
        facts = metadata.of_topic_progress(progress, topic, started_at=told.started_at, rates=rates)
        turned = topic.state != told.state or not told.spoke
        told.at, told.records, told.bytes, told.lag = now, topic.records, topic.bytes, topic.lag_records
        told.state, told.spoke = topic.state, True
        return TopicReport(name, topic.state, facts, turned)
