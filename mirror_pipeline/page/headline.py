"""A mirror's state in one sentence, and what a failover would lose now in another."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.exporter.history import IN_STEP_SECONDS, History
from mirror_pipeline.halts import ACCEPTABLE, DIRECTED, PAUSED
from mirror_pipeline.lags import HALTED, MirrorLag, TopicLag
from mirror_pipeline.text import clock, duration, few, plural, rate

GOOD, WORKING, WAITING, TROUBLE = "good", "working", "waiting", "trouble"
"""Green, blue, grey and red. Each text says it too: colours are not for everybody."""
UNTOLD = frozenset({"source_gone", "other_cluster", "truncated"})
"""Halts of topics of which the source does not tell what was never read."""
TONES = (WAITING, GOOD, WORKING, TROUBLE)
"""The worst last."""


@dataclass(frozen=True, slots=True)
class Headline:
    """``text`` is the state, ``loss`` what a failover would lose now ("" where that is not known); ``tone`` one of the above."""

    tone: str
    text: str
    loss: str = ""

    @property
    def line(self) -> str:
        """Both sentences."""
        return f"{self.text}. {self.loss}." if self.loss else f"{self.text}."


def headline(facts: Facts, history: History | None = None) -> Headline:
    """What to say of a mirror first; with its ``history`` also since when it is behind, and for how long it will be."""
    lag = facts.lag
    if facts.status is None or lag is None:
        return Headline(TROUBLE, f"not known: {facts.error}") if facts.error else Headline(WAITING, "being looked at for the first time")
    tone, text = _state(facts, lag, history)
    if facts.error:
        text += f" (as of {clock(facts.lag_at or 0.0)}: {facts.error})"
    return Headline(tone, text, "" if _all(lag, *DIRECTED) else _loss(facts, lag))


def _state(facts: Facts, lag: MirrorLag, history: History | None) -> tuple[str, str]:
    running = [lane for lane in facts.lanes if lane.state == "running"]
    due = sum(topic.lag_records for topic in lag.topics if topic.state not in (PAUSED, *DIRECTED))
    waiting = f"{plural(due, 'record')} {'waits' if due == 1 else 'wait'}"
    if not lag.topics:
        return WAITING, "no topic is selected"
    if _all(lag, *DIRECTED):
        reason = next((topic.reason for topic in lag.topics if topic.reason), "")
        return WAITING, "copies nothing" + (f": {reason}" if reason else "")
    if _all(lag, PAUSED, *DIRECTED):
        return WAITING, _paused([topic for topic in lag.topics if topic.state == PAUSED])
    if halted := [topic for topic in lag.topics if topic.state == HALTED]:
        more = f" and {len(halted) - 1} more" if len(halted) > 1 else ""
        todo = "accept it on the mirror's page or by `mirror resolve`" if halted[0].code in ACCEPTABLE else halted[0].hint
        what = f"; {todo}" if todo else ""
        return TROUBLE, f"{len(halted)} of {plural(len(lag.topics), 'topic')} halted: {halted[0].topic}{more} ({halted[0].code}){what}"
    if not running and due and facts.starting:
        return WORKING, f"a run is starting: {waiting}"
    if not running and due:
        return TROUBLE, f"not running: {waiting}; start it with `mirror run` or in Dagster"
    for lane in running:
        if lane.target_down_since is not None:
            return TROUBLE, f"the target is down since {clock(lane.target_down_since)}; {waiting} in the buffer and on the source"
        if lane.source_down_since is not None:
            return TROUBLE, f"the source is down since {clock(lane.source_down_since)}"
    if lag.lag_seconds is not None and lag.lag_seconds <= IN_STEP_SECONDS:
        return GOOD, "in step" + ("" if running else "; no lane is running")
    return WORKING, _behind(facts, lag, history)


def _paused(topics: Sequence[TopicLag]) -> str:
    """Since when and by whom, where that is the same for all of them."""
    said = {topic.reason.removeprefix(f"{topic.topic} was ") for topic in topics}
    if len(said) > 1:
        return "paused, topic by topic"
    reason = said.pop()
    return reason if reason.startswith(PAUSED) else f"paused: {reason}"


def _behind(facts: Facts, lag: MirrorLag, history: History | None) -> str:
    since = history.behind_since if history is not None else None
    text = "behind" + (f" since {clock(since)}" if since is not None else f" by {plural(lag.lag_records, 'record')}")
    parts = [text]
    if lag.lag_seconds is not None and facts.lag_at is not None:
        parts.append(f"oldest missing record {_second(facts.lag_at - lag.lag_seconds)}")
    parts.append(rate(facts.bytes_per_second))
    left = history.seconds_to_go() if history is not None and history.points else None
    parts.append(f"in step in about {duration(left)}" if left is not None else "not coming closer" if history is not None else "")
    return ", ".join(part for part in parts if part)


def _loss(facts: Facts, lag: MirrorLag) -> str:
    untold = [topic.topic for topic in lag.topics if topic.code in UNTOLD]
    if untold and not lag.unread_records:
        return f"what failing over now would lose of {', '.join(few(untold))} is not known"
    if not lag.unread_records:
        return "failing over now would lose nothing"
    seconds = lag.unread_seconds
    back = f", back to {_second(facts.lag_at - seconds)}" if seconds is not None and facts.lag_at is not None else ""
    return f"failing over now would lose {'at least ' if untold else ''}{plural(lag.unread_records, 'record')}{back}"


def _all(lag: MirrorLag, *states: str) -> bool:
    return all(topic.state in states for topic in lag.topics)


def _second(moment: float) -> str:
    """To the second; with the date unless it is less than a day ago."""
    at = datetime.fromtimestamp(moment)
    return f"{at:%H:%M:%S}" if time.time() - moment < 86_400 else f"{at:%Y-%m-%d %H:%M:%S}"
