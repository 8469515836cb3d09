"""``pause`` and ``resume``: an operator stops the copying of a mirror, or of one topic, until it is resumed. Kept in the ledger."""

from __future__ import annotations

import time

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.errors import UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.host import operator
from mirror_pipeline.model import Decision, DecisionKind
from mirror_pipeline.operations.state.ledger_view import ledger_view
from mirror_pipeline.reports import PauseReport
from mirror_pipeline.topics.lanes import select_topics
from mirror_pipeline.topics.pauses import WHOLE_MIRROR, paused_topics


def pause(flow: Flow, topic: str | None) -> PauseReport:
    """See :meth:`Mirror.pause`."""
    return _decide(flow, topic, DecisionKind.PAUSED)


def resume(flow: Flow, topic: str | None) -> PauseReport:
    """See :meth:`Mirror.resume`."""
    return _decide(flow, topic, DecisionKind.RESUMED)


def _decide(flow: Flow, topic: str | None, kind: DecisionKind) -> PauseReport:
    """Every lane is told, also one that has not run yet or is configured no longer: which one copies a topic may not be known."""
    if topic is not None:
        known = ledger_view(flow.lane_stores()).kept
        if topic not in known and topic not in select_topics(flow.config, flow.settings, {topic}).topics:
            raise UsageError(f"mirror {flow.name} does not select topic {topic}", hint="`mirror plan` shows which topics it selects")
    earlier: list[Decision] = []
    row = Decision(topic or WHOLE_MIRROR, -1, "", kind, 0, 0, "", operator(), int(time.time() * 1000))
    for lane in sorted({*flow.lanes, *(store.lane for store in flow.lane_stores())}):
        store = open_lane(flow.config.buffer, flow.name, lane)
        Ledger(store, durable=flow.config.buffer.durable).ensure()
        decisions = Decisions(store, durable=flow.config.buffer.durable)
        earlier += decisions.all()
        decisions.add([row])
    stood = bool(paused_topics(earlier, {topic} if topic is not None else {decision.topic for decision in earlier}))
    return PauseReport(flow.name, topic, kind is DecisionKind.PAUSED, row.decided_by, row.at / 1000, stood)
