"""What the log of a topic with several writers says of our records in it; the broker is a model, the bytes are real."""

from __future__ import annotations

import pytest

from mirror_pipeline.engine.driver.write.recovery import NotReplicated, Tail, read_tails
from mirror_pipeline.halts import Halt
from mirror_pipeline.kafka.answers import EARLIEST_TIME, OffsetAnswer
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, headers, restamp
from mirror_pipeline.model import Position, Stamp, TopicPartition
from tests.model.cluster import ModelClient, ModelCluster
from tests.model.processes import Clock
from tests.support.write_tasks import batches

TARGET = TopicPartition("all", 0)
OURS, THEIRS = Stamp(4711, 0), Stamp(9, 0)


class Trimmed(ModelCluster):
    """A cluster whose log begins at ``first``."""

    first = 0

    def offset_told(self, tp: TopicPartition, node: int, when: int) -> OffsetAnswer:
        return OffsetAnswer(self.first, -1, 0) if when == EARLIEST_TIME else super().offset_told(tp, node, when)


class Target:
    """One partition that two producers write, and the client that asks about it."""

    def __init__(self) -> None:
        self.cluster = Trimmed(Clock(), "west", TARGET.topic, 1, "id")
        self.log = self.cluster.logs[TARGET]

    def put(self, count: int, sequence: int, stamp: Stamp = OURS) -> None:
        batch = memoryview(batches([count])[0])
        _, header = next(headers(batch))
        assert self.cluster.append(TARGET, restamp(header, batch, stamp, sequence) + batch[HEADER_BYTES:])[0] == 0

    def delete_before(self, offset: int) -> None:
        """As retention does."""
        self.log.log[:] = [stored for stored in self.log.log if stored.base >= offset]
        self.cluster.first = offset

    def clean(self, *bases: int) -> None:
        """As the cleaner of a compacted topic does: the log start stays."""
        self.log.log[:] = [stored for stored in self.log.log if stored.base not in bases]

    def look(self, *, at: int = 0, ordinal: int = 0, sent: bool = True, stamp: Stamp | None = OURS) -> Tail | Halt | Exception:
        wanted = {TARGET: Position(at, at, ordinal)}
        return read_tails(ModelClient(self.cluster), wanted, stamp, timeout=0.0, shared={TARGET: sent})[TARGET]  # type: ignore[arg-type]

    def landed(self, **given: int) -> tuple[tuple[int, int], ...]:
        tail = self.look(**given)  # type: ignore[arg-type]
        assert isinstance(tail, Tail), tail
        assert tail.records == sum(count for _, count in tail.landed)
        return tail.landed


def mixed() -> Target:
    """Ours at 0-1, 5-7 and 8; theirs at 2-4 and 9-12."""
    target = Target()
    target.put(2, 0)
    target.put(3, 0, THEIRS)
    target.put(3, 2)
    target.put(1, 5)
    target.put(4, 3, THEIRS)
    return target


def test_our_records_are_found_among_the_others() -> None:
    target = mixed()
    assert target.landed() == ((0, 2), (5, 4))
    assert target.landed(at=2, ordinal=2) == ((5, 4),)
    assert target.landed(at=9, ordinal=6) == ()
    target.log.producers.clear()
    assert target.landed() == ((0, 2), (5, 4)), "the log speaks for a producer that was forgotten"


def test_without_a_producer_id_nothing_is_ours() -> None:
    tail = mixed().look(stamp=None)
    assert isinstance(tail, Tail) and tail.records == 0


def test_where_nothing_was_sent_the_log_is_not_read() -> None:
    target = mixed()
    target.delete_before(9)
    assert target.look(at=2, ordinal=2, sent=False) == Tail(TARGET, 0, 2)


def test_a_log_that_ends_before_the_position_halts_though_nothing_was_sent() -> None:
    for sent in (True, False):
        halt = mixed().look(at=20, ordinal=6, sent=sent)
        assert isinstance(halt, Halt) and halt.code == "target_truncated"


def test_a_batch_that_is_missing_or_there_twice_halts() -> None:
    for sequence in (7, 0):
        target = mixed()
        target.log.producers.clear()  # only then does a broker take what does not follow
        target.put(1, sequence)
        halt = target.look()
        assert isinstance(halt, Halt) and halt.code == "sequence_gap", sequence


def test_records_that_the_cleaner_took_are_counted_by_the_next_ones_sequence() -> None:
    target = mixed()
    target.clean(0, 5)
    assert target.landed() == ((3, 6),), "five records of ours before offset 8, by the sequence of the batch there"


def test_records_that_retention_deleted_are_counted_by_what_the_leader_remembers() -> None:
    target = mixed()
    target.delete_before(9)
    assert target.landed(at=2, ordinal=2) == ((5, 4),)
    target.log.producers.clear()
    halt = target.look(at=2, ordinal=2)
    assert isinstance(halt, Halt) and halt.code == "tail_deleted"
    assert "after offset 2" in halt.message


def test_what_is_on_the_leader_alone_is_waited_for() -> None:
    target = mixed()
    target.cluster.slow_replicas = True
    target.put(2, 6)
    for forgotten in (False, True):
        if forgotten:
            target.log.producers.clear()
        assert isinstance(target.look(), NotReplicated)
    target.cluster.replicate()
    assert target.landed() == ((0, 2), (5, 4), (13, 2))


@pytest.mark.parametrize("more", [1, 5])
def test_a_writer_that_does_not_stop_holds_nothing_up(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is longer after each look at its end than before: the scan needs to reach only what was there at first."""
    target = mixed()
    real = ModelClient.list_offsets

    def grows(self: ModelClient, *given: object, **more_given: object) -> object:
        found = real(self, *given, **more_given)  # type: ignore[arg-type]
        target.put(more, 0, Stamp(100 + len(target.log.log), 0))
        return found

    monkeypatch.setattr(ModelClient, "list_offsets", grows)
    assert target.landed() == ((0, 2), (5, 4))
