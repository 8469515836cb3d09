"""What a lane reads ahead over a long link, from one micro-batch into the next."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from mirror_pipeline.engine.lines import MOST_IDLE
from mirror_pipeline.engine.stretches import Stretch, beyond, cut, in_turn, stop_of
from mirror_pipeline.engine.wide import ROOM_BYTES, Gathering
from mirror_pipeline.model import OffsetRange, TopicPartition
from mirror_pipeline.wire.client import WireClient

LOOK_SECONDS = 0.5
"""Between two looks whether a broker that is waited for is silent."""


class Reading:
    """The stretches of a lane's partitions, read by one :class:`Gathering` for each broker.

    A micro-batch takes its share and leaves the rest on its way for the next: no connection stands still, and none has
    to start slowly again, while files are flushed and commits made. ``round_trip`` is the way's, in seconds.
    """

    def __init__(self, client: WireClient, round_trip: float) -> None:
        self.round_trip = round_trip
        self._client = client
        self._gatherings: dict[int, Gathering] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._order: deque[Stretch] = deque()
        self._news = threading.Event()
        self._measured = self._idle = 0.0
        self._received = 0

    def goes_on(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether what is on its way is what these ranges need next."""
        first: dict[TopicPartition, Stretch] = {}
        starts = {planned.source: planned.start for planned in ranges}
        for stretch in self._order:
            if stretch.source not in starts:
                return False
            if stretch.end > starts[stretch.source]:
                first.setdefault(stretch.source, stretch)
        known = all(source in self._leaders and self._leaders[source] == self._client.leader(source) for source in starts)
        fits = all(stretch.start <= starts[source] for source, stretch in first.items())
        return known and fits and all(gathering.reads for gathering in self._gatherings.values())

    @property
    def unfinished(self) -> bool:
        """Whether something is on its way for the next micro-batch."""
        return bool(self._order)

    def brought(self) -> tuple[int, float]:
        """Bytes that have come since this was asked last, and the seconds for which connections had something to do; none if
        they are still starting, or often had to wait for us."""
        flows = [gathering.flow for gathering in self._gatherings.values()]
        began = [flow.began for flow in flows if flow.began is not None]
        if not began or len(began) < len(flows):
            return 0, 0.0
        received, now = sum(flow.bytes for flow in flows), time.monotonic()
        idle = sum(flow.idle for flow in flows) / len(flows)
        size, seconds, stood = received - self._received, now - max(self._measured, *began), idle - self._idle
        self._received, self._measured, self._idle = received, now, idle
        return (size, seconds - stood) if stood <= MOST_IDLE * seconds else (0, 0.0)

    def share(self, ranges: Sequence[OffsetRange], *, count: int, ahead: bool, pause: Callable[[int], None]) -> list[Stretch]:
        """The stretches that these ranges need, in the order in which they are to be taken over.

        Args:
            ranges: of a micro-batch.
            count: connections to each broker.
            ahead: go on reading behind the ranges, as much again.
            pause: told how many bytes have come; may wait.
        """
        stops = {planned.source: stop_of(planned) for planned in ranges}
        starts = {planned.source: planned.start for planned in ranges}
        while self._order and self._order[0].end <= starts[self._order[0].source]:
            self._pass(self._order.popleft())
        last: dict[TopicPartition, int] = {stretch.source: stretch.end for stretch in self._order}
        fresh = [cut(r, last.get(r.source, r.start), stops[r.source]) for r in ranges]
        last |= {row[-1].source: row[-1].end for row in fresh if row}
        room = ROOM_BYTES // max(1, len(ranges)) if ahead else 0
        behind = [cut(r, last.get(r.source, r.start), beyond(r, stops[r.source], room)) for r in ranges if room]
        more = [*in_turn(fresh), *in_turn(behind)]
        self._order.extend(more)
        self._read(more, count, pause)
        return [stretch for stretch in self._order if stretch.start < stops[stretch.source]]

    def leader(self, source: TopicPartition) -> int:
        """The broker that a partition of the last share is read from."""
        return self._leaders[source]

    def wait_for(self, stretch: Stretch, deadline: float | None, *, patience: float = math.inf) -> bool:
        """Wait until a stretch of the share is ready, or until it is too late (monotonic seconds); whether it is.

        It is not waited for when nothing has come from its broker for ``patience`` seconds, either.

        Those before it that belong to later micro-batches give up their room: what is needed now may be behind them.
        """
        for before in self._order:
            if before is stretch:
                break
            self._pass(before)
        gathering, began = self._gatherings[self._leaders[stretch.source]], time.monotonic()
        if not stretch.ready:
            gathering.hurry(stretch)
        while not stretch.ready:
            self._news.clear()
            now = time.monotonic()
            left = patience - min(now - began, gathering.quiet(now))
            left = left if deadline is None else min(left, deadline - now)
            if left <= 0:
                return stretch.ready
            if not stretch.ready:
                self._news.wait(min(left, LOOK_SECONDS))
        return True

    def taken(self, stretch: Stretch) -> None:
        """This stretch of the share has been taken over."""
        self._pass(stretch)
        self._order.remove(stretch)

    def end(self) -> None:
        """Read nothing more; the client gets its connections back."""
        for leader, gathering in self._gatherings.items():
            gathering.end()
            for lane, connection in enumerate(gathering.open):
                self._client.keep(leader, lane, connection)
        self._gatherings.clear()
        self._order.clear()

    def _pass(self, stretch: Stretch) -> None:
        if not stretch.passed:
            self._gatherings[self._leaders[stretch.source]].passed(stretch)

    def _read(self, more: Sequence[Stretch], count: int, pause: Callable[[int], None]) -> None:
        for stretch in more:
            self._leaders.setdefault(stretch.source, self._client.leader(stretch.source))
        for leader in set(self._leaders.values()):
            mine = [stretch for stretch in more if self._leaders[stretch.source] == leader]
            gathering = self._gatherings.get(leader)
            if gathering is None:
                lines = min(count, len(mine))
                kept = [connection for lane in range(lines) if (connection := self._client.take(leader, lane)) is not None]
                gathering = self._gatherings[leader] = Gathering(kept, self._client.opener(leader), news=self._news, pause=pause)
                gathering.add(mine)
                gathering.start(lines)
            else:
                gathering.pause = pause
                gathering.add(mine)
                gathering.resize(min(count, max(gathering.count, len(mine))))
