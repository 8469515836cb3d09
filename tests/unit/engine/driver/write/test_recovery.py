"""What a target's own log says of what lies there; the broker is a model, the bytes are real."""

from __future__ import annotations

import pytest

from mirror_pipeline.engine.driver.write.recovery import NotReplicated, read_tail
from mirror_pipeline.errors import ConnectionLost, TopicHalted
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, headers, restamp
from mirror_pipeline.model import Position, Stamp, TopicPartition
from tests.model.cluster import ModelClient, ModelCluster
from tests.model.processes import Clock
from tests.support.write_tasks import batches

TARGET = TopicPartition("east.t", 0)
OURS, THEIRS = Stamp(4711, 0), Stamp(9, 0)
LAST = 2**31 - 1


class Target:
    """One partition and the client that asks about it."""

    def __init__(self) -> None:
        self.cluster = ModelCluster(Clock(), "west", TARGET.topic, 1, "id")
        self.log = self.cluster.logs[TARGET]

    def put(self, count: int, sequence: int, stamp: Stamp = OURS) -> None:
        batch = memoryview(batches([count])[0])
        _, header = next(headers(batch))
        assert self.cluster.append(TARGET, restamp(header, batch, stamp, sequence) + batch[HEADER_BYTES:])[0] == 0

    def records(self, *, at: int = 0, ordinal: int | None = None, stamp: Stamp | None = OURS) -> int:
        position = Position(at, at, at if ordinal is None else ordinal)
        return read_tail(ModelClient(self.cluster), TARGET, position, stamp, timeout=0.0).records  # type: ignore[arg-type]


def test_our_records_behind_the_position_are_counted() -> None:
    target = Target()
    assert target.records() == 0
    target.put(2, 0)
    target.put(3, 2)
    assert (target.records(), target.records(at=2), target.records(at=5)) == (5, 3, 0)


def test_sequences_are_followed_over_their_end() -> None:
    target = Target()
    target.put(2, LAST)
    target.put(1, 1)
    assert target.records(ordinal=LAST) == 3
    assert target.records(ordinal=LAST + 2**31) == 3


def test_a_forgotten_producer_leaves_the_log_to_speak() -> None:
    target = Target()
    target.put(2, 0)
    target.log.producers.clear()
    assert target.records() == 2


@pytest.mark.parametrize("stamp", [OURS, None])
def test_records_of_another_writer_halt(stamp: Stamp | None) -> None:
    target = Target()
    target.put(1, 0, THEIRS)
    with pytest.raises(TopicHalted) as found:
        target.records(stamp=stamp)
    assert found.value.halt.code == "foreign_writer"


def test_a_missing_batch_halts() -> None:
    target = Target()
    target.put(1, 0)
    target.log.producers.clear()  # only then does a broker take what does not follow
    target.put(1, 2)
    with pytest.raises(TopicHalted) as found:
        target.records()
    assert found.value.halt.code == "sequence_gap"


def test_a_log_that_ends_before_the_position_halts() -> None:
    target = Target()
    target.put(2, 0)
    with pytest.raises(TopicHalted) as found:
        target.records(at=3)
    assert found.value.halt.code == "target_truncated"


def test_a_replicated_log_that_lacks_what_the_leader_remembers_is_not_put_down_to_its_replicas() -> None:
    target = Target()
    target.put(2, 0)
    with pytest.raises(ConnectionLost, match="remembers sequence 1 of this mirror, which its log does not hold") as found:
        target.records(at=2, ordinal=0)
    assert not isinstance(found.value, NotReplicated)


def test_what_is_on_the_leader_alone_is_waited_for() -> None:
    target = Target()
    target.put(2, 0)
    target.cluster.slow_replicas = True
    target.put(2, 2)
    for forgotten in (False, True):
        if forgotten:
            target.log.producers.clear()
        with pytest.raises(NotReplicated):
            target.records()
    target.cluster.replicate()
    assert target.records() == 4
