"""What the lag sensor remembers of each topic, and which lanes it starts: pure, no Kafka, no Dagster instance.

A lane is started when it has lag and no run in progress. A failed lane is restarted after a pause that doubles each
time; a halted topic does not delay the other topics of its lane.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from mirror_pipeline.halts import LEFT_ALONE
from mirror_pipeline.lags import MirrorLag, TopicLag
from mirror_pipeline.operations.state.status import ACCEPTED
from mirror_pipeline.orchestration.sensors.lane_facts import LaneFacts
from mirror_pipeline.reports import LaneStatus
from mirror_pipeline.text import clock

FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 1800.0
CANCELLED_PAUSE_SECONDS = 60.0
STUCK_SECONDS = 120.0
# Of the sensor's cursor.
VERSION = 2
# Between two observations of one topic; longer when there are more topics than seconds, because the event log keeps every event.
OBSERVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Start:
    """Start this lane for these topics (those with an asset; empty: the whole lane).

    Every run retries the halted topics of its lane, but a run is not started for them: the asset of a halted topic keeps the state
    of the run that halted it, and later runs do not fail because of it.
    """

    facts: LaneFacts
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LagDecision:
    """Lanes to start, and one line for each lane that is not started."""

    starts: tuple[Start, ...]
    reasons: tuple[str, ...]


def decide(
    lag: MirrorLag, lanes: Sequence[LaneFacts], *, homes: dict[str, str], now: float, stuck: dict[str, float] | None = None
) -> LagDecision:
    """Which lanes to start.

    Args:
        lag: as just measured.
        lanes: facts on each lane.
        homes: the lane of each topic that has lag.
        now: seconds since the epoch.
        stuck: topics whose position does not move, and since when.
    """
    behind = [topic for topic in lag.topics if topic.lag_records and topic.state not in LEFT_ALONE]
    aside = _aside(lag)
    if not behind:
        copied = sum(1 for topic in lag.topics if topic.state not in LEFT_ALONE)
        return LagDecision((), ((f"no lag in {_count(copied, 'topic')}",) if copied or not aside else ()) + aside)
    starts, reasons = list[Start](), list(aside)
    for facts in lanes:
        here = [topic for topic in behind if homes.get(topic.topic) == facts.lane]
        if not here:
            continue
        reason = _why_not(facts, here, now, stuck or {})
        if reason:
            reasons.append(reason)
        else:
            starts.append(Start(facts, _shown(facts, [topic.topic for topic in here])))
    return LagDecision(tuple(starts), tuple(reasons))


def _aside(lag: MirrorLag) -> tuple[str, ...]:
    """Topics that are paused, that applications use, or that the other mirror copies: no run is started for them, and none is retried."""
    by_state = {state: [topic for topic in lag.topics if topic.state == state] for state in LEFT_ALONE}
    return tuple(f"{state}: {_names(topics)}" for state, topics in by_state.items() if topics)


def _shown(facts: LaneFacts, behind: Sequence[str]) -> tuple[str, ...]:
    """Topics whose assets a run is started for: those with lag and no halt, else others without a halt, else the halted ones."""
    known = [topic for topic in behind if topic in facts.topics]
    halted = facts.halted
    healthy = [topic for topic in known if topic not in halted] or sorted(facts.topics - halted.keys())
    return tuple(healthy if known and halted else known)


def _why_not(facts: LaneFacts, here: Sequence[TopicLag], now: float, stuck: dict[str, float]) -> str:
    seen = _lag_words(here)
    if facts.run is not None:
        since = [max(stuck[t.topic], facts.run.since) for t in here if t.topic in stuck]
        still = [moment for moment in since if now - moment >= STUCK_SECONDS]
        slow = f", {_count(len(still), 'topic')} not moving since {clock(min(still))}" if still else ""
        return f"lane {facts.label} {_run_word(facts.run.status)} since {clock(facts.run.since)}, {seen}{slow}{_down(facts.status)}"
    status = facts.status
    if status is not None and status.state == "running":
        began = f" since {clock(status.started)}" if status.started else ""
        return f"lane {facts.label} held by process {status.pid} on {status.host}{began} (not a run of this Dagster), {seen}"
    if not facts.topics:
        return f"lane {facts.label}: {seen}, waiting for the definitions to be reloaded with {_names(here)}"
    return _pause(facts, here, now, seen)


def _down(status: LaneStatus | None) -> str:
    """The cluster that the lane waits for, and since when."""
    if status is None or status.target_down_since is None or status.state != "running":
        return ""
    return f", target down since {clock(status.target_down_since)}: {status.message}"


def _pause(facts: LaneFacts, here: Sequence[TopicLag], now: float, seen: str) -> str:
    if facts.ended is None:
        return ""
    if facts.cancelled:
        until = facts.ended + CANCELLED_PAUSE_SECONDS
        if now < until:
            return (
                f"lane {facts.label} was terminated at {clock(facts.ended)}, {seen}; starts again at {clock(until)}, "
                "stop this sensor to keep the lane stopped"
            )
        return ""
    tries = max(facts.failures, facts.halts)
    if not tries or (facts.status is not None and any(topic.state == ACCEPTED for topic in facts.status.topics)):
        return ""
    halted = facts.halted
    ended_in_order = facts.status is not None and facts.status.state == "finished"
    if ended_in_order and any(topic.topic not in halted for topic in here):
        return ""
    until = facts.ended + min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(tries - 1, 16))
    if now >= until:
        return ""
    if ended_in_order:
        why = "; ".join(f"{topic.topic} halted: {halted[topic.topic]}" for topic in here)
    else:
        times = "once" if facts.failures == 1 else f"{facts.failures} times in a row"
        message = facts.status.message if facts.status is not None else ""
        why = f"failed {times}, last at {clock(facts.ended)}" + (f": {message}" if message else "")
    return f"lane {facts.label}: {why}, {seen}; next try at {clock(until)}"


def _run_word(status: str) -> str:
    return {"STARTED": "running", "CANCELING": "ending", "QUEUED": "queued"}.get(status, "starting")


def _lag_words(topics: Sequence[TopicLag]) -> str:
    return f"lag {sum(t.lag_records for t in topics):,} in {_count(len(topics), 'topic')}"


def _names(topics: Sequence[TopicLag]) -> str:
    shown = ", ".join(t.topic for t in topics[:3])
    return shown if len(topics) <= 3 else f"{shown} and {len(topics) - 3} more"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(slots=True)
class TopicMemory:
    """Sums over a topic's partitions, and seconds since the epoch."""

    position: int
    end: int
    moved: float
    observed: float
    reported_lag: int = -1
    reported_end: int = -1
    directed: str = ""
    fresh: bool | None = None


@dataclass(slots=True)
class EndMemory:
    """The end of a lane's newest run, and when the sensor first saw it."""

    run: str
    seen: float


@dataclass(slots=True)
class OverviewMemory:
    """What the overview said last, and when; since when there is trouble, told or not. Seconds since the epoch."""

    passed: bool = True
    line: str = ""
    at: float = 0.0
    trouble_since: float | None = None


class LagMemory:
    """Reads and writes the cursor; a cursor of another version is ignored."""

    def __init__(self, cursor: str | None) -> None:
        self._topics: dict[str, TopicMemory] = {}
        self._ends: dict[str, EndMemory] = {}
        self.overview = OverviewMemory()
        self.unseen_since: float | None = None
        try:
            body = json.loads(cursor or "{}")
            if body.get("version") == VERSION:
                self._topics = {name: TopicMemory(**row) for name, row in body["topics"].items()}
                self._ends = {label: EndMemory(**row) for label, row in body.get("ends", {}).items()}
                self.overview = OverviewMemory(**body.get("overview", {}))
                self.unseen_since = body.get("unseen_since")
        except (ValueError, TypeError, KeyError, AttributeError):
            self._topics, self._ends = {}, {}

    def see(self, lag: MirrorLag, now: float) -> list[TopicLag]:
        """Remember a measured lag; return the topics that should be observed now."""
        self.unseen_since = None
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
            directed = topic.state if topic.state in LEFT_ALONE else ""
            if directed != memory.directed:
                memory.directed, memory.observed, memory.reported_lag, memory.reported_end = directed, now, topic.lag_records, end
                due.append(topic)
            elif news and (now - memory.observed >= pause or (turned and now - memory.observed >= pause / 6)):
                memory.observed, memory.reported_lag, memory.reported_end = now, topic.lag_records, end
                due.append(topic)
        self._topics = {topic.topic: self._topics[topic.topic] for topic in lag.topics}
        return due

    def fresh(self, topic: str) -> bool | None:
        """What the check `fresh` of a topic said last; None if nothing."""
        return self._topics[topic].fresh

    def say_fresh(self, topic: str, fresh: bool | None) -> None:
        """It says so now."""
        self._topics[topic].fresh = fresh

    def see_nothing(self, now: float) -> float:
        """Remember that the lag cannot be measured; return since when."""
        self.unseen_since = now if self.unseen_since is None else self.unseen_since
        return self.unseen_since

    def said_fresh(self) -> list[str]:
        """The topics whose check `fresh` is green because a lane keeps up."""
        return [name for name, memory in self._topics.items() if memory.fresh and not memory.directed]

    def pace(self, lanes: Iterable[LaneFacts], now: float) -> list[LaneFacts]:
        """The facts with the end of each lane's newest run by this host's clock: the run's own may differ from it by hours."""
        paced = []
        for facts in lanes:
            known = self._ends.get(facts.label)
            if known is None:  # the first tick: the only clock there is
                known = EndMemory(facts.newest, now if facts.ended is None else min(facts.ended, now))
            elif known.run != facts.newest:
                known = EndMemory(facts.newest, now)
            self._ends[facts.label] = known
            paced.append(replace(facts, ended=None if facts.ended is None else known.seen))
        return paced

    def stuck(self) -> dict[str, float]:
        """Since when each topic's position has not moved."""
        return {name: memory.moved for name, memory in self._topics.items()}

    def cursor(self) -> str:
        """The cursor as text."""
        topics = {name: asdict(memory) for name, memory in self._topics.items()}
        ends = {label: asdict(end) for label, end in self._ends.items()}
        overview = asdict(self.overview)
        return json.dumps({"version": VERSION, "topics": topics, "ends": ends, "overview": overview, "unseen_since": self.unseen_since})
