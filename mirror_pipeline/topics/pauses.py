"""Which topics an operator has paused: of a topic and of its whole mirror the later decision counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mirror_pipeline.halts import Halt, paused
from mirror_pipeline.model import Decision, DecisionKind

WHOLE_MIRROR = ""
"""The topic of a decision about all topics, present and future."""
_KINDS = (DecisionKind.PAUSED, DecisionKind.RESUMED)


def paused_topics(decisions: Iterable[Decision], topics: Collection[str]) -> dict[str, Halt]:
    """Those of some source topics that are paused, with who did it and when."""
    latest = {d.topic: d for d in sorted(decisions, key=lambda d: d.revision) if d.kind in _KINDS}
    last = {topic: max((latest[at] for at in (topic, WHOLE_MIRROR) if at in latest), key=_revision, default=None) for topic in topics}
    return {topic: paused(topic, d.decided_by, d.at) for topic, d in last.items() if d is not None and d.kind is DecisionKind.PAUSED}


def _revision(decision: Decision) -> int:
    return decision.revision
