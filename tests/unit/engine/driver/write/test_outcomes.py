"""What one answer of the target asks for is looked at again before it halts a topic, and one broker's trouble stays its own."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import Any

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.context import LaneContext, Losses
from mirror_pipeline.engine.driver.progress import report_of
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.state import PartitionState, TopicRun
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.driver.write.ledger_writer import LedgerWriter
from mirror_pipeline.engine.driver.write.outcomes import SendOutcomes
from mirror_pipeline.engine.driver.write.recovery import NotReplicated, Tail
from mirror_pipeline.engine.driver.write.sender import SILENT_TARGET_SECONDS, Sender
from mirror_pipeline.engine.driver.write.target_health import TargetHealth
from mirror_pipeline.engine.tasks.write.messages import PartitionOutcome, PartitionWork, WriteResult
from mirror_pipeline.engine.tasks.write.task import _fill, _links
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.halts import Halt, displaced
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic
from tests.support.lane_context import LIFE, context, stage
from tests.support.write_tasks import lane_of, line_of, task

__all__ = ["context"]

TARGET = TopicPartition("east.t", 0)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "SECOND_LOOK_SECONDS", 0.0)


class Client:
    """Knows leaders, and nothing else is asked of it."""

    def __init__(self, **leaders: int) -> None:
        self._leaders = leaders

    def known_leader(self, target: TopicPartition) -> int | None:
        return self._leaders.get(target.topic)


def lane(context: LaneContext, client: Any = None) -> tuple[SendOutcomes, PartitionState]:
    context.state.topics |= resumed_runs(context, {"t": LIFE}, {"t": LaneTopic("t", "east.t")})
    outcomes = SendOutcomes(context, client, TargetHealth(context, client), LedgerWriter(context), Losses())
    return outcomes, context.state.topics["t"].partitions[0]


def halted(code: str) -> Halt:
    return Halt("east.t", code, code=code, partition=0)


def code_of(context: LaneContext) -> str:
    halt = context.state.topics["t"].halted
    return halt.code if halt is not None else ""


@pytest.mark.parametrize("code", ["target_truncated", "foreign_writer", "sequence_gap"])
def test_no_topic_halts_by_one_answer_of_the_target(context: LaneContext, code: str) -> None:
    outcomes, part = lane(context)
    outcomes._apply_tail(part, halted(code))
    assert (code_of(context), part.writing.outcome_unknown) == ("", True)
    outcomes._apply_tail(part, ConnectionLost("nobody answers"))
    outcomes._apply_tail(part, NotReplicated("not yet"))
    assert code_of(context) == ""
    outcomes._apply_tail(part, halted(code))
    assert code_of(context) == code


def test_a_second_answer_that_finds_nothing_clears_the_first(context: LaneContext) -> None:
    outcomes, part = lane(context)
    outcomes._apply_tail(part, halted("target_truncated"))
    outcomes._apply_tail(part, Tail(TARGET, 0, part.writing.position.target_next))
    assert (part.writing.suspect, part.writing.outcome_unknown) == (None, False)
    outcomes._apply_tail(part, halted("target_truncated"))
    assert code_of(context) == ""


def test_an_offset_that_was_not_expected_is_for_the_log_to_judge(context: LaneContext) -> None:
    outcomes, part = lane(context)
    outcomes._apply_outcome(part, PartitionOutcome(TARGET, 0, 0, True, halt=displaced(TARGET, 9, 5)), [])
    assert (code_of(context), part.writing.outcome_unknown) == ("", True)
    outcomes._apply_tail(part, halted("foreign_writer"))
    assert code_of(context) == "foreign_writer"


def test_what_retention_has_deleted_clears_nobody(context: LaneContext) -> None:
    outcomes, part = lane(context)
    outcomes._apply_outcome(part, PartitionOutcome(TARGET, 0, 0, True, halt=displaced(TARGET, 9, 5)), [])
    outcomes._apply_tail(part, Tail(TARGET, 5, part.writing.position.target_next + 5, read=False))
    assert code_of(context) == "foreign_writer"


def test_a_fault_of_ours_over_one_partition_halts_its_topic(
    context: LaneContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Met in the middle of a task: it goes on with the other partitions, and the traceback is kept."""
    lanes = [lane_of([1, 1]), lane_of([1, 1])]
    line, connection = line_of(lanes[0])
    line.slots.append(lanes[1])

    def fault() -> Any:
        raise IndexError("list index out of range")
        yield

    lanes[0].batches = fault()
    _fill(line, task(), time.monotonic() + 60)
    assert lanes[0].halt is not None
    assert (lanes[0].halt.code, lanes[0].stopped, lanes[0].outcome_unknown) == ("internal", True, False)
    assert not lanes[1].stopped and len(connection.requests) == 1
    outcomes, part = lane(context)
    outcomes._apply_outcome(part, lanes[0].outcome(), [])
    assert code_of(context) == "internal"
    assert "in fault" in caplog.text and "IndexError" in caplog.text


def test_partitions_of_one_broker_wait_alone(context: LaneContext) -> None:
    """Only where no other broker is known to be well is the target lost."""
    outcomes, part = lane(context, Client(**{"east.t": 1}))
    part.writing.outcome_unknown = False
    assert outcomes._health.others_well({2, None})
    assert not outcomes._health.others_well({1})
    part.writing.outcome_unknown = True
    assert not outcomes._health.others_well({2})


def failing(context: LaneContext, outcomes: SendOutcomes, part: PartitionState, *, answered: bool) -> None:
    """A produce task comes back with an error of the one partition that it was given."""
    if not part.pending:
        stage(context, 0, 10, 20, "now")
        part.pending.extend(context.spans.pending({part.source: 10}))
    work = PartitionWork(TARGET, tuple(part.pending), part.writing.position)
    outcome = PartitionOutcome(TARGET, 0, 0, outcome_unknown=True, error="east.t[0]: NOT_ENOUGH_REPLICAS", answered=answered)
    outcomes.apply_results([work], [WriteResult((outcome,), 0.1)], time.monotonic())


def test_what_a_broker_answers_about_one_topic_is_not_the_loss_of_the_target(context: LaneContext) -> None:
    outcomes, part = lane(context, Client(**{"east.t": 1}))
    failing(context, outcomes, part, answered=True)
    assert (context.state.target_down, part.writing.outcome_unknown) == ("", True)
    with pytest.raises(ConnectionLost):
        failing(context, outcomes, part, answered=False)


@pytest.mark.parametrize("once", [True, False])
def test_a_partition_that_the_target_does_not_take_is_left_by_a_run_that_ends(context: LaneContext, once: bool) -> None:
    """Its tail is read well each time, which is no progress: only records that land end its patience."""
    context.once = once
    context.mirror = replace(context.mirror, engine=replace(context.mirror.engine, target_wait=0.05))
    outcomes, part = lane(context, Client(**{"east.t": 1}))
    failing(context, outcomes, part, answered=True)
    outcomes._health.give_up()
    assert context.state.sendable() == [part]
    time.sleep(0.1)
    outcomes._apply_tail(part, Tail(TARGET, 0, 0))
    assert part.writing.error and not part.writing.outcome_unknown
    outcomes._health.give_up()
    assert context.state.left() == ([part] if once else [])
    assert (report_of(context, seconds=1.0).topics[0].state, "NOT_ENOUGH_REPLICAS" in report_of(context, seconds=1.0).topics[0].reason) == (
        "behind", True
    )  # fmt: skip


def test_the_patience_of_a_partition_begins_anew_with_records_that_land_and_with_a_target_that_was_gone(context: LaneContext) -> None:
    outcomes, part = lane(context, Client(**{"east.t": 1}))
    failing(context, outcomes, part, answered=True)
    assert part.writing.waits_since is not None
    outcomes._apply_tail(part, Tail(TARGET, 5, 5))
    assert (part.writing.waits_since, part.writing.error) == (None, "")
    failing(context, outcomes, part, answered=True)
    context.state.target_lost("nobody answers")
    outcomes._health.give_up()
    assert context.state.left() == []
    outcomes._health.answered()
    assert (part.writing.waits_since, context.state.target_down) == (None, "")


def test_what_is_given_up_does_not_keep_a_next_generation_waited_for(context: LaneContext) -> None:
    _, part = lane(context)
    context.state.topics["t"].draining, context.state.unready["t"] = True, "begins later"
    part.writing.failed("refused", delay=0.0)
    context.state.leave(part)
    assert (context.state.unready, context.state.sendable()) == ({}, [])


def test_a_broker_may_be_silent_for_a_short_time_only_where_others_have_work(context: LaneContext) -> None:
    outcomes, part = lane(context, Client(**{"east.t": 1, "east.u": 2}))
    sender = Sender(context, outcomes._client, outcomes, Losses())
    stage(context, 0, 10, 20, "now")
    work = PartitionWork(TARGET, tuple(context.spans.pending({part.source: 10})), part.writing.position)
    assert sender._silence([work]) is None
    context.state.topics["u"] = TopicRun("u", "east.u", "now", {0: replace(part, target=TopicPartition("east.u", 0))})
    assert sender._silence([work]) == SILENT_TARGET_SECONDS
    part.writing.failures = 2
    assert sender._silence([work]) == 4 * SILENT_TARGET_SECONDS


def test_a_broker_that_a_task_found_silent_is_not_asked_for_tails(context: LaneContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else healthy partitions would wait for it twice: in the task, and when the tails are read."""
    lost: dict[int, str] = {}
    outcomes, part = lane(context, Client(**{"east.t": 1}))
    monkeypatch.setattr(outcomes._health.silent, "lost", lambda node, why: lost.update({node: why}))
    stage(context, 0, 10, 20, "now")
    work = PartitionWork(TARGET, tuple(context.spans.pending({part.source: 10})), part.writing.position)
    outcome = PartitionOutcome(TARGET, 0, 0, True, error="timed out")
    with pytest.raises(ConnectionLost):
        outcomes.apply_results([work], [WriteResult((outcome,), 3.0, {1: "timed out"})], time.monotonic())
    assert lost == {1: "timed out"}


def test_a_task_names_the_broker_that_does_not_answer() -> None:
    """A listener that accepts and says nothing; the other broker's partitions are sent."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = WireClient(ClusterSettings("west", (f"127.0.0.1:{mute.getsockname()[1]}",)), timeout=5.0)
        client._brokers, client._leaders = {7: ("127.0.0.1", mute.getsockname()[1])}, {TARGET: 7}
        silent: dict[int, str] = {}
        lanes = [lane_of([1])]
        assert _links(client, lanes, replace(task(), silence=0.2), silent) == []
        client.close()
    assert list(silent) == [7] and lanes[0].stopped
