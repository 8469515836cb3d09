"""What a produce task sends, when it stops, and what it takes for written."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from mirror_pipeline.engine.tasks.write import task as module
from mirror_pipeline.engine.tasks.write.messages import PartitionWork
from mirror_pipeline.engine.tasks.write.task import MEMORY_SECONDS, _fill, _Link, _next_request, _sequenced, _Slot, run_write
from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.codes import CODES, Action, after_produce
from mirror_pipeline.kafka.produce import ProduceAnswer
from mirror_pipeline.kafka.records.batch import headers
from mirror_pipeline.model import Position, SpanRef
from tests.support.write_tasks import FORGOTTEN, STAMP, TARGET, Payloads, acknowledge, batches, lane_of, line_of, task, work_of

"""Brokers may have forgotten the producer of records up to the first time."""
ERRORS = sorted(code for code in CODES if code and CODES[code].action is not Action.NONE)
















@pytest.mark.parametrize("hours", [2, -2])
def test_a_worker_whose_clock_is_ahead_sends_once_its_driver_knows(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """The first task cannot tell a fast clock from a late start. It says what it saw, and the next one sends."""
    sent: list[float] = []
    monkeypatch.setattr(module, "_send_all", lambda task, slots, *, deadline: sent.append(deadline) or {})
    first = replace(task(), issued=time.time() - hours * 3600)
    result = run_write(first)
    assert (len(sent), round(result.ahead / 3600)) == (0 if hours > 0 else 1, hours)
    known = {result.host: result.ahead}
    run_write(replace(first, ahead=known))
    assert len(sent) == (1 if hours > 0 else 2)
    run_write(replace(first, issued=first.issued - 61, ahead=known))  # as old by the driver's clock as its lease
    assert len(sent) == (1 if hours > 0 else 2)


def stamps(lane: _Slot) -> list[tuple[int, int, int]]:
    found = []
    for batch in lane.batches:
        _, header = next(headers(batch.head + bytes(batch.rest)))
        found.append((header.producer_id, header.producer_epoch, header.base_sequence))
    return found


def test_every_batch_carries_the_number_of_records_before_it() -> None:
    assert stamps(lane_of([2, 3, 1])) == [(4711, 3, 0), (4711, 3, 2), (4711, 3, 5)]
    assert [sequence for *_, sequence in stamps(lane_of([2, 3, 1], ordinal=2**31 - 2))] == [2**31 - 2, 0, 3]


def test_the_numbers_go_on_from_span_to_span() -> None:
    spans = tuple(SpanRef("t", 0, "id", 0, 6 * n, 6 * n + 6, 6, 3, 1, 0, 0, (), "p", n) for n in range(2))
    work = PartitionWork(TARGET, spans, Position(2, 2, 2))
    payloads = Payloads(b"".join(batches([2, 3, 1])))
    lane = _Slot(work, _sequenced(work, payloads, STAMP))  # type: ignore[arg-type]
    assert [sequence for *_, sequence in stamps(lane)] == [2, 5, 6, 8, 11]
    assert payloads.released == list(spans), "a span that was sent needs no memory"


def test_a_span_that_ends_within_a_batch_is_damaged() -> None:
    sending = _sequenced(work_of([2, 2]), Payloads(b"".join(batches([2, 2]))[:-1]), STAMP)  # type: ignore[arg-type]
    next(sending)
    with pytest.raises(CorruptBatch, match="middle of a batch"):
        next(sending)


def test_a_batch_is_never_sent_in_part() -> None:
    with pytest.raises(CorruptBatch, match="only a part"):
        next(_sequenced(work_of([2, 2], at=1, ordinal=1), Payloads(b"".join(batches([2, 2]))), STAMP))  # type: ignore[arg-type]


def test_what_is_on_the_target_is_not_sent_again() -> None:
    assert [sequence for *_, sequence in stamps(lane_of([2, 3, 1], at=2, ordinal=2))] == [2, 5]


def test_damage_done_in_the_buffer_is_not_hidden_under_a_new_checksum() -> None:
    data = bytearray(b"".join(batches([2, 2])))
    data[-1] ^= 1
    sending = _sequenced(work_of([2, 2]), Payloads(bytes(data)), STAMP)  # type: ignore[arg-type]
    next(sending)
    with pytest.raises(CorruptBatch):
        next(sending)


def test_one_batch_is_on_its_way_before_the_first_answer_and_five_later() -> None:
    lane = lane_of([1] * 9)
    line, _ = line_of(lane)
    assert sendable(line) == 1
    acknowledge(lane, ProduceAnswer(0, 0, -1, 0, None), 1)
    assert sendable(line) == 5


def sendable(line: _Link) -> int:
    """Batches that go out before an answer is waited for."""
    lane = line.slots[0]
    while _next_request(line, 2**20):
        lane.in_flight += 1
    lane.in_flight, count = 0, lane.in_flight
    return count


def test_of_old_records_one_batch_at_a_time_is_on_its_way() -> None:
    lane = lane_of([1] * 9)
    line, _ = line_of(lane)
    acknowledge(lane, ProduceAnswer(0, 0, -1, 0, None), 1, newest=FORGOTTEN)
    assert sendable(line) == 1


def test_after_a_pause_one_batch_is_on_its_way_again() -> None:
    lane = lane_of([1] * 9)
    line, _ = line_of(lane)
    acknowledge(lane, ProduceAnswer(0, 0, -1, 0, None), 1)
    lane.acked_at -= MEMORY_SECONDS
    assert sendable(line) == 1


def test_nothing_is_sent_once_the_lease_is_over() -> None:
    lane = lane_of([1, 1])
    line, connection = line_of(lane)
    _fill(line, task(), time.monotonic() - 0.001)
    assert not connection.requests
    assert (lane.stopped, lane.outcome_unknown, lane.acked) == (True, False, 0)
    lane = lane_of([1, 1])
    line, connection = line_of(lane)
    _fill(line, task(), time.monotonic() + 60)
    assert len(connection.requests) == 1


@pytest.mark.parametrize("code", ERRORS)
def test_no_error_counts_as_written(code: int) -> None:
    lane = lane_of([2])
    acknowledge(lane, ProduceAnswer(code, 0, -1, 0, None), 2)
    outcome: Any = lane.outcome()
    assert outcome.records == 0
    assert lane.stopped
    assert bool(outcome.error) != bool(outcome.halt)
    if after_produce(code) in (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME):
        assert outcome.outcome_unknown
    else:
        assert outcome.halt


def test_a_missing_answer_leaves_the_outcome_unknown() -> None:
    lane = lane_of([2])
    acknowledge(lane, None, 2)
    assert (lane.outcome_unknown, lane.acked) == (True, 0)


def test_after_a_refusal_later_answers_count_for_nothing() -> None:
    lane = lane_of([1, 1, 1])
    for answer in (ProduceAnswer(0, 0, -1, 0, None), ProduceAnswer(6, -1, -1, 0, None), ProduceAnswer(0, 1, -1, 0, None)):
        acknowledge(lane, answer, 1)
    assert (lane.acked, lane.outcome_unknown) == (1, True)


@pytest.mark.parametrize("base_offset", [0, 6, 8])
def test_another_offset_than_expected_is_another_writer(base_offset: int) -> None:
    lane = lane_of([1], ordinal=7)
    acknowledge(lane, ProduceAnswer(0, base_offset, -1, 0, None), 1)
    assert lane.halt is not None
    assert (lane.acked, lane.halt.code) == (0, "foreign_writer")


def shared_lane(counts: list[int], at: int) -> _Slot:
    lane = lane_of(counts, ordinal=at)
    lane.work = replace(lane.work, shared=True)
    return lane


def test_in_a_shared_topic_the_answers_say_where_the_records_lie() -> None:
    lane = shared_lane([2, 3, 1, 1], 7)
    for base_offset, records in ((7, 2), (9, 3), (20, 1), (30, 1)):
        acknowledge(lane, ProduceAnswer(0, base_offset, -1, 0, None), records)
    assert not lane.stopped
    outcome: Any = lane.outcome()
    assert (outcome.records, outcome.landed) == (7, ((7, 5), (20, 1), (30, 1)))


def test_in_a_shared_topic_an_offset_that_we_already_have_stops_the_partition() -> None:
    lane = shared_lane([2, 1], 7)
    acknowledge(lane, ProduceAnswer(0, 12, -1, 0, None), 2)
    acknowledge(lane, ProduceAnswer(0, 13, -1, 0, None), 1)
    assert lane.halt is not None and lane.halt.code == "foreign_writer"
    lane = shared_lane([2], 7)
    acknowledge(lane, ProduceAnswer(0, 6, -1, 0, None), 2)
    assert lane.halt is not None and lane.acked == 0
