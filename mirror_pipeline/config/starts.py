"""Where the copy of a topic begins: one rule for all topics, or by whole-name regex."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class StartOffsets:
    """First source offsets by partition, in order; a partition that is not named begins at the start of its log."""

    pairs: tuple[tuple[int, int], ...]

    @property
    def by_partition(self) -> Mapping[int, int]:
        """The offsets as a mapping."""
        return dict(self.pairs)


StartAt = str | datetime | StartOffsets
"""``earliest``, ``latest``, a moment in UTC, or offsets: of one topic."""


@dataclass(frozen=True, slots=True)
class StartMap:
    """By whole-name regex, the first that matches counts; ``otherwise`` for all other topics."""

    rules: tuple[tuple[str, StartAt], ...]
    otherwise: str | datetime = EARLIEST


Start = str | datetime | StartMap
"""A mirror's ``start``."""


def start_of(start: Start, topic: str) -> StartAt:
    """Where the copy of one topic begins."""
    if not isinstance(start, StartMap):
        return start
    return next((at for pattern, at in start.rules if re.fullmatch(pattern, topic)), start.otherwise)
