"""Compute display figures from progress updates: recent speed and time left."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mirror_pipeline.reports import Progress

# Long enough to smooth over single micro-batches, short enough to show a stall.
WINDOW_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class StuckTopic:
    """A topic that is halted or waiting."""

    topic: str
    state: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """An immutable copy of a Progress, which the engine keeps updating, with speeds."""

    mirror: str
    lane: str
    records: int
    bytes: int
    total: int
    lag_records: int
    lag_seconds: float | None
    staged_records: int
    seconds: float
    target_down: str
    source_down: str
    buffer_full: str
    search_failure: str
    halts: tuple[StuckTopic, ...]
    waiting: tuple[StuckTopic, ...]
    bytes_per_second: float
    records_per_second: float

    @property
    def fraction(self) -> float:
        """Fraction of the known work that is done; 1 when there is nothing to do."""
        whole = max(self.total, self.records + self.lag_records)
        return min(1.0, self.records / whole) if whole else 1.0

    @property
    def seconds_left(self) -> float | None:
        """Time to catch up at the current speed; None while no records are copied."""
        left = max(self.total - self.records, self.lag_records)
        if left <= 0:
            return 0.0
        return left / self.records_per_second if self.records_per_second > 0 else None


class Window:
    """The last seconds of some counters."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, tuple[int, ...]]] = deque()

    def rates(self, now: float, *counters: int) -> tuple[float, ...]:
        """Add one observation made at ``now`` (seconds of any steady clock); the growth of each counter per second."""
        self._seen.append((now, counters))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        then, before = self._seen[0]
        elapsed = now - then
        return tuple((new - old) / elapsed if elapsed > 0 else 0.0 for new, old in zip(counters, before, strict=True))


class Meter:
    """Keeps a few seconds of one lane's progress."""

    def __init__(self) -> None:
        self._window = Window()

    def read(self, progress: Progress, now: float) -> ProgressSample:
        """Add one observation made at ``now`` (seconds of any steady clock)."""
        records_per_second, bytes_per_second = self._window.rates(now, progress.records, progress.bytes)
        return ProgressSample(
            mirror=progress.mirror,
            lane=progress.lane,
            records=progress.records,
            bytes=progress.bytes,
            total=progress.total_records,
            lag_records=progress.lag_records,
            lag_seconds=progress.lag_seconds,
            staged_records=progress.staged_records,
            seconds=progress.seconds,
            target_down=progress.target_down,
            source_down=progress.source_down,
            buffer_full=progress.buffer_full,
            search_failure=progress.search_failure,
            halts=_in_state(progress, "halted"),
            waiting=_in_state(progress, "behind"),
            bytes_per_second=bytes_per_second,
            records_per_second=records_per_second,
        )


def _in_state(progress: Progress, state: str) -> tuple[StuckTopic, ...]:
    return tuple(StuckTopic(name, t.state, t.reason, t.hint) for name, t in sorted(progress.topics.items()) if t.state == state)
