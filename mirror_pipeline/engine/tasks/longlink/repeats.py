"""Segments that are requested once more: their connection is late, overtaken or lost."""

from __future__ import annotations

import threading
from collections import deque

from mirror_pipeline.engine.tasks.longlink.admission import Admission
from mirror_pipeline.engine.tasks.longlink.segments import Attempt, Pace, Segment

# A segment fails after this many connections were lost while its answer was due.
CONNECTION_LOSSES = 3


class Repeats:
    """Which segments to request again, and which to give up.

    Args:
        admission: the memory of their attempts.
        pace: the usual time of a segment.
        news: set whenever a segment is given up.
    """

    def __init__(self, admission: Admission, pace: Pace, news: threading.Event) -> None:
        self._admission = admission
        self._pace = pace
        self._news = news
        self._again: deque[Segment] = deque()

    def next(self) -> Segment | None:
        """The first segment for whose second answer there is memory."""
        self._again = deque(segment for segment in self._again if not (segment.ready or segment.passed))
        for segment in self._again:
            if self._admission.may_repeat(segment):
                self._again.remove(segment)
                return segment
        return None

    def late(self, attempt: Attempt) -> None:
        """Request what a slow connection has in flight over another one as well, once all its attempts are late."""
        attempt.late = True
        if not attempt.segment.ready and all(other.late for other in attempt.segment.attempts):
            self._again.append(attempt.segment)

    def repeat_urgent(self, now: float) -> None:
        """On a link slower than its reader, every segment is waited for: a second request is worth it only where memory runs out."""
        urgent = self._admission.urgent
        if urgent is None or urgent in self._again or self._admission.held <= self._admission.room // 2:
            return
        if not self._pace.keeps_waiting(urgent, now):
            return
        for attempt in urgent.attempts:
            attempt.late = True
        self._again.append(urgent)

    def release(self, attempt: Attempt, error: Exception | None) -> None:
        """End an attempt: another one of its segment continues, or is made. ``error``: the connection was lost over its answer."""
        segment = attempt.segment
        self._admission.lost(attempt)
        if attempt in segment.attempts:
            segment.attempts.remove(attempt)
        if segment.ready or segment.attempts:
            return
        segment.losses += error is not None
        if error is not None and segment.losses >= CONNECTION_LOSSES:
            self.give_up(segment, error)
        else:
            self._again.append(segment)

    def give_up(self, segment: Segment, error: Exception) -> None:
        """The reader gets the error in place of the segment."""
        if not segment.ready:
            for attempt in segment.attempts:
                self._admission.lost(attempt)
            segment.error = error
            segment.ready = True
            self._news.set()

    def give_up_all(self, error: Exception) -> None:
        """Give up every segment that was to be requested again."""
        for segment in self._again:
            self.give_up(segment, error)
