"""How many connections a long link wants, learned from what they bring.

A connection carries at most its send buffer in a round trip (brokers set 100 KiB by default), and less where packets are
lost. Nobody tells the line's capacity, so the number grows as long as more connections bring more.
"""

from __future__ import annotations

LONG_SECONDS = 0.015
"""Round trips above this are a long link; below, two connections fill a line."""
SECONDS_PER_LINE = 0.001
"""One connection for so much of a round trip to begin with: with 100 KiB a round trip each, that is 100 MB/s at any distance."""
LEAST_LINES, MOST_LINES = 4, 384
"""For all tasks together, to one broker."""
GROWTH, WORTH = 1.3, 1.05
"""More connections are tried as long as each such step brings at least so much more; what brings less is taken back."""
FORGETTING = 0.98
"""The best rate seen counts a little less each time, so that another step is tried now and then: lines change."""
LEAST_SECONDS, LEAST_BYTES = 0.5, 256 * 1024
"""Measurements that are shorter, or in which a connection brought less, tell nothing: there was too little to read."""


def is_long(round_trip: float) -> bool:
    """Whether a round trip of so many seconds is worth more than two connections."""
    return round_trip >= LONG_SECONDS


class LineCount:
    """The number of connections one task opens to each broker of a cluster."""

    def __init__(self) -> None:
        self._count = self._best_count = 0
        self._best = 0.0

    def now(self, round_trip: float, asked: int | None, *, tasks: int = 1) -> int:
        """Connections to use; 0 says that the link is short.

        Args:
            round_trip: the shortest one seen, in seconds.
            asked: the user's ``engine.connections``, which decides.
            tasks: how many share the line.
        """
        if asked is not None:
            return asked if asked > 2 else 0
        if not is_long(round_trip):
            return 0
        least, most = max(1, LEAST_LINES // tasks), MOST_LINES // tasks
        if not self._count:
            self._count = round(round_trip / SECONDS_PER_LINE / tasks)
        self._count = max(least, min(most, self._count))
        return self._count

    def brought(self, size: int, seconds: float) -> None:
        """Learn from ``size`` bytes that all connections together brought in ``seconds``."""
        if not self._count or seconds < LEAST_SECONDS or size < self._count * LEAST_BYTES:
            return
        rate = size / seconds
        self._best *= FORGETTING
        if rate >= self._best * WORTH:
            self._best, self._best_count = rate, self._count
            self._count = max(self._count + 1, int(self._count * GROWTH))
        else:
            self._count = self._best_count
