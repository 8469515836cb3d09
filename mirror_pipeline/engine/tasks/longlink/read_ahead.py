"""What a lane reads ahead over a long link, from one micro-batch into the next."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from mirror_pipeline.engine.tasks.longlink.admission import ROOM_BYTES
from mirror_pipeline.engine.tasks.longlink.connection_count import MOST_IDLE
from mirror_pipeline.engine.tasks.longlink.parallel_fetch import ParallelFetch
from mirror_pipeline.engine.tasks.longlink.segments import Segment, beyond, cut, in_turn, stop_of
from mirror_pipeline.kafka.client import WireClient, shared_replies
from mirror_pipeline.model import OffsetRange, TopicPartition

READ_AHEAD_LOOK_SECONDS = 0.5
"""Between two looks whether a broker that is waited for is silent."""


class ReadAhead:
    """The segments of a lane's partitions, read by one :class:`ParallelFetch` for each broker.

    A micro-batch takes its share and leaves the rest on its way for the next: no connection stands still, and none has
    to start slowly again, while files are flushed and commits made. ``round_trip`` is the way's, in seconds.
    The brokers' shares of the memory, ``room`` bytes, are as their shares of the partitions. Segments of one partition are taken over
    in the order of their offsets, those of several in turn, as they become ready. ``unheld`` stays empty where there is one source.
    """

    def __init__(self, client: WireClient, round_trip: float, room: int | None = None) -> None:
        self.round_trip = round_trip
        self._room = ROOM_BYTES if room is None else room
        self._replies = shared_replies(self._room)
        self._client = client
        self._fetches: dict[int, ParallelFetch] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._rows: dict[TopicPartition, deque[Segment]] = {}
        self._stops: dict[TopicPartition, int] = {}
        self._turn: deque[TopicPartition] = deque()
        self.silent: set[int] = set()
        self.unheld: set[TopicPartition] = set()
        self._news = threading.Event()
        self._measured = self._idle = 0.0
        self._received = 0

    def continues(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether what is in flight is what these ranges need next."""
        if not self._in_place(ranges):
            return False
        sources = [planned.source for planned in ranges]
        known = all(source in self._leaders and self._leaders[source] == self._client.leader(source) for source in sources)
        return known and all(fetch.reads for fetch in self._fetches.values())

    def _in_place(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether the first segments in flight are where these ranges begin."""
        starts = {planned.source: planned.start for planned in ranges}
        for source, row in self._rows.items():
            if row and source not in starts:
                return False
            first = next((segment for segment in row if segment.upto > starts[source]), None)
            if first is not None and first.start > starts[source]:
                return False
        return True

    @property
    def unfinished(self) -> bool:
        """Whether something is in flight for the next micro-batch."""
        return any(self._rows.values())

    def brought(self) -> tuple[int, float]:
        """Bytes received since the last call, and the seconds for which connections had something to do; none if
        they are still starting, or often had to wait for us."""
        throughputs = [fetch.throughput for fetch in self._fetches.values()]
        began = [throughput.began for throughput in throughputs if throughput.began is not None]
        if not began or len(began) < len(throughputs):
            return 0, 0.0
        received, now = sum(throughput.bytes for throughput in throughputs), time.monotonic()
        idle = sum(throughput.idle for throughput in throughputs) / len(throughputs)
        size, seconds, stood = received - self._received, now - max(self._measured, *began), idle - self._idle
        self._received, self._measured, self._idle = received, now, idle
        return (size, seconds - stood) if stood <= MOST_IDLE * seconds else (0, 0.0)

    def share(self, ranges: Sequence[OffsetRange], *, count: int, ahead: bool, pause: Callable[[int], None]) -> None:
        """Read what these ranges need; ``next`` hands it out.

        Args:
            ranges: of a micro-batch.
            count: connections to each broker.
            ahead: read as much again after the ranges.
            pause: called with the number of bytes received; may wait.
        """
        self._stops = {planned.source: stop_of(planned) for planned in ranges}
        self._turn, self.silent = deque(self._stops), set()
        fresh, later = [], []
        for planned in ranges:
            row = self._rows.setdefault(planned.source, deque())
            while row and row[0].upto <= planned.start:
                self._pass(row.popleft(), rest=True)
            stop = self._stops[planned.source]
            room = self._room // max(1, len(ranges)) if ahead else 0
            begin, end = row[-1].upto if row else planned.start, beyond(planned, stop, room) if room else stop
            if not planned.bytes_per_batch:
                fresh.append(cut(planned, begin, end))
                row.extend(fresh[-1])
                continue
            fresh.append(cut(planned, begin, stop))
            later.append(cut(planned, max(begin, stop), end))
            row.extend([*fresh[-1], *later[-1]])
        self._read([*in_turn(fresh), *in_turn(later)], count, pause)

    def leader(self, source: TopicPartition) -> int:
        """The broker that a partition of the last share is read from."""
        return self._leaders[source]

    def next(self, deadline: float | None, *, patience: Callable[[int], float] = lambda node: math.inf) -> Segment | None:
        """The next segment of the share; None when all are taken over, or none is ready before it is too late (monotonic seconds).

        A broker from which nothing has come for its ``patience`` seconds, while only it is waited for, is left out: it is ``silent``.
        """
        began = time.monotonic()
        while True:
            self._news.clear()
            waiting: dict[int, Segment] = {}
            for source in list(self._turn):
                row, leader = self._rows[source], self._leaders.get(source, -1)
                if leader in self.silent or not row or row[0].start >= self._stops[source]:
                    self._turn.remove(source)
                elif row[0].ready:
                    self._turn.remove(source)
                    self._turn.append(source)
                    return row[0]
                else:
                    waiting.setdefault(leader, row[0])
            if not waiting or not self._wait(waiting, began, deadline, patience):
                return None

    def _wait(
        self, waiting: Mapping[int, Segment], began: float, deadline: float | None, patience: Callable[[int], float]
    ) -> bool:
        """Wait a moment until something is ready of these, each the first of a broker; False when it is too late."""
        now = time.monotonic()
        left = READ_AHEAD_LOOK_SECONDS if deadline is None else min(READ_AHEAD_LOOK_SECONDS, deadline - now)
        for leader, segment in waiting.items():
            fetch = self._fetches[leader]
            fetch.prioritise(segment)
            patient = patience(leader) - min(now - began, fetch.quiet(now))
            if patient <= 0 and not segment.ready:
                self.silent.add(leader)
            left = min(left, max(0.0, patient))
        if any(segment.ready for segment in waiting.values()):
            return True
        if deadline is not None and now >= deadline:
            return False
        self._news.wait(left)
        return True

    def enough(self, source: TopicPartition, at: int) -> None:
        """The share needs nothing of this partition at or after an offset."""
        self._stops[source] = min(at, self._stops[source])

    def taken(self, segment: Segment) -> None:
        """This segment of the share, as ``next`` gave it, has been taken over; what was cut off it takes its place."""
        self._pass(segment)
        row = self._rows[segment.source]
        row.popleft()
        if segment.rest is not None:
            row.appendleft(segment.rest)

    def end(self) -> None:
        """Read nothing more; the client gets its connections back."""
        for leader, fetch in self._fetches.items():
            end_fetch(fetch, self._client, leader)
        self._fetches.clear()
        self._rows.clear()

    def _pass(self, segment: Segment, *, rest: bool = False) -> None:
        self._fetches[self._leaders[segment.source]].passed(segment, rest=rest)

    def _read(self, more: Sequence[Segment], count: int, pause: Callable[[int], None]) -> None:
        for segment in more:
            self._leaders.setdefault(segment.source, self._client.leader(segment.source))
        leaders = list(self._leaders.values())
        for leader in set(leaders):
            mine = [segment for segment in more if self._leaders[segment.source] == leader]
            fetch = self._fetches.get(leader)
            if fetch is None:
                slots = min(count, len(mine))
                fetch = self._fetches[leader] = self._fetch_from(self._client, leader, slots, pause)
                fetch.admission.room = self._room * leaders.count(leader) // len(leaders)
                fetch.most = count
                fetch.add(mine, self._stops)
                fetch.start(slots)
            else:
                fetch.pause, fetch.most = pause, count
                fetch.add(mine, self._stops)
                fetch.resize(min(count, max(fetch.count, len(mine))))

    def _fetch_from(self, client: WireClient, node: int, slots: int, pause: Callable[[int], None]) -> ParallelFetch:
        """Nothing yet from a broker, over the connections that the client has to it, and others."""
        kept = [connection for number in range(slots) if (connection := client.take(node, number)) is not None]
        for connection in kept:
            connection.limit(client.timeout)  # some of many are slow for longer than a broker may be silent
        return ParallelFetch(kept, client.opener(node, self._replies), news=self._news, pause=pause)


def end_fetch(fetch: ParallelFetch, client: WireClient, node: int) -> None:
    """End what reads from a broker; the client gets its connections back."""
    fetch.end()
    client.mute(node, fetch.muted_until)
    for number, connection in enumerate(fetch.open):
        client.keep(node, number, connection)
