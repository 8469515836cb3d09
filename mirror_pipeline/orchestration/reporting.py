"""When a running lane reports on a topic: at most once per interval, and soon after a change of state.

Every event adds about 9 KB to the event log for good, so a lane reports by time, not by micro-batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mirror_pipeline.lags import BEHIND, LASTING_SECONDS
from mirror_pipeline.orchestration import metadata
from mirror_pipeline.reports import Progress, TopicProgress

# A topic whose state flickers is reported at most this often.
STATE_CHANGE_SPACING_SECONDS = 5.0

@dataclass(slots=True)
class _LastReport:
    """What was last reported of a topic."""

    started_at: dict[int, int]
    at: float
    records: int = 0
    bytes: int = 0
    lag: int = 0
    state: str = "ok"
    lasting: bool = False
    sent: bool = False
    # The present state, reported or not, and since when.
    present: str = "ok"
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A report on one topic; ``state_changed`` if its state differs from the last report. ``lasting``: it is no short interruption."""

    topic: str
    state: str
    metadata: metadata.Metadata = field(hash=False)
    state_changed: bool = False
    lasting: bool = True

    @property
    def materializes(self) -> bool:
        """Whether it counts as a materialization: a topic that is halted or waits for a cluster is not up to date."""
        return self.state == "ok"


class LaneReporter:
    """Turns a run's progress into reports.

    Args:
        interval: seconds between two reports on one topic.
        clock: monotonic seconds.
        wall_clock: seconds since the epoch.
        waited: since when a topic was waiting for a cluster when the last run ended; None if it was not.
    """

    def __init__(
        self,
        interval: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        waited: Callable[[str], float | None] = lambda _: None,
    ) -> None:
        self._interval = interval
        self._clock = clock
        self._wall_clock = wall_clock
        self._waited = waited
        self._last: dict[str, _LastReport] = {}

    def due(self, progress: Progress) -> list[TopicReport]:
        """The reports that are due now; they count as sent."""
        now = self._clock()
        topics = sorted(progress.topics.items())
        return [self._report(progress, name, topic, now) for name, topic in topics if self._is_due(name, topic, now)]

    def final(self, progress: Progress) -> list[TopicReport]:
        """The last report on every topic that copied records or is not in state ok."""
        now = self._clock()
        return [
            self._report(progress, name, topic, now)
            for name, topic in sorted(progress.topics.items())
            if topic.records or topic.state != "ok" or self._memory(name, topic, now).sent
        ]

    def closing(self, progress: Progress, topic: str) -> TopicReport | None:
        """The last report on one topic, idle or not; None if the topic is not part of the run."""
        known = progress.topics.get(topic)
        return None if known is None else self._report(progress, topic, known, self._clock())

    def _memory(self, name: str, topic: TopicProgress, now: float) -> _LastReport:
        if name not in self._last:
            self._last[name] = _LastReport(dict(topic.position), now)
        last = self._last[name]
        if topic.state != last.present:
            earlier = self._waited(name) if topic.state == BEHIND and not last.sent else None
            last.present, last.since = topic.state, self._wall_clock() if earlier is None else earlier
        for number, position in topic.position.items():
            last.started_at.setdefault(number, position)
        return last

    def _is_due(self, name: str, topic: TopicProgress, now: float) -> bool:
        last = self._memory(name, topic, now)
        since = now - last.at
        if topic.state != last.state or (topic.records and not last.records):
            return not last.sent or since >= STATE_CHANGE_SPACING_SECONDS
        if not last.lasting and self._lasts(last):
            return True
        changed = (topic.records, topic.lag_records) != (last.records, last.lag)
        return changed and since >= self._interval

    def _report(self, progress: Progress, name: str, topic: TopicProgress, now: float) -> TopicReport:
        last = self._memory(name, topic, now)
        seconds = now - last.at if last.sent else progress.seconds
        rates = (
            (topic.records - last.records) / seconds if seconds > 0 else 0.0,
            (topic.bytes - last.bytes) / seconds if seconds > 0 else 0.0,
        )
        facts = metadata.of_topic_progress(progress, topic, started_at=last.started_at, rates=rates, since=last.since)
        lasting = self._lasts(last)
        state_changed = (topic.state, lasting) != (last.state, last.lasting) or not last.sent
        last.at, last.records, last.bytes, last.lag = now, topic.records, topic.bytes, topic.lag_records
        last.state, last.lasting, last.sent = topic.state, lasting, True
        return TopicReport(name, topic.state, facts, state_changed, lasting)

    def _lasts(self, last: _LastReport) -> bool:
        return last.present == BEHIND and self._wall_clock() - last.since >= LASTING_SECONDS
