"""How one range is read, and the halts that end its reading."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pipeline import halts
from mirror_pipeline.errors import MirrorError, TopicHalted
from mirror_pipeline.model import OffsetRange


@dataclass(frozen=True, slots=True)
class RangeRules:
    """The planned range and what the target and the mirror ask for.

    ``max_batch_bytes`` is the largest batch the target topic takes. ``holes_expected`` says that the topic is
    compacted, so missing offsets are normal. ``record_gaps`` is the mirror's ``on_loss: record_gap``,
    ``approved`` are source offset ranges that an operator allowed to be missing. ``settings_unread`` says why it is not known
    whether the topic is compacted: then no hole is expected.
    """

    range: OffsetRange
    max_batch_bytes: int
    holes_expected: bool
    record_gaps: bool
    approved: tuple[tuple[int, int], ...] = ()
    settings_unread: str = ""

    def may_miss(self, start: int, end: int) -> bool:
        """Whether the copy may continue without source offsets ``[start, end)``."""
        return self.record_gaps or any(low <= start and end <= high for low, high in self.approved)

    def trimmed(self, start: int, end: int) -> TopicHalted:
        """See :func:`halts.trimmed`."""
        return halts.trimmed(self.range.source, start, end).error()

    def corrupt(self, start: int, end: int, error: MirrorError) -> TopicHalted:
        """See :func:`halts.corrupt`."""
        return halts.corrupt(self.range.source, start, end, error).error()

    def oversize(self, offset: int, error: MirrorError) -> TopicHalted:
        """See :func:`halts.oversize`."""
        return halts.oversize(self.range.source, offset, self.max_batch_bytes, error).error()

    def hole(self, start: int, end: int) -> TopicHalted:
        """See :func:`halts.unexplained_hole`."""
        return halts.unexplained_hole(self.range.source, start, end, self.settings_unread).error()
