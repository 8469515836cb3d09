"""Our records among those of other writers, in the tail of a shared target topic. Pure.

Only batches with our producer id and epoch count. Their sequences follow each other; where some are left out, the log must lack as many
offsets since our last record: the cleaner of a compacted topic, or retention, has removed them. They are then taken to lie directly
before the next record of ours. A reader that starts at such an offset reads the same records of ours next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror_pipeline.engine.tasks.write.offset_map import SEQUENCE_MASK, Landed, append_run
from mirror_pipeline.halts import Halt, sequence_gap, tail_deleted
from mirror_pipeline.kafka.records.batch import BatchHeader
from mirror_pipeline.model import Position, Stamp, TopicPartition


@dataclass(frozen=True, slots=True)
class Tail:
    """What is on a target partition after a position: ``records`` of ours up to ``end``.

    ``read`` says that they were read; if retention deleted them first, only their offsets are known. ``landed``: the runs in which they
    lie in a shared topic.
    """

    target: TopicPartition
    records: int
    end: int
    read: bool = True
    landed: Landed = ()


@dataclass(slots=True)
class SharedTail:
    """What a scan has found of ours behind a position.

    Args:
        target: the partition.
        position: everything before it is known to be there.
        at: offset up to which the log was seen.
        absent: offsets that nobody has any more since our last record; ``absent_end`` is behind the last of them.
    """

    target: TopicPartition
    position: Position
    records: int = 0
    at: int = field(init=False)
    absent: int = 0
    absent_end: int = 0
    _landed: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at = self.position.target_next

    def see(self, header: BatchHeader, ours: Stamp | None) -> None:
        """Take the next batch of the log. Raises TopicHalted for one of ours that does not follow."""
        self._reach(header.base_offset)
        self.at = header.next_offset
        stamp = (ours.producer_id, ours.producer_epoch) if ours is not None else None
        if header.is_control or (header.producer_id, header.producer_epoch) != stamp:
            return
        expected = self._expected
        left_out = (header.base_sequence - expected) & SEQUENCE_MASK
        if left_out > self.absent:  # also what is there twice: it lies far ahead by this count
            raise sequence_gap(self.target, header.base_offset, header.base_sequence, expected).error()
        self._land(header.base_offset - left_out, header.next_offset - header.base_offset + left_out)

    def close(self, at: int, known: int | None) -> Tail | Halt | None:
        """The tail once the scan has reached ``at``; None if the leader remembers records of ours that were not seen.

        Args:
            at: where the scan ended.
            known: our last sequence as the leader remembers it; None if it has forgotten us.
        """
        self._reach(at)
        if known is None:
            return tail_deleted(self.target, self._end) if self.absent else self.tail(at)
        unseen = (known + 1 - self._expected) & SEQUENCE_MASK
        if 0 < unseen <= SEQUENCE_MASK // 2:
            if unseen > self.absent:
                return None
            self._land(self.absent_end - unseen, unseen)
        return self.tail(at)

    def tail(self, at: int) -> Tail:
        """What was found up to ``at``."""
        return Tail(self.target, self.records, at, landed=tuple(self._landed))

    @property
    def _expected(self) -> int:
        """The sequence of our next record."""
        return (self.position.ordinal + self.records) & SEQUENCE_MASK

    @property
    def _end(self) -> int:
        return sum(self._landed[-1]) if self._landed else self.position.target_next

    def _reach(self, offset: int) -> None:
        if offset > self.at:
            self.absent += offset - self.at
            self.at = self.absent_end = offset

    def _land(self, start: int, records: int) -> None:
        self.records += records
        self.absent = 0
        append_run(self._landed, start, records)
