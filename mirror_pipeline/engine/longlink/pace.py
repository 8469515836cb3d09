"""The usual time of a segment on one connection, and which answers are late."""

from __future__ import annotations

from mirror_pipeline.engine.longlink.segments import Attempt, Segment

LATE, LATE_WHILE_IDLE, LEAST_LATE_SECONDS = 3.0, 2.0, 0.25
"""A segment is late after so many times the usual time for its bytes, sooner where connections have nothing else to do."""
MOST_ATTEMPTS = 3
"""At once, of a segment that is asked for before it is late because everything waits for it."""
LEARNING = 0.02
"""What is usual is the median: each answer moves it by so much."""


class Pace:
    """The seconds a byte usually takes on one connection: the median over all of them."""

    def __init__(self) -> None:
        self._usual = 0.0

    def learn(self, seconds_per_byte: float, *, busy: bool) -> None:
        """Take an answer into account, unless connections lack work: then most answers come from slow connections."""
        if not self._usual:
            self._usual = seconds_per_byte
        elif busy:
            self._usual *= 1 + LEARNING if seconds_per_byte > self._usual else 1 - LEARNING

    def is_late(self, attempt: Attempt, now: float, *, busy: bool) -> bool:
        """Whether an answer takes so much longer than usual that the segment should be asked for over another connection, too."""
        allowed = max(LEAST_LATE_SECONDS, (LATE if busy else LATE_WHILE_IDLE) * self._usual * attempt.segment.size)
        return bool(self._usual) and now - attempt.since > allowed * max(1, len(attempt.segment.attempts))

    def keeps_waiting(self, segment: Segment, now: float) -> bool:
        """Whether a segment that everything waits for has been asked for longer ago than one usually takes, wherever it stands."""
        if not self._usual or not 0 < len(segment.attempts) < MOST_ATTEMPTS:
            return False
        return now - segment.attempts[-1].asked > max(LEAST_LATE_SECONDS, self._usual * segment.size)
