"""How one range is to be read, and the words in which its reading ends when it cannot go on."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pipeline.errors import MirrorError, TopicHalted
from mirror_pipeline.model import OffsetRange, TopicPartition

GOES_ON = "`on_loss: record_gap` would go on by itself and record the gap"


@dataclass(frozen=True, slots=True)
class RangeRules:
    """The planned range and what the target and the mirror ask for.

    ``max_batch_bytes`` is the largest batch the target topic takes. ``holes_expected`` says that the topic is
    compacted, so missing offsets are normal. ``record_gaps`` is the mirror's ``on_loss: record_gap``,
    ``approved`` are source offset ranges that a person allowed to be missing. ``settings_unread`` says why it is not known
    whether the topic is compacted: then no hole is expected.
    """

    range: OffsetRange
    max_batch_bytes: int
    holes_expected: bool
    record_gaps: bool
    approved: tuple[tuple[int, int], ...] = ()
    settings_unread: str = ""

    def may_miss(self, start: int, end: int) -> bool:
        """Whether the copy may go on without source offsets ``[start, end)``."""
        return self.record_gaps or any(low <= start and end <= high for low, high in self.approved)

    def trimmed(self, start: int, end: int) -> TopicHalted:
        """The source's retention, or somebody with DeleteRecords, was faster than this mirror."""
        return trimmed(self.range.source, start, end)

    def corrupt(self, start: int, end: int, error: MirrorError) -> TopicHalted:
        """A batch that fails its checksum."""
        hint = "the source's log is damaged there, or a proxy changed the bytes; check the broker's disk"
        return self._halt("corrupt", f"{self.range.source} at offset {start}: {error.message}", hint, start, end)

    def oversize(self, offset: int, error: MirrorError) -> TopicHalted:
        """A single record that no batch for the target can hold."""
        said = (
            f"the record of {self.range.source} at offset {offset} is larger than the target topic's"
            f" max.message.bytes ({self.max_batch_bytes}): {error.message}"
        )
        return self._halt("oversize", said, "raise max.message.bytes on the target topic and run again", offset, offset + 1)

    def hole(self, start: int, end: int) -> TopicHalted:
        """Offsets that the source's log skips without a reason that is known."""
        said = f"source offsets [{start}, {end}) of {self.range.source} are missing"
        if self.settings_unread:
            said = f"{said}, and whether the topic is compacted cannot be told: {self.settings_unread}"
            return self._halt("unexplained_hole", said, f"grant DESCRIBE_CONFIGS on the topic; {GOES_ON}", start, end)
        said = f"{said} and the topic is not compacted"
        return self._halt("unexplained_hole", said, f"was the topic compacted before? {GOES_ON}", start, end)

    def _halt(self, code: str, said: str, hint: str, start: int, end: int) -> TopicHalted:
        wanted = self.range
        return TopicHalted(wanted.topic, said, hint=hint, partition=wanted.partition, code=code, span=(start, end))


def trimmed(source: TopicPartition, start: int, end: int) -> TopicHalted:
    """The halt for offsets that the source deleted before they were copied."""
    said = f"the source deleted offsets [{start}, {end}) of {source} before they were copied"
    return TopicHalted(source.topic, said, hint=GOES_ON, partition=source.partition, code="trimmed", span=(start, end))
