"""Partitions that join a generation continue after all that earlier ones put on the target, whichever generation that was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.topics.continuing import continued
from mirror_pipeline.engine.driver.topics.generations import drained
from mirror_pipeline.engine.driver.topics.join import run_of
from mirror_pipeline.errors import TopicHalted
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, headers, restamp
from mirror_pipeline.model import Incarnation, Send, Stamp, TopicPartition
from tests.model.cluster import ModelClient, ModelCluster
from tests.model.processes import Clock
from tests.support.lane_context import LIFE, context
from tests.support.write_tasks import batches

__all__ = ["context"]

OURS = Stamp(4711, 0)
SIX, TWO = (replace(LIFE, incarnation=name, starts=dict.fromkeys(range(n), 0), target_starts={}) for name, n in (("six", 6), ("two", 2)))


@pytest.fixture
def target(context: LaneContext) -> ModelCluster:
    context.state.stamp = OURS
    return ModelCluster(Clock(), "west", "east.t", 8, "target-id")


def put(target: ModelCluster, partition: int, count: int, sequence: int, stamp: Stamp = OURS) -> None:
    batch = memoryview(batches([count])[0])
    _, header = next(headers(batch))
    raw = restamp(header, batch, stamp, sequence) + batch[HEADER_BYTES:]
    assert target.append(TopicPartition("east.t", partition), raw)[0] == 0


def sent(incarnation: str, partition: int, start: int, end: int, at: int, ordinal: int, topic: str = "t") -> Send:
    return Send(topic, partition, incarnation, start, end, "east.t", at, at + end - start, end - start, ordinal, 0)


def ends(target: ModelCluster) -> Mapping[int, int]:
    return {tp.partition: log.end for tp, log in target.logs.items()}


def join(context: LaneContext, target: ModelCluster, generation: Incarnation) -> dict[int, tuple[int, int]]:
    """Target offset and ordinal at which each partition begins; the generation is written down."""
    earlier = context.ledger.generations().values()
    begun = continued(context, ModelClient(target), generation, ends(target), earlier)  # type: ignore[arg-type]
    context.ledger.add_incarnation(begun)
    return {number: (begun.target_starts[number], begun.ordinals.get(number, 0)) for number in begun.starts}


def test_a_topic_that_shrank_and_grew_continues_behind_the_generation_that_had_the_partitions(
    context: LaneContext, target: ModelCluster
) -> None:
    assert join(context, target, SIX) == dict.fromkeys(range(6), (0, 0))
    for number in range(6):
        put(target, number, 3, 0)
    context.ledger.record(0, [sent("six", number, 0, 3, 0, 0) for number in range(6)])
    assert join(context, target, TWO) == dict.fromkeys(range(2), (3, 3))
    for number in range(2):
        put(target, number, 2, 3)
    context.ledger.record(1, [sent("two", number, 0, 2, 3, 3) for number in range(2)])
    begun = context.ledger.incarnations()["t"]
    grown = replace(begun, starts=dict.fromkeys(range(8), 0))
    recreated = replace(grown, incarnation="eight", target_starts={}, ordinals={})
    expected = dict.fromkeys(range(2, 6), (3, 3)) | dict.fromkeys((6, 7), (0, 0))
    assert join(context, target, grown) == expected | dict.fromkeys(range(2), (3, 3)), "what is known stays as it is"
    assert join(context, target, recreated) == expected | dict.fromkeys(range(2), (5, 5))


def test_the_tail_of_the_log_counts_beyond_the_ledger(context: LaneContext, target: ModelCluster) -> None:
    join(context, target, SIX)
    put(target, 4, 3, 0)
    put(target, 4, 2, 3)  # sent by a run that was killed before it wrote it down
    context.ledger.record(0, [sent("six", 4, 0, 3, 0, 0)])
    assert join(context, target, replace(TWO, starts={4: 0, 5: 0})) == {4: (5, 5), 5: (0, 0)}


def test_another_source_topic_that_was_copied_there_counts_too(context: LaneContext, target: ModelCluster) -> None:
    join(context, target, replace(SIX, topic="before"))
    put(target, 0, 3, 0)
    context.ledger.record(0, [sent("six", 0, 0, 3, 0, 0, "before")])
    assert join(context, target, replace(TWO, starts={0: 0})) == {0: (3, 3)}


@pytest.mark.parametrize("change", [{"producer_epoch": 1}, {"target_topic_id": "another"}])
def test_another_epoch_or_another_target_topic_begins_at_sequence_0(
    context: LaneContext, target: ModelCluster, change: dict[str, int | str]
) -> None:
    join(context, target, SIX)
    put(target, 0, 3, 0)
    context.ledger.record(0, [sent("six", 0, 0, 3, 0, 0)])
    assert join(context, target, replace(TWO, **change)) == {0: (3, 0), 1: (0, 0)}  # type: ignore[arg-type]


def test_records_of_others_behind_an_earlier_generation_halt_the_topic(context: LaneContext, target: ModelCluster) -> None:
    join(context, target, SIX)
    put(target, 0, 3, 0)
    put(target, 0, 1, 0, Stamp(9, 0))
    context.ledger.record(0, [sent("six", 0, 0, 3, 0, 0)])
    with pytest.raises(TopicHalted, match="did not write") as found:
        join(context, target, TWO)
    assert (found.value.halt.code, found.value.halt.topic) == ("foreign_writer", "t")


def test_the_next_generation_waits_until_the_ledger_names_all_that_was_sent(context: LaneContext) -> None:
    run = run_of(LIFE, context.ledger.positions(), None, exact=False)
    part = run.partitions[0]
    part.writing.outcome_unknown = False
    assert drained(run, context.ledger.positions())
    part.writing.position = replace(part.writing.position, source_next=12, target_next=2, ordinal=2)
    assert not drained(run, context.ledger.positions())
    context.ledger.record(0, [Send("t", 0, "now", 10, 12, "east.t", 0, 2, 2, 0, 0)])
    assert drained(run, context.ledger.positions())
