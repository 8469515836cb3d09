"""Translate an offset between a source partition and its copy, through every generation of the topic. Pure.

An offset is a consumer's position: the next record it reads. Its translation is the position on the other side from which the
consumer reads exactly the records that it has not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from mirror_pipeline.buffer.ledger.offset_runs import Runs
from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.model import Incarnation, TopicPartition

ROW = ("topic", "partition", "incarnation", "source_start", "source_end", "target_start", "target_end", "records")


class OffsetState(StrEnum):
    """What is at a translated offset."""

    RECORD = "record"
    SKIPPED = "skipped"
    BEFORE_START = "before_start"
    END = "end"
    NOT_THERE_YET = "not_there_yet"
    ENDED = "ended"
    BELOW_LOG_START = "below_log_start"


@dataclass(frozen=True, slots=True)
class Translated:
    """An offset's translation: None while there is none; ``generation`` counts the topic's generations from 1."""

    offset: int | None
    state: OffsetState
    generation: int


@dataclass(slots=True)
class GenerationMap:
    """The offset map of one partition in one generation of its topic; ``source_end`` and ``target_end`` are where the copy is now."""

    number: int
    generation: Incarnation
    partition: int
    source_end: int = -1
    target_end: int = -1
    runs: Runs = field(default_factory=Runs)

    def __post_init__(self) -> None:
        self.source_end = start = self.generation.starts[self.partition]
        self.target_end = self.runs.target_end = self.target_start
        if self.source_start < start:
            self.runs.add(self.source_start, self.source_start, start - self.source_start)

    @property
    def source_start(self) -> int:
        """First source offset of the copy, or of what the target held before it."""
        return self.generation.kept.get(self.partition, self.generation.starts[self.partition])

    @property
    def target_start(self) -> int:
        """Target offset of its first record, which lies before the generation's start where the topic was adopted."""
        start = self.generation.target_starts.get(self.partition, 0)
        return min(start, self.runs.target[0]) if len(self.runs.target) else start

    def extend(self, source_start: int, source_end: int, target_start: int, target_end: int, records: int) -> bool:
        """Add a send; what is known already counts once. False when sends before it are not known yet."""
        if source_end <= self.source_end:
            return True
        if source_start > self.source_end:
            return False
        known = self.source_end - source_start
        if records:
            self.runs.add(self.source_end, target_start + known, records - known)
        self.source_end = source_end
        self.target_end = max(target_end, self.target_end)
        return True

    def to_target(self, offset: int, limit: int | None = None) -> tuple[int | None, OffsetState]:
        """Target offset of the first record at or after a source offset, and before ``limit``.

        Without such a record before a ``limit`` the answer is None: the next generation has it.
        """
        found = self.runs.from_source(offset)
        if found is not None and (limit is None or found[0] < limit):
            return found[1], _kind(offset, found[0], self.source_start)
        if limit is not None:
            return None, OffsetState.SKIPPED
        return self._at_end(offset, self.source_start, self.source_end, self.target_end)

    def to_source(self, offset: int) -> tuple[int | None, OffsetState]:
        """Source offset of the first record at or after a target offset."""
        found = self.runs.from_target(offset)
        if found is not None:
            return found[0], _kind(offset, found[1], self.target_start)
        return self._at_end(offset, self.target_start, self.target_end, self.source_end)

    @staticmethod
    def _at_end(offset: int, start: int, end: int, other_end: int) -> tuple[int | None, OffsetState]:
        if offset > end:
            return None, OffsetState.NOT_THERE_YET
        if offset == end:
            return other_end, OffsetState.END
        return other_end, OffsetState.BEFORE_START if offset < start else OffsetState.SKIPPED


def _kind(wanted: int, found: int, start: int) -> OffsetState:
    if found == wanted:
        return OffsetState.RECORD
    return OffsetState.BEFORE_START if wanted < start else OffsetState.SKIPPED


@dataclass(slots=True)
class PartitionMap:
    """The offset map of one partition: all generations of its topic, oldest first."""

    generations: list[GenerationMap]

    @property
    def target_topic(self) -> str:
        """Where the copy is now."""
        return self.generations[-1].generation.target_topic

    def to_target(self, offset: int, number: int | None = None) -> Translated:
        """The target offset for a source offset.

        Args:
            offset: in the source's log as it is now, or as it was in generation ``number``.
            number: answer by this generation alone.
        """
        if number is not None:
            return self._ended(number, *self._numbered(number).to_target(offset))
        return self._onwards(self._present(), offset, offset)

    def _onwards(self, present: Sequence[GenerationMap], wanted: int, offset: int) -> Translated:
        """After a truncation the log continues below the end of what was copied: each generation answers up to the next one's start."""
        at = max((n for n, part in enumerate(present) if part.source_start <= offset), default=0)
        later = min((part.source_start for part in present[at + 1 :]), default=None)
        found, state = present[at].to_target(offset, later)
        if later is not None and found is None:
            return self._onwards(present, wanted, later)
        state = OffsetState.SKIPPED if offset > wanted else state
        return Translated(found, state, present[at].number)

    def to_source(self, offset: int, number: int | None = None) -> Translated:
        """The source offset for a target offset: in the target's log as it is now, or by generation ``number`` alone."""
        if number is not None:
            return self._ended(number, *self._numbered(number).to_source(offset))
        last = self.generations[-1].generation
        same = [part for part in self.generations if part.generation.target_topic_id == last.target_topic_id]
        part = next((part for part in same if part.runs.from_target(offset) is not None), same[-1])
        return Translated(*part.to_source(offset), part.number)

    def _present(self) -> list[GenerationMap]:
        """The generations of the source's log and the target's log as they are now."""
        if len(self.generations) == 1:  # nearly always, and asked for every commit of every round
            return self.generations
        last = self.generations[-1].generation
        ids = (last.topic_id, last.target_topic_id)
        return [part for part in self.generations if (part.generation.topic_id, part.generation.target_topic_id) == ids]

    def _numbered(self, number: int) -> GenerationMap:
        return next(part for part in self.generations if part.number == number)

    def _ended(self, number: int, found: int | None, state: OffsetState) -> Translated:
        past = number != self.generations[-1].number
        return Translated(found, OffsetState.ENDED if past and state is OffsetState.NOT_THERE_YET else state, number)


def numbered(generations: Iterable[Incarnation]) -> dict[str, list[Incarnation]]:
    """The generations of each topic; the ledger gives them oldest first."""
    found: dict[str, list[Incarnation]] = {}
    for generation in generations:
        found.setdefault(generation.topic, []).append(generation)
    return found


def empty_maps(generations: Iterable[Incarnation]) -> dict[TopicPartition, PartitionMap]:
    """The maps of all partitions before anything was sent; the generations of a topic oldest first."""
    maps: dict[TopicPartition, PartitionMap] = {}
    for topic, own in numbered(generations).items():
        for number, generation in enumerate(own, 1):
            for partition in generation.starts:
                parts = maps.setdefault(TopicPartition(topic, partition), PartitionMap([])).generations
                parts.append(GenerationMap(number, generation, partition))
    return maps


def extend_maps(maps: Mapping[TopicPartition, PartitionMap], sends: pa.Table) -> bool:
    """Add sends, in any order of rows; False when earlier sends of a partition are missing. Rows of other partitions are left out."""
    parts: dict[SpanKey, GenerationMap] = {
        (tp.topic, tp.partition, part.generation.incarnation): part for tp, found in maps.items() for part in found.generations
    }
    rows = sends.select(list(ROW)).sort_by([("source_start", "ascending"), ("source_end", "ascending")])
    whole = True
    for topic, partition, incarnation, *numbers in zip(*(rows[name].to_pylist() for name in ROW), strict=True):
        part = parts.get((topic, partition, incarnation))
        whole = (part is None or part.extend(*numbers)) and whole
    return whole
