"""The number of connections on a long link, learnt from measured throughput.

A connection carries at most its send buffer in a round trip (brokers set 100 KiB by default), and less where packets are
lost. The link's capacity is unknown, so the number grows as long as more connections bring more.
"""

from __future__ import annotations

LONG_SECONDS = 0.015
"""Round trips above this are a long link; below, two connections fill the link."""
SECONDS_PER_CONNECTION = 1 / 600
"""One connection for so much of a round trip to begin with: at any distance that brings 60 MB/s with 100 KiB a round trip each.
Linux brokers with that setting were seen to send four times as much; connections that a line does not need get in each other's way."""
LEAST_CONNECTIONS, MOST_CONNECTIONS = 4, 384
"""For all tasks together, to one broker."""
GROWTH, WORTH = 1.4, 1.1
"""More connections are tried, and kept if such a step brings so much more at least."""
REST, FALLEN = 8, 0.85
"""Measurements after a step in vain until the next one; none once they have fallen to this part of the best: lines change, and where
packets are lost, connections that were fast at first become slow."""
LEAST_SECONDS, LEAST_GROWTH_BYTES = 1.5, 256 * 1024
"""Measurements that are shorter, or in which a connection brought less, tell nothing: there was too little to read."""
MOST_IDLE = 0.25
"""So do those in which connections had to wait for us for a larger share of the time."""


def is_long(round_trip: float) -> bool:
    """Whether a round trip of this many seconds is worth more than two connections."""
    return round_trip >= LONG_SECONDS


class Throughput:
    """What the connections to one broker bring once they have brought something each: until then they, or some, are still starting.

    Written by the thread that reads, read by another. ``bytes`` and ``idle`` only grow: the bytes that came, and the
    seconds for which the connections had nothing to do because of us, weighted by their share. ``began`` is monotonic.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.idle = 0.0
        self.began: float | None = None
        self._answers = 0
        self._share = self._at = 0.0

    def starts(self) -> None:
        """More connections are opened."""
        self.began, self._answers = None, 0

    def brought(self, size: int, now: float, *, connections: int) -> None:
        """An answer has come over one of this many connections."""
        if self.began is not None:
            self.bytes += size
            return
        self._answers += 1
        if self._answers >= connections:
            self.began = self._at = now

    def stands(self, share: float, now: float) -> None:
        """This share of the connections has nothing to do from now on."""
        if self.began is not None:
            self.idle += self._share * (now - self._at)
        self._at, self._share = now, share


class ConnectionCount:
    """The number of connections one task opens to each broker of a cluster."""

    def __init__(self) -> None:
        self._count = self._in_use = self._rest = 0  # settled; in use, which is more while a step is tried
        self._rate = self._best = 0.0

    def now(self, round_trip: float, asked: int | None, *, tasks: int = 1) -> int:
        """Connections to use; 0 says that the link is short.

        Args:
            round_trip: the shortest one seen, in seconds.
            asked: the user's ``engine.connections``, which decides.
            tasks: how many share the link.
        """
        if asked is not None:
            return asked if asked > 2 else 0
        if not is_long(round_trip):
            return 0
        least, most = max(1, LEAST_CONNECTIONS // tasks), MOST_CONNECTIONS // tasks
        if not self._count:
            self._count = self._in_use = round(round_trip / SECONDS_PER_CONNECTION / tasks)
        self._count, self._in_use = (max(least, min(most, connections)) for connections in (self._count, self._in_use))
        return self._in_use

    def brought(self, size: int, seconds: float) -> None:
        """Learn from ``size`` bytes that all connections together brought in ``seconds`` in which they had something to do."""
        connections = self._in_use
        if not connections or seconds < LEAST_SECONDS or size < connections * LEAST_GROWTH_BYTES:
            return
        rate = size / seconds
        if connections > self._count and rate < self._rate * WORTH:
            self._in_use, self._rest = self._count, REST
            return
        if connections > self._count or rate < self._best * FALLEN:
            self._best, self._rest = 0.0, 0
        self._count, self._rate, self._best = connections, rate, max(self._best, rate)
        if self._rest:
            self._rest -= 1
        else:
            self._in_use = max(connections + 1, int(connections * GROWTH))
