"""Halts of a running lane: which are tried again and when, and what a trial resets."""

from __future__ import annotations

import logging

import pytest

from mirror_pipeline.engine.driver import state as module
from mirror_pipeline.engine.driver.state import LaneState, PartitionState, TopicRun, WriteSide
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.halts import Halt, other_cluster, recreated, refused, refused_topic
from mirror_pipeline.model import Position, TopicPartition

DENIED = refused(TopicPartition("t", 1), BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", "no"))
DENIED_THERE = refused_topic("t", BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", "no"))
RECREATED = recreated("t", "old", "new")


class Clock:
    """Time that passes when it is told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def state() -> LaneState:
    made = LaneState()
    run = TopicRun("t", "east.t", "i", target_checked=True)
    for number in range(3):
        part = PartitionState(TopicPartition("t", number), TopicPartition("east.t", number), "i", 0, WriteSide(Position(0, 0, 0)))
        part.writing.outcome_unknown = False
        run.partitions[number] = part
    made.topics["t"] = run
    return made


def test_a_halt_that_may_pass_is_tried_after_ten_seconds_then_less_often(state: LaneState, clock: Clock) -> None:
    run, pauses = state.topics["t"], []
    for _ in range(7):
        state.halt("t", DENIED, sendable=True)
        began = clock.now
        while run.halted is not None:
            clock.now += 1
            state.try_again()
        pauses.append(clock.now - began)
        clock.now += 2
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    clock.now += 400
    state.try_again()
    state.halt("t", DENIED, sendable=True)
    assert run.trial.at - clock.now == 10


def test_one_partition_goes_ahead_and_nothing_is_sent_before_the_target_is_checked(state: LaneState, clock: Clock) -> None:
    run = state.topics["t"]
    state.halt("t", DENIED_THERE.at(TopicPartition("t", 1)))
    assert state.sendable() == []
    clock.now += 10
    state.try_again()
    assert not run.target_checked and [part.writing.outcome_unknown for part in state.sendable()] == [True] * 3
    assert [part.source.partition for part in state.ready()] == [1]
    assert [part.writing.retry_at - clock.now for part in state.sendable()] == [5, 0 - clock.now, 5]


def test_a_refusal_of_the_source_leaves_sending_alone(state: LaneState, clock: Clock) -> None:
    run = state.topics["t"]
    state.halt("t", DENIED, sendable=True)
    clock.now += 10
    state.try_again()
    assert run.target_checked and not any(part.writing.outcome_unknown for part in state.sendable())


@pytest.mark.parametrize("halt", [RECREATED, other_cluster("t", "east", "a", "b")])
def test_a_halt_that_protects_data_stays(state: LaneState, clock: Clock, halt: Halt) -> None:
    state.halt("t", halt)
    clock.now += 10_000
    state.try_again()
    assert state.topics["t"].halted is halt


def test_what_protects_data_takes_the_place_of_what_may_pass(state: LaneState, clock: Clock) -> None:
    run = state.topics["t"]
    state.halt("t", DENIED)
    state.halt("t", RECREATED, sendable=True)
    state.halt("t", DENIED)
    assert run.halted is RECREATED and not run.sendable


def test_it_is_logged_when_it_begins_and_when_it_is_over(
    state: LaneState, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            state.halt("t", DENIED, sendable=True)
            clock.now += 50
            state.try_again()
        clock.now += 6
        state.try_again()
    assert [record.message.split()[0] for record in caplog.records] == ["topic_halted", "topic_resumed"]


def test_a_search_that_fails_is_logged_once_until_it_succeeds(state: LaneState, caplog: pytest.LogCaptureFixture) -> None:
    for failure in ("refused", "refused", "", "down"):
        state.searched(failure)
    assert len(caplog.records) == 2 and state.search_failure == "down"
