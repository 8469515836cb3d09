"""Reads a backlog from all clusters that hold it at once (``sources``): the source itself, and copies with the same offsets.

    offsets      0 ........ 100 ........ 200 ........ 300 ........ 400
    segments     [    A    ) [    B    ) [    C    ) [    D    )
    lines        source: A   north: B    west: C     source: D      each gets the next segment as soon as it can take one
    reader       A, B, C, D

A *line* is one broker of one of these clusters, with a :class:`ParallelFetch` of its own. A line takes segments as fast as it brings
them, so shares follow what each can carry, without a plan. The reader takes a partition's segments in order: the one that it waits for
is read over another line too late to be missed, and a line that has failed, or stands, gives back all that it has.

A copy is trusted only for what :mod:`mirror_pipeline.engine.driver.read.source_copies` has proven. Each of its segments must hold every
offset, in batches with their checksums; if not, its partition is read from the others.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.longlink.admission import ROOM_BYTES
from mirror_pipeline.engine.tasks.longlink.connection_count import LEAST_CONNECTIONS, MOST_IDLE, ConnectionCount
from mirror_pipeline.engine.tasks.longlink.parallel_fetch import ParallelFetch
from mirror_pipeline.engine.tasks.longlink.read_ahead import ReadAhead, end_fetch
from mirror_pipeline.engine.tasks.longlink.segments import Segment, in_turn
from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.client import Routes, WireClient
from mirror_pipeline.kafka.records.batch import check, headers
from mirror_pipeline.model import OffsetRange, TopicPartition

WAITING_SECONDS = 1.5
"""What a line has to do beyond a round trip, by its rate: enough to go on while a micro-batch is committed."""
LEAST_PATIENCE, PATIENT_TIMES, PATIENT_TRIPS = 1.0, 3.0, 16
"""Seconds, times what a segment usually takes on its line, and round trips: after the longest of them the segment that is waited for is
read over another line. A new connection needs round trips to open, and more until it is fast."""
STRIKES = 2
"""Segments in a row that another line had to read while this one stood: it gives back all that it has."""
LEAST_BUSY, MOST_RISE = 0.1, 2.0
"""Share of the time for which a rate counts that was measured on a line with too little to do; how much it may raise the known one."""
LINE_REST_SECONDS = 5.0
"""Until a line that stood, or a copy that failed, is tried again with one segment."""
SLOW_START_SECONDS, STARTED_SECONDS = 2.0, 1.0
"""A line of unknown rate is expected to bring nothing for so long; its rate counts so much after each connection's first answer."""
RATE_SECONDS, LINE_LOOK_SECONDS, SEGMENT_WAIT_SECONDS = 0.5, 0.01, 0.1
"""Between two looks at the rate of a line, at what it has brought, and of the reader at what has come."""
COPY_SECONDS = 10.0
"""Without a byte from a copy that alone holds what is waited for."""
LOOKED_AT = 256
"""Segments for which no line is free, of those that wait: the lines of other partitions may be."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a copy of the source is trusted for: offsets ``[start, end)`` by partition; and the ``routes`` there, as of the last look.

    What is ``offered`` is being compared: it may be fetched meanwhile, and nothing of it taken.
    """

    cluster: ClusterSettings
    offsets: Mapping[TopicPartition, tuple[int, int]]
    routes: Routes
    offered: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)

    def reach(self, source: TopicPartition) -> tuple[int, int]:
        """What it holds of a partition, or offers."""
        return self.offsets.get(source) or self.offered.get(source, (0, 0))


@dataclass(slots=True, eq=False)
class Line:
    """One broker of one cluster; ``alias`` is "" for the source itself.

    ``asked`` are the segments that it has, with the time at which it got them, ``waiting`` their bytes; ``rate`` are bytes a second,
    ``usual`` the seconds from getting a segment to having it, both 0 while unknown; ``strikes`` count segments in a row that it was too
    slow for; until ``rests`` it gets none.
    """

    alias: str
    client: WireClient
    node: int
    fetch: ParallelFetch
    asked: dict[Segment, float] = field(default_factory=dict)
    waiting: int = 0
    round_trip: float = 0.0
    rate: float = 0.0
    usual: float = 0.0
    strikes: int = 0
    rests: float = 0.0
    _seen: tuple[float, int, float] = (0.0, 0, 0.0)

    def settle(self, now: float) -> None:
        """Notice what has become ready, and how fast it came."""
        for segment, since in [*self.asked.items()]:
            if segment.ready or segment.passed:
                del self.asked[segment]
                if segment.ready and segment.error is None:
                    took = now - since
                    self.usual = took if not self.usual else self.usual + (took - self.usual) / 8
                    self.strikes = 0
        self.waiting = sum(segment.size for segment in self.asked)
        self.round_trip = self.client.round_trip
        at, size, stood = self._seen
        if now - at >= RATE_SECONDS:
            brought, idle = self.fetch.throughput.bytes, self.fetch.throughput.idle
            began = self.fetch.throughput.began
            if at and brought > size and began is not None and now - began > STARTED_SECONDS:
                self._learn(brought - size, now - at, idle - stood)
            self._seen = now, brought, idle

    def _learn(self, size: int, seconds: float, idle: float) -> None:
        """It brought this much; ``idle`` of these seconds it had nothing to do."""
        busy = seconds - idle
        if busy > (1 - MOST_IDLE) * seconds:
            rate = size / busy
            self.rate = rate if not self.rate else (self.rate + rate) / 2
        else:  # a low rate, measured while connections started, gets it little to do, and would be measured for ever
            self.rate = max(self.rate, min(size / max(busy, LEAST_BUSY * seconds), MOST_RISE * self.rate))

    def takes_more(self, now: float) -> bool:
        """Whether it should get another segment now."""
        if not self.fetch.reads or now < self.rests:
            return False
        if self.strikes >= STRIKES:
            return not self.asked  # on trial
        if not self.rate:
            return len(self.asked) < max(1, self.fetch.connected)  # those that are still being opened read nothing
        return len(self.asked) < LEAST_CONNECTIONS or self.waiting < self.rate * self.given

    @property
    def given(self) -> float:
        """Seconds for which it is given something to do, by its rate."""
        return self.round_trip + WAITING_SECONDS

    @property
    def patience(self) -> float:
        """Seconds for a segment that everything waits for."""
        return max(LEAST_PATIENCE, PATIENT_TIMES * self.usual, PATIENT_TRIPS * self.round_trip)

    def stands(self, now: float) -> bool:
        """Whether what it has will come too late, not only one segment: nothing comes of it, or less than it was given it for."""
        return self.fetch.quiet(now) > self.patience / 2 or bool(self.rate) and self.due(0) > self.patience + self.given

    def due(self, size: int) -> float:
        """Seconds until it would have this many bytes more."""
        if not self.rate:
            return SLOW_START_SECONDS + self.round_trip * len(self.asked)
        return self.round_trip + (self.waiting + size) / self.rate


class SeveralSources(ReadAhead):
    """The segments of a lane's partitions, dealt to the lines of all clusters that hold them.

    Args:
        origin: a client of the source.
        counts: the learnt number of connections to a cluster, by alias.
        open_copy: a client of a copy.
        asked: the user's ``engine.connections``.

    ``left_out`` says what was found wrong in a copy's partition, by alias: it is not read from there any more. ``lost`` are copies that
    do not answer, or stand. ``unheld`` are partitions of the share that no cluster can give now.
    """

    def __init__(
        self, origin: WireClient, counts: Callable[[str], ConnectionCount], open_copy: Callable[[ClusterSettings], WireClient],
        *, asked: int | None,
    ) -> None:  # fmt: skip
        super().__init__(origin, origin.round_trip, ROOM_BYTES)
        self._counts, self._open_copy, self._asked = counts, open_copy, asked
        self._origin_leads: dict[TopicPartition, int] = {}
        self._copies: dict[str, tuple[WireClient, Holding]] = {}
        self._pauses: dict[str, Callable[[int], None]] = {}
        self._lines: dict[tuple[str, int], Line] = {}
        self._ways: dict[TopicPartition, list[tuple[Line, int, int]]] = {}
        self._undealt: deque[Segment] = deque()
        self._dealt: dict[Segment, tuple[Line, int]] = {}
        self._dealt_bytes = 0
        self._settled = 0.0
        self.left_out: dict[tuple[str, TopicPartition], str] = {}
        self.lost: set[str] = set()
        self.unheld: set[TopicPartition] = set()

    def hold(
        self, leaders: Mapping[TopicPartition, int], holdings: Iterable[Holding], throttle: Callable[[], Callable[[int], None]]
    ) -> None:
        """Who holds what from now on.

        Args:
            leaders: of the source, as far as they answer.
            holdings: of the copies. One that is not among them any more gets nothing.
            throttle: makes the limit of one cluster: called with the bytes that it brought; may wait.
        """
        self._origin_leads = dict(leaders)
        before, self._copies = self._copies, {}
        for holding in holdings:
            alias = holding.cluster.alias
            client, known = before.get(alias) or (self._open_copy(holding.cluster), None)
            if known is None or known.routes != holding.routes:  # else what it has learnt since is newer
                client.follow(holding.routes)
            self._copies[alias] = client, holding
        self._ways.clear()
        for segment in [each for each, (line, _) in self._dealt.items() if line.alias and not self._is_copied(each, trusted=False)]:
            self._again(segment)
        self._pauses = {alias: throttle() for alias in ("", *self._copies)}
        for line in self._lines.values():
            line.fetch.pause = self._pauses.get(line.alias, line.fetch.pause)

    def _is_copied(self, segment: Segment, *, trusted: bool = True) -> bool:
        """Whether the copy that a segment was given to is trusted for all of it, or holds it at least."""
        _, holding = self._copies.get(segment.alias, (None, None))
        if holding is None:
            return False
        start, end = holding.offsets.get(segment.source, (0, 0)) if trusted else holding.reach(segment.source)
        return start <= segment.start and segment.upto <= end

    def _may_be_taken(self, segment: Segment) -> bool:
        return segment.ready and (not segment.alias or self._is_copied(segment))

    def continues(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether what is in flight is what these ranges need next."""
        return self._in_place(ranges)

    def brought(self) -> tuple[int, float]:
        """Nothing for the count of the source's connections: each line has its own."""
        return 0, 0.0

    def next(self, deadline: float | None, *, patience: Callable[[int], float] = lambda node: math.inf) -> Segment | None:
        """As of :class:`ReadAhead`. A partition of the share that nobody can give now is left out: it is ``unheld``."""
        began = time.monotonic()
        while True:
            self._news.clear()
            self._deal()
            waiting: list[Segment] = []
            for source in list(self._turn):
                row = self._rows[source]
                if not row or row[0].start >= self._stops[source]:
                    self._turn.remove(source)
                elif not self._may_be_taken(row[0]):
                    waiting.append(row[0])
                elif self._takes(row[0]):
                    self._turn.remove(source)
                    self._turn.append(source)
                    return row[0]
                else:
                    waiting.append(row[0])
            waiting = [segment for segment in waiting if self._is_held(segment, began, patience)]
            if not waiting or not self._wait_for(waiting, deadline):
                return None

    def end(self) -> None:
        """Read nothing more; clients get their connections back."""
        for line in self._lines.values():
            end_fetch(line.fetch, line.client, line.node)
        self._lines.clear()
        self._rows.clear()
        self._undealt.clear()

    # Dealing: which line reads which segment.

    def _read(self, more: Sequence[Segment], count: int, pause: Callable[[int], None]) -> None:
        del count, pause  # each line has its own
        self.unheld = set()
        self._undealt.extend(more)

    def _deal(self) -> None:
        """Give every line that can take more the next segments that it holds, in the order in which they will be taken."""
        now = time.monotonic()
        if now - self._settled >= LINE_LOOK_SECONDS:
            self._settled = now
            for each in self._lines.values():
                each.settle(now)
        firsts = {row[0] for row in self._rows.values() if row and row[0] not in self._dealt}
        free = not self._ways or self._any_free(now)
        passed_over: list[Segment] = []
        while (free or firsts) and self._undealt and len(passed_over) < LOOKED_AT:
            full = self._dealt_bytes + self._undealt[0].size > self._room
            if full and not firsts:
                break
            segment = self._undealt.popleft()
            if segment.passed:
                continue
            first = segment in firsts
            line = None if full and not first else self._choose(segment, now, first=first)
            if line is None:
                passed_over.append(segment)
            else:
                self._give(segment, line, now)
                firsts.discard(segment)
                free = self._any_free(now)
        self._undealt.extendleft(reversed(passed_over))

    def _any_free(self, now: float) -> bool:
        return any(line.takes_more(now) for line in self._lines.values())

    def _choose(self, segment: Segment, now: float, *, first: bool) -> Line | None:
        """The line that will have it soonest, of those that can take more; of the ``first`` of a partition, of all that read."""
        holding = self._holding(segment, now)
        free = [line for line in holding if line.takes_more(now)]
        if not free and first:
            free = [line for line in holding if line.strikes < STRIKES] or holding
        return min(free, key=lambda line: (first and not line.rate, line.due(segment.size)), default=None)

    def _give(self, segment: Segment, line: Line, now: float) -> None:
        segment.alias = line.alias
        line.asked[segment] = now
        line.waiting += segment.size
        self._dealt[segment] = line, segment.size
        self._dealt_bytes += segment.size
        line.fetch.add([segment])

    def _holding(self, segment: Segment, now: float) -> list[Line]:
        """The lines that hold all of a segment and read now."""
        source = segment.source
        if source not in self._ways:
            self._ways[source] = self._ways_to(source)
        return [
            line for line, start, end in self._ways[source]
            if start <= segment.start and segment.upto <= end and (line.alias, source) not in self.left_out
            and line.fetch.reads and now >= line.rests
        ]  # fmt: skip

    def _ways_to(self, source: TopicPartition) -> list[tuple[Line, int, int]]:
        found: list[tuple[Line, int, int]] = []
        if source in self._origin_leads:
            found.append((self._line("", self._client, self._origin_leads[source]), 0, 1 << 63))
        for alias, (client, holding) in self._copies.items():
            node = client.known_leader(source)
            start, end = holding.reach(source)
            if end and node is not None:
                try:
                    found.append((self._line(alias, client, node), start, end))
                except KeyError:  # that broker has left the cluster since
                    client.forget(source)
        return found

    def _line(self, alias: str, client: WireClient, node: int) -> Line:
        line = self._lines.get((alias, node))
        if line is None or not line.fetch.reads and time.monotonic() >= line.rests:
            count = self._counts(alias).now(client.round_trip, self._asked) or LEAST_CONNECTIONS
            fetch = self._fetch_from(client, node, count, self._pauses[alias])
            fetch.most = count
            fetch.start(count)
            line = self._lines[alias, node] = Line(alias, client, node, fetch, round_trip=client.round_trip)
        return line

    # Taking: what a line has brought, or failed to bring.

    def _pass(self, segment: Segment, *, rest: bool = False) -> None:
        if segment not in self._dealt:
            segment.passed = True
            return
        line, size = self._dealt.pop(segment)
        self._dealt_bytes -= size
        line.asked.pop(segment, None)
        line.fetch.passed(segment, rest=rest)
        if segment.rest is not None and not rest:
            self._dealt[segment.rest] = line, segment.rest.size
            self._dealt_bytes += segment.rest.size
            line.asked.setdefault(segment.rest, time.monotonic())

    def _takes(self, segment: Segment) -> bool:
        """Whether a segment that is ready may be taken; otherwise another line reads it, if one holds it."""
        if segment not in self._dealt:
            return True
        line, now = self._dealt[segment][0], time.monotonic()
        refused = any(answer.error for answer in segment.answers)
        if segment.error is None and not refused:
            wrong = segment.alias and (_unsound(segment) if segment.fault is None else str(segment.fault))
            if not wrong:
                return True
            self.left_out[segment.alias, segment.source] = wrong
        else:
            line.client.forget(segment.source)
            self._ways.pop(segment.source, None)
            line.rests = now if refused else now + LINE_REST_SECONDS
        if not segment.alias and not any(each is not line for each in self._holding(segment, now)):
            return True
        if not line.fetch.reads:
            self.lost.add(line.alias)
            self._give_back(line)
        self._again(segment)
        return False

    def _again(self, segment: Segment, *, late: bool = False) -> None:
        """Let another line read a segment, with all that was cut off it."""
        row = self._rows[segment.source]
        size = round(segment.size * (segment.upto - segment.start) / max(1, segment.end - segment.start))
        fresh = Segment(segment.source, segment.start, segment.upto, size, segment.slack, known=segment.known, moves=segment.moves + late)
        row[row.index(segment)] = fresh
        self._pass(segment, rest=True)
        self._undealt.appendleft(fresh)

    def _give_back(self, line: Line) -> None:
        """Let the other lines read what this one has not brought."""
        mine = {segment for segment, (holder, _) in self._dealt.items() if holder is line and not segment.ready}
        rows = [[segment for segment in row if segment in mine] for row in self._rows.values()]
        for segment in reversed(in_turn(rows)):
            self._again(segment)

    def _is_held(self, segment: Segment, began: float, patience: Callable[[int], float]) -> bool:
        """Whether a segment that is waited for may still come; if not, its partition is left out of this share."""
        now, source = time.monotonic(), segment.source
        line = self._dealt[segment][0] if segment in self._dealt else None
        if line is None:
            held = bool(self._holding(segment, now))
        else:
            patient = patience(line.node) if not line.alias else max(COPY_SECONDS, line.patience)
            held = segment.ready or patient > min(now - began, line.fetch.quiet(now))
        if not held:
            self._turn.remove(source)
            self.unheld.add(source)
        return held

    def _wait_for(self, waiting: Sequence[Segment], deadline: float | None) -> bool:
        """Wait a moment until one of these may be taken; what has been waited for too long another line reads, too.

        False: it is too late, or copies must be compared first, of which the next share knows.
        """
        now = time.monotonic()
        for segment in waiting:
            if segment not in self._dealt or segment.ready:
                continue
            line = self._dealt[segment][0]
            line.fetch.prioritise(segment)
            stands = line.stands(now)
            # One that brings something gets longer each time: if all are slow, they would take it from each other for ever.
            late = now - line.asked.get(segment, now) > line.patience * (1 if stands else 2**segment.moves)
            if late and any(each is not line and each.strikes < STRIKES for each in self._holding(segment, now)):
                line.strikes += stands
                if line.strikes < STRIKES:
                    self._again(segment, late=True)
                else:
                    line.rests = now + LINE_REST_SECONDS
                    self.lost.add(line.alias)
                    self._give_back(line)
        if any(self._may_be_taken(segment) for segment in waiting):
            return True
        if deadline is not None and now >= deadline:
            return False
        if all(segment.ready for segment in waiting):
            time.sleep(SEGMENT_WAIT_SECONDS)
            return False
        self._news.wait(SEGMENT_WAIT_SECONDS if deadline is None else min(SEGMENT_WAIT_SECONDS, deadline - now))
        return True


def _unsound(segment: Segment) -> str:
    """Why the answers of a copy cannot be taken; "" if every offset of the segment is there once, in batches with their checksums."""
    at = segment.start
    for answer in segment.answers:
        try:
            for place, header in headers(answer.records):
                if header.next_offset <= at:
                    continue
                if header.magic < 2 or header.records != header.last_offset_delta + 1 or header.base_offset > at:
                    return f"offset {at:,} is missing, or in a batch of an old format"
                check(answer.records, place, header)
                at = header.next_offset
        except CorruptBatch as error:
            return error.message
    return "" if at >= segment.end else f"offset {at:,} is missing"
