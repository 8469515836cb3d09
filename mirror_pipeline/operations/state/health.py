"""Whether a mirror is healthy: for probes and ``status --exit-code``.

What the lanes report counts. The source is looked at only where some lane is not at work: then nobody else says whether records wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mirror_pipeline.errors import ClusterUnreachable, MirrorError
from mirror_pipeline.halts import PAUSED
from mirror_pipeline.lags import BEHIND, HALTED, LASTING_SECONDS, MirrorLag, TopicLag
from mirror_pipeline.reports import LaneStatus, MirrorStatus, TopicState
from mirror_pipeline.text import clock, duration, plural

if TYPE_CHECKING:
    from mirror_pipeline.operations.state.snapshot import Snapshot

FINE, PROBLEM_STATE, UNREACHABLE_STATE, STALE = "fine", "problem", "unreachable", "stale"
EXIT_CODES = {FINE: 0, PROBLEM_STATE: 1, UNREACHABLE_STATE: 3, STALE: 3}
"""As for every command: 1 a problem was found, 3 a cluster is unreachable; also 3 for a stale lane."""
BY_SEVERITY = (STALE, UNREACHABLE_STATE, PROBLEM_STATE, FINE)
UNATTENDED_SECONDS = 120.0
"""Records may wait this long while no lane runs: Dagster needs a moment to start one."""
NOBODY = "no lane is running: start one with `mirror run` or `mirror up`"

Finding = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Health:
    """One mirror's health; ``problems`` has a line for each problem.

    ``copied_to`` (seconds since the epoch) is the time up to which everything is on the target, None if that is not known;
    ``lag_records`` are the offsets that are not. ``as_of`` is when that was so.
    """

    mirror: str
    state: str
    problems: tuple[str, ...]
    lanes: int
    topics: int
    copied_to: float | None = None
    lag_records: int = 0
    as_of: float | None = None

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a problem, 3 unreachable or stale."""
        return EXIT_CODES[self.state]

    def to_json(self) -> dict[str, Any]:
        """One element of ``health --json``'s ``mirrors``."""
        return {**asdict(self), "exit_code": self.exit_code}


def health(snapshot: Snapshot, max_age: float | None = None) -> Health:
    """See :meth:`Mirror.health`."""
    from mirror_pipeline.operations.state.lag import lag  # the clients of a cluster: not for `--help`
    from mirror_pipeline.operations.state.status import status as status_of

    found = status_of(snapshot)
    seen: MirrorLag | MirrorError | None = None
    if any(lane.heartbeat is not None for lane in found.lanes) and not all(lane.state == "running" for lane in found.lanes):
        try:
            seen = lag(snapshot)
        except MirrorError as error:
            seen = error
    return health_of(found, time.time(), max_age, seen)


def health_of(status: MirrorStatus, now: float, max_age: float | None = None, seen: MirrorLag | MirrorError | None = None) -> Health:
    """The health of a mirror.

    Args:
        status: from :meth:`Mirror.status`.
        now: seconds since the epoch.
        max_age: a mirror whose records have waited for longer than this, in seconds, with nobody at work is stale.
        seen: the lag as just measured, or why that was not possible; None if every lane is running.
    """
    measured = seen if isinstance(seen, MirrorLag) else None
    looked = _unpaused(measured) if measured is not None else None
    found = [finding for lane in status.lanes for finding in _of_lane(lane, status, looked, now)]
    signs = [lane.heartbeat for lane in status.lanes if lane.heartbeat is not None]
    if not signs:
        found.append((STALE, "it has never run"))
    elif looked is not None:
        found += [*_halted(looked.topics), *_unattended(status, looked, max(signs), now, max_age)]
    elif max_age is not None and now - max(signs) > max_age:
        found.append((STALE, f"no lane has sent a heartbeat for {duration(now - max(signs))}"))
    if isinstance(seen, MirrorError):
        state = UNREACHABLE_STATE if isinstance(seen, ClusterUnreachable) else PROBLEM_STATE
        found.append((state, f"its lag cannot be measured: {_cause(str(seen))}"))
    copied_to, records = _standing(status, measured, now)
    return Health(
        status.mirror, worst(state for state, _ in found), tuple(text for _, text in found), len(status.lanes),
        sum(len(lane.topics) for lane in status.lanes), copied_to, records, now if looked is not None else max(signs, default=None),
    )  # fmt: skip


def _unpaused(lag: MirrorLag) -> MirrorLag:
    """Without what an operator has paused: nobody is to copy that."""
    return replace(lag, topics=tuple(topic for topic in lag.topics if topic.state != PAUSED))


def worst(states: Iterable[str] | Sequence[str]) -> str:
    """The most severe of some states."""
    known = set(states)
    return next((state for state in BY_SEVERITY if state in known), FINE)


def _of_lane(lane: LaneStatus, status: MirrorStatus, looked: MirrorLag | None, now: float) -> Iterator[Finding]:
    """What a lane's last report says; where it has ended, only what a look at the source does not settle."""
    if lane.state == "stale" and lane.heartbeat is not None:
        yield STALE, f"{lane.lane} was interrupted: it has sent no heartbeat for {duration(now - lane.heartbeat)}"
    here = {topic.topic for topic in lane.topics}
    waits = looked is None or any(topic.lag_records for topic in looked.topics if topic.topic in here or not here)
    down = list(_down(lane, status, now)) if waits or lane.state == "running" else []
    yield from down
    unreachable = lane.exit_code == EXIT_CODES[UNREACHABLE_STATE]
    if lane.state == "failed" and not (unreachable and (down or not waits)):
        yield UNREACHABLE_STATE if unreachable else PROBLEM_STATE, f"{lane.lane} failed: {lane.message or 'no reason given'}"
    for topic in lane.topics:
        if topic.state == HALTED and looked is None:
            yield PROBLEM_STATE, _halt(topic.topic, topic.code, topic.reason)
        elif topic.state == BEHIND and not down and _counts(lane, topic, looked):
            yield PROBLEM_STATE, f"{topic.topic} behind: {topic.reason or 'no reason given'}"


def _counts(lane: LaneStatus, topic: TopicState, looked: MirrorLag | None) -> bool:
    """Whether a topic that waits is a problem; while its lane runs, only once that lasts."""
    return topic.behind_seconds >= LASTING_SECONDS if lane.state == "running" else looked is None


def _down(lane: LaneStatus, status: MirrorStatus, now: float) -> Iterator[Finding]:
    """A cluster that does not answer: the cause once, not for each topic that waits for it."""
    target = ("target", status.target, lane.target_down_since, lane.message)
    clusters = (target, ("source", status.source, lane.source_down_since, lane.source_down))
    waiting = sum(topic.state == BEHIND for topic in lane.topics)
    for side, alias, since, why in clusters:
        if since is not None or (side == "source" and lane.source_down):
            long = f" since {clock(since)} ({duration(max(0.0, now - since))})" if since is not None else ""
            topics = f"; {plural(waiting, 'topic')} of {lane.lane} wait" + ("s" if waiting == 1 else "") if waiting else ""
            yield UNREACHABLE_STATE, f"{side} {alias} down{long}: {_cause(why) or 'no answer'}{topics}; `mirror check` tests it"


def _cause(message: str) -> str:
    """The first of several brokers' failures; the others are the same as a rule."""
    return message.split("; ")[0].split(" (")[0]


def _halted(topics: Iterable[TopicLag]) -> Iterator[Finding]:
    for topic in topics:
        if topic.state == HALTED:
            yield PROBLEM_STATE, _halt(topic.topic, topic.code, topic.reason)


def _halt(topic: str, code: str, reason: str) -> str:
    return f"{topic} halted{f' ({code})' if code else ''}: {reason or 'no reason given'}"


def _unattended(status: MirrorStatus, looked: MirrorLag, heard: float, now: float, max_age: float | None) -> Iterator[Finding]:
    """Records that wait while no lane that copies them is at work. ``heard``: the last heartbeat of any."""
    attended = {topic.topic for lane in status.lanes if lane.state == "running" for topic in lane.topics}
    waiting = [topic for topic in looked.topics if topic.lag_records and topic.state == "ok" and topic.topic not in attended]
    if not waiting:
        return
    ages = [topic.lag_seconds for topic in waiting if topic.lag_seconds is not None]
    idle = min([now - heard, *([max(ages)] if ages else [])])
    left = any(lane.state == "finished" and not lane.time_up and lane.lag_records for lane in status.lanes)
    oldest = f", the oldest {duration(max(ages))} old" if ages else ""
    said = f"behind by {plural(sum(topic.lag_records for topic in waiting), 'record')}{oldest}, as of {clock(now)}, and {NOBODY}"
    if max_age is not None and idle > max_age:
        yield STALE, said
    elif left or (max_age is None and idle > UNATTENDED_SECONDS):
        yield PROBLEM_STATE, said


def _standing(status: MirrorStatus, measured: MirrorLag | None, now: float) -> tuple[float | None, int]:
    """The time up to which everything is on the target, and the offsets that are not: as just measured, else as the lanes report."""
    facts = [(lane.heartbeat, lane.lag_records, lane.lag_seconds) for lane in status.lanes if lane.heartbeat is not None]
    if measured is not None:
        facts = [(now, measured.lag_records, measured.lag_seconds)]
    times = [at - (seconds or 0.0) if seconds is not None or not records else None for at, records, seconds in facts]
    known = [moment for moment in times if moment is not None]
    return (min(known) if known and len(known) == len(times) else None), sum(records for _, records, _ in facts)
