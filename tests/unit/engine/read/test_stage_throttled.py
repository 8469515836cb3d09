"""A source that throttles: answers that a quota holds back are no empty ones, of which a task takes so many only."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.read.rules import RangeRules
from mirror_pipeline.engine.read.task import EMPTY_ANSWERS_BEFORE_GIVING_UP, ReadTask, _Slot, _TaskRun
from mirror_pipeline.kafka.connection import Connection
from mirror_pipeline.model import OffsetRange
from tests.support.read_tasks import Written
from tests.support.scripted_broker import ScriptedBroker
from tests.support.throttling import PLACE, Throttling

pytestmark = pytest.mark.timeout(60)


def test_answers_that_a_quota_holds_back_are_waited_for() -> None:
    broker = Throttling(EMPTY_ANSWERS_BEFORE_GIVING_UP + 5, milliseconds=4)
    rules = RangeRules(OffsetRange("t", 0, 0, 3, 10**6, "id"), 10**6, True, False)
    task = ReadTask(LaneStore("/nowhere"), ClusterSettings("east", ("a:1",)), 0, 0, (rules,), 1 << 20, 1 << 20, 10**9, 5.0, 5.0, False)
    written = Written()
    staging = _TaskRun(task, written)  # type: ignore[arg-type]
    client = SimpleNamespace(round_trip=0.0)
    with ScriptedBroker(broker.script) as served, Connection("127.0.0.1", served.port) as connection:
        staging._fetch_short(client, [_Slot(4, connection, [PLACE])], time.monotonic() + 30)  # type: ignore[arg-type]
    staging._flush()
    (outcome,) = staging.outcomes()
    assert (outcome.error, outcome.next, [(span.start, span.end) for span in written.spans]) == ("", 3, [(0, 3)])
