"""A source that throttles: answers that a quota holds back are no empty ones, of which a task takes so many only."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.read.answer_handler import EMPTY_ANSWERS_BEFORE_GIVING_UP
from mirror_pipeline.engine.tasks.read.messages import ReadTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.short_fetch import ShortFetch, Throttle
from mirror_pipeline.kafka.wire.connection import Connection
from mirror_pipeline.model import OffsetRange
from tests.support.read_tasks import Written, handler_of
from tests.support.scripted_broker import ScriptedBroker
from tests.support.throttling import PLACE, Throttling

pytestmark = pytest.mark.timeout(60)


def test_answers_that_a_quota_holds_back_are_waited_for() -> None:
    broker = Throttling(EMPTY_ANSWERS_BEFORE_GIVING_UP + 5, milliseconds=4)
    rules = RangeRules(OffsetRange("t", 0, 0, 3, 10**6, "id"), 10**6, True, False)
    task = ReadTask(LaneStore("/nowhere"), ClusterSettings("east", ("a:1",)), 0, 0, (rules,), 1 << 20, 1 << 20, 10**9, 5.0, 5.0, False)
    written = Written()
    with ScriptedBroker(broker.script) as served, Connection("127.0.0.1", served.port) as connection:
        client = SimpleNamespace(round_trip=0.0, connection=lambda *_, **__: connection)
        handler, outcomes = handler_of(task, written, client)
        transport = ShortFetch(task, client, handler, outcomes, Throttle(None))  # type: ignore[arg-type]
        transport.open({4: [PLACE]})
        transport.run(time.monotonic() + 30)
    handler.flush()
    (outcome,) = outcomes.results()
    assert (outcome.error, outcome.next, [(span.start, span.end) for span in written.spans]) == ("", 3, [(0, 3)])
