"""What became of each range of a read task. Both transports report here; nothing here asks a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.span_builder import SpanBuilder
from mirror_pipeline.halts import Halt, internal
from mirror_pipeline.kafka.records.batch import Buffer
from mirror_pipeline.model import TopicPartition

DISCARDED = "its part file could not be written; it is read again"


@dataclass(slots=True, eq=False)
class RangeState:
    """One range while it is read; ``error``, ``halt``, ``end`` and ``beyond`` are those of :class:`RangeOutcome`.

    ``empty`` counts the answers in a row that brought nothing new. ``faulty`` says that an internal error left the builder
    in an unknown state: nothing of it is written.
    """

    builder: SpanBuilder
    error: str = ""
    halt: Halt | None = None
    end: int = -1
    empty: int = 0
    beyond: bool = False
    faulty: bool = False

    @property
    def open(self) -> bool:
        """Whether the range can still be read."""
        return not (self.builder.done or self.halt or self.error)

    def outcome(self) -> RangeOutcome:
        """The answer to the driver."""
        builder, wanted = self.builder, self.builder.rules.range
        return RangeOutcome(
            wanted.topic, wanted.partition, builder.next, builder.records, builder.bytes_read, error=self.error, halt=self.halt,
            end=self.end, first_epoch=builder.first_epoch, mark=None if self.faulty else builder.mark,
            quarantined=tuple(builder.quarantined), batches=builder.batches, beyond=self.beyond,
        )  # fmt: skip


class RangeOutcomes:
    """The ranges of one task, and the brokers that were silent or slow.

    Args:
        rules: one for each range.
        emit: takes each finished span.

    ``silent``, ``heard``, ``resumed``, ``copied``, ``left_out`` and ``lost_copies`` are those of :class:`ReadResult`.
    """

    def __init__(self, rules: Iterable[RangeRules], emit: Callable[[SpanDraft, Sequence[Buffer]], None]) -> None:
        self.ranges = {each.range.source: RangeState(SpanBuilder(each, emit)) for each in rules}
        self.silent: dict[int, str] = {}
        self.heard: dict[int, float] = {}
        self.resumed = False
        self.copied: dict[str, int] = {}
        self.left_out: dict[tuple[str, TopicPartition], str] = {}
        self.lost_copies: frozenset[str] = frozenset()

    @property
    def clean(self) -> bool:
        """Whether no range has failed or halted."""
        return not any(state.error or state.halt for state in self.ranges.values())

    def open(self) -> list[TopicPartition]:
        """The partitions that can still be read."""
        return [source for source, state in self.ranges.items() if state.open]

    def fail_open(self, message: str) -> None:
        """End all open ranges with the same error."""
        for source in self.open():
            self.ranges[source].error = message

    def results(self) -> tuple[RangeOutcome, ...]:
        """How far each range came."""
        return tuple(state.outcome() for state in self.ranges.values())

    def discarded(self, source: TopicPartition, error: Exception) -> tuple[RangeOutcome, ...]:
        """The same for a task whose part file was discarded: nothing was read, and the topic of ``source`` halts by ``error``."""
        halt = internal(source, error)
        return tuple(
            RangeOutcome(tp.topic, tp.partition, state.builder.rules.range.start, 0, 0, error="" if tp == source else DISCARDED,
                         halt=halt if tp == source else None)
            for tp, state in self.ranges.items()
        )  # fmt: skip
