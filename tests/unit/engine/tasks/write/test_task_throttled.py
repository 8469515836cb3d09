"""A broker under a producer quota: one request at a time, and the lease counts after the wait, not before it."""

from __future__ import annotations

import time

import pytest

from mirror_pipeline.engine.tasks.write.task import _fill, _unmuted
from mirror_pipeline.kafka.produce import ProduceAnswer
from tests.support.write_tasks import YOUNG, acknowledge, lane_of, line_of, task


def test_a_task_whose_lease_ends_while_it_is_throttled_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = lane_of([1, 1])
    line, connection = line_of(lane)
    deadline = time.monotonic() + 0.05
    monkeypatch.setattr(connection, "wait_out_throttle", lambda: time.sleep(0.1))
    _fill(line, task(), deadline)
    assert not connection.requests
    assert (lane.stopped, lane.outcome_unknown, lane.acked) == (True, False, 0)


def test_one_request_at_a_time_goes_to_a_broker_that_throttles() -> None:
    lane = lane_of([1] * 9)
    line, connection = line_of(lane)
    acknowledge(lane, ProduceAnswer(0, 0, -1, 0, None), 1, newest=YOUNG)
    connection.throttle = 3.0
    _fill(line, task(), time.monotonic() + 60)
    assert len(connection.requests) == 1


def test_a_broker_that_throttles_does_not_hold_up_another() -> None:
    first, second = line_of(lane_of([1])), line_of(lane_of([1]))
    assert _unmuted([first[0], second[0]]) == [first[0], second[0]]
    first[1].muted = 3.0
    assert _unmuted([first[0], second[0]]) == [second[0]]
    second[1].muted = 2.0
    assert _unmuted([first[0], second[0]]) == [second[0]]
