"""The lag sensor's cursor: what was last observed of each topic, and when it last moved."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from mirror_pipeline.lags import MirrorLag, TopicLag

VERSION = 2
# Between two observations of one topic; longer when there are more topics than seconds, because the event log keeps every event.
OBSERVE_SECONDS = 60.0


@dataclass(slots=True)
class TopicMemory:
    """Sums over a topic's partitions, and seconds since the epoch."""

    position: int
    end: int
    moved: float
    observed: float
    reported_lag: int = -1
    reported_end: int = -1


class LagMemory:
    """Reads and writes the cursor; a cursor of another version is ignored."""

    def __init__(self, cursor: str | None) -> None:
        self._topics: dict[str, TopicMemory] = {}
        try:
            body = json.loads(cursor or "{}")
            if body.get("version") == VERSION:
                self._topics = {name: TopicMemory(**row) for name, row in body["topics"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            self._topics = {}

    def see(self, lag: MirrorLag, now: float) -> list[TopicLag]:
        """Remember a measured lag; return the topics that should be observed now."""
        pause = max(OBSERVE_SECONDS, float(len(lag.topics)))
        due = []
        for topic in lag.topics:
            position, end = sum(p.position for p in topic.partitions), sum(p.end for p in topic.partitions)
            memory = self._topics.get(topic.topic)
            if memory is None:
                memory = self._topics[topic.topic] = TopicMemory(position, end, now, 0.0)
            if position != memory.position or topic.lag_records == 0:
                memory.moved = now
            memory.position, memory.end = position, end
            news = (topic.lag_records, end) != (memory.reported_lag, memory.reported_end)
            turned = (topic.lag_records > 0) != (memory.reported_lag > 0)
            if news and (now - memory.observed >= pause or (turned and now - memory.observed >= pause / 6)):
                memory.observed, memory.reported_lag, memory.reported_end = now, topic.lag_records, end
                due.append(topic)
        self._topics = {topic.topic: self._topics[topic.topic] for topic in lag.topics}
        return due

    def stuck(self) -> dict[str, float]:
        """Since when each topic's position has not moved."""
        return {name: memory.moved for name, memory in self._topics.items()}

    def cursor(self) -> str:
        """The cursor as text."""
        return json.dumps({"version": VERSION, "topics": {name: asdict(memory) for name, memory in self._topics.items()}})
