"""What a verification's progress shows: one bar, for verifications one after another."""

from __future__ import annotations

from typing import Protocol

from mirror_pipeline.cli.meter import Window
from mirror_pipeline.cli.progress import Bar, Update
from mirror_pipeline.text import duration, plural, rate, size


class Verification(Protocol):
    """The figures shown for a running verification."""

    total: int
    offsets: int
    records: int
    bytes: int
    suspects: int


class VerifyContent:
    """The verification that reported last; another one starts afresh."""

    def __init__(self) -> None:
        self._window = Window()
        self._last: Verification | None = None
        self._bars: list[Bar] = []

    def take(self, progress: Verification, now: float) -> Update:
        """Store one update."""
        if self._last is not progress:
            self._last, self._window = progress, Window()
        pace, speed = self._window.rates(now, progress.offsets, progress.bytes)
        fraction = progress.offsets / progress.total if progress.total else 1.0
        facts = f"{plural(progress.records, 'record')} compared, {size(progress.bytes)}, {rate(speed)}"
        left = _left(progress, pace)
        self._bars = [Bar("verify", fraction, left, facts)]
        return Update("verify", f"{facts}, {left}")

    def bars(self) -> list[Bar]:
        """One, or none before the first update."""
        return self._bars


def _left(progress: Verification, pace: float) -> str:
    if progress.suspects:
        return f"comparing {plural(progress.suspects, 'record')} one by one"
    return f"{duration((progress.total - progress.offsets) / pace)} left" if pace > 0 else "waiting"
