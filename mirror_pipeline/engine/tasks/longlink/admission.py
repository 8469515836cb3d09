"""Which segment starts next, and whether there is memory for it.

    held = bytes that requests in flight may bring
         + bytes received of segments that are incomplete, or not taken over by the reader yet

A request counts before it is sent, as the bytes it asks for, or as the largest batch known if that is more: brokers send a
first batch whole, however little was requested. Segments of the micro-batch that is being read come before those read ahead
of it and have more room. The one the reader waits for needs no room, so that memory full of later segments never
stops it. ``held`` stays below the room plus that one request plus the excess of batches larger than any seen before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping

from mirror_pipeline.engine.tasks.longlink.segments import PROBES, SLACK_BATCHES, Attempt, Estimate, Segment
from mirror_pipeline.model import TopicPartition

ROOM_BYTES = 320 * 2**20
"""At 1 Gbit/s and 200 ms half of it is in flight; the rest holds about a second of input."""
LEAST_ROOM_BYTES = 64 * 2**20
"""Of each of many Spark tasks that share a link."""
AHEAD_SHARE = 0.85
"""The part of it that read-ahead may fill."""
FIRST_PROBES = 16
"""Segments in flight of all partitions whose batch sizes are unknown, until some have answered; then twice as many."""
TOO_LARGE = 1.5
"""A segment of this many times the usual size is cut before it starts."""
UNKNOWN_BATCH_MAX = 1_048_588
"""The largest batch of a topic with Kafka's default settings."""


def room_of(tasks: int) -> int:
    """Bytes for each of this many tasks that read over one link."""
    return max(LEAST_ROOM_BYTES, ROOM_BYTES // tasks)


class Admission:
    """The segments of one broker's partitions that have not started, and the memory of those that have.

    ``add``, ``passed`` and ``wait_for`` are called by the reader's thread, all else by the one that fetches.
    """

    def __init__(self) -> None:
        self.room = ROOM_BYTES
        self._lock = threading.RLock()
        self._held = 0
        self._needed: deque[Segment] = deque()
        self._ahead: deque[Segment] = deque()
        self._stops: dict[TopicPartition, int] = {}
        self._urgent: Segment | None = None
        self._learnt: dict[TopicPartition, Estimate] = {}
        self._largest = UNKNOWN_BATCH_MAX
        self._probing: dict[TopicPartition, int] = {}

    @property
    def held(self) -> int:
        """Bytes in memory or in flight."""
        return self._held

    @property
    def waiting(self) -> int:
        """Segments that have not started."""
        return len(self._needed) + len(self._ahead)

    @property
    def urgent(self) -> Segment | None:
        """The segment that the reader waits for, while it does."""
        urgent = self._urgent
        return None if urgent is None or urgent.ready else urgent

    def add(self, segments: Iterable[Segment], stops: Mapping[TopicPartition, int] | None = None) -> None:
        """Read these as well, after all others.

        Args:
            segments: in the order in which they will be taken over.
            stops: the offset of each partition up to which the reader needs them now; as before when None.
        """
        with self._lock:
            self._stops = dict(stops) if stops is not None else self._stops
            rows = [*self._needed, *self._ahead, *segments]
            self._needed = deque(segment for segment in rows if self._is_needed(segment))
            self._ahead = deque(segment for segment in rows if not self._is_needed(segment))

    def wait_for(self, segment: Segment) -> None:
        """The reader waits for this segment: it needs no room."""
        self._urgent = segment

    def passed(self, segment: Segment) -> None:
        """This segment is no longer needed: its memory is free."""
        with self._lock:
            segment.passed = True
            self._held -= segment.held
            segment.held = 0

    def passed_all(self, segment: Segment) -> None:
        """As ``passed``, with what was cut off it."""
        with self._lock:
            piece: Segment | None = segment
            while piece is not None:
                self.passed(piece)
                piece = piece.rest

    def next(self) -> Segment | None:
        """The next segment to start; None when there is none, or no room for it now."""
        with self._lock:
            urgent = self.urgent
            for row, room in ((self._needed, self.room), (self._ahead, AHEAD_SHARE * self.room)):
                if urgent is not None and not urgent.attempts and urgent in row:
                    self._fit(urgent)
                    row.remove(urgent)
                    return urgent
                found = self._first(row, room)
                if found is not None:
                    return found
            return None

    def may_repeat(self, segment: Segment) -> bool:
        """Whether there is room to request a segment once more."""
        return segment is self._urgent or self._has_room(segment, self.room)

    def ask(self, attempt: Attempt) -> int:
        """Bytes to request; they count as held from now on."""
        segment = attempt.segment
        with self._lock:
            known = self._learnt.get(segment.source)
            size = attempt.left(known.batch if known else 0)
            attempt.charge = max(size, self._batch(segment))
            self._held += attempt.charge
            attempt.probing = known is None and not segment.known
            if attempt.probing:
                self._probing[segment.source] = self._probing.get(segment.source, 0) + 1
            return size

    def came(self, attempt: Attempt, size: int) -> int:
        """An attempt has taken an answer; returns the waiting segments of a partition whose batch sizes are now known."""
        with self._lock:
            self._uncharge(attempt)
            if attempt.segment.ready or attempt.segment.passed:
                self._drop(attempt)
                return 0
            attempt.received += size
            self._held += size
            return self._learn(attempt)

    def lost(self, attempt: Attempt) -> None:
        """An attempt has ended without result; what it received is dropped."""
        with self._lock:
            self._uncharge(attempt)
            self._drop(attempt)

    def throttled(self, attempt: Attempt) -> None:
        """A request got no answer: it will be sent again."""
        with self._lock:
            self._uncharge(attempt)

    def complete(self, attempt: Attempt, *, cut: bool) -> int:
        """Its segment is read, with ``cut`` only as far as this attempt came: the rest starts next. Returns the segments of that rest."""
        segment, more = attempt.segment, 0
        with self._lock:
            if cut and not segment.passed:
                known = self._learnt[segment.source]
                rest = segment.cut(attempt.next, known)
                more = known.steps(rest.start, rest.end)
                (self._needed if self._is_needed(rest) else self._ahead).appendleft(rest)
            for other in segment.attempts:
                if other is not attempt or segment.passed:
                    self._drop(other)
            segment.answers, segment.held, attempt.received = attempt.answers, attempt.received, 0
            segment.attempts = []
            segment.ready = True
        return more

    def close(self) -> list[Segment]:
        """The segments that will not start."""
        with self._lock:
            left = [*self._needed, *self._ahead]
            self._needed.clear()
            self._ahead.clear()
            return left

    def _is_needed(self, segment: Segment) -> bool:
        return segment.start < self._stops.get(segment.source, segment.end)

    def _first(self, row: deque[Segment], room: float) -> Segment | None:
        """The first of a row that may start."""
        while row and row[0].passed:
            row.popleft()
        for segment in row:
            if self._knows(segment) or self._may_probe(segment.source):
                self._fit(segment)
                if not self._has_room(segment, room):
                    return None
                row.remove(segment)
                return segment
        return None

    def _has_room(self, segment: Segment, room: float) -> bool:
        return not self._held or self._held + max(segment.size + segment.slack, self._batch(segment)) <= room

    def _knows(self, segment: Segment) -> bool:
        return segment.known or segment.source in self._learnt

    def _may_probe(self, source: TopicPartition) -> bool:
        return self._probing.get(source, 0) < PROBES and sum(self._probing.values()) < max(FIRST_PROBES, 2 * len(self._learnt))

    def _batch(self, segment: Segment) -> int:
        """The largest batch it may bring, as far as is known."""
        known = self._learnt.get(segment.source)
        if known is not None:
            return known.batch
        return int(segment.slack / SLACK_BATCHES) if segment.known else self._largest

    def _fit(self, segment: Segment) -> None:
        """Size a segment that has not started by what was learnt since it was cut, and cut it again if it is too large."""
        known = self._learnt.get(segment.source)
        if known is None:
            return
        if segment.end - segment.start > TOO_LARGE * known.step:
            self._put(segment.cut(segment.start + known.step, known), behind=segment)
        segment.size, segment.slack = known.size(segment.end - segment.start), int(SLACK_BATCHES * known.batch)

    def _put(self, piece: Segment, *, behind: Segment) -> None:
        """Before later segments of its partition, else after all others: partitions take turns."""
        row = self._needed if self._is_needed(piece) else self._ahead
        for place, each in enumerate(row):
            if each.source == piece.source and each is not behind:
                row.insert(place, piece)
                return
        row.append(piece)

    def _learn(self, attempt: Attempt) -> int:
        if not attempt.per_offset:
            return 0
        source, each = attempt.segment.source, attempt.per_offset
        before = self._learnt.get(source)
        now = self._learnt[source] = Estimate(each if before is None else (before.per_offset + each) / 2, attempt.batch)
        self._largest = max(self._largest, attempt.batch)
        if before is not None or attempt.segment.known:
            return 0
        rows = (self._needed, self._ahead)
        return sum(now.steps(waits.start, waits.end) for row in rows for waits in row if waits.source == source)

    def _uncharge(self, attempt: Attempt) -> None:
        self._held -= attempt.charge
        attempt.charge = 0
        if attempt.probing:
            attempt.probing = False
            self._probing[attempt.segment.source] -= 1

    def _drop(self, attempt: Attempt) -> None:
        self._held -= attempt.received
        attempt.received = 0
        attempt.answers = []
