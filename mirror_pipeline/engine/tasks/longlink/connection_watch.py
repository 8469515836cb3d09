"""Finds the connections of parallel fetch whose answers are late, overtaken by another connection, or never come."""

from __future__ import annotations

from collections.abc import Callable

from mirror_pipeline.engine.tasks.longlink.dialer import Dialer
from mirror_pipeline.engine.tasks.longlink.repeats import Repeats
from mirror_pipeline.engine.tasks.longlink.segments import Pace
from mirror_pipeline.engine.tasks.longlink.slots import Slot, Slots
from mirror_pipeline.errors import ConnectionLost

# How long a broker holds a request open for data.
WAIT_MS = 500
# Between two checks of all connections.
CONNECTION_LOOK_SECONDS = 0.1
# An overtaken connection is replaced after this many seconds without input.
SILENT_CONNECTION_SECONDS = 2.0


class ConnectionWatch:
    """Used by the thread that fetches.

    Args:
        slots: the connections.
        repeats: takes segments that should be requested over another connection.
        pace: what is late.
        dialer: opens connections in place of those that are closed.
        lost: called for each connection that timed out.
    """

    def __init__(self, slots: Slots, repeats: Repeats, pace: Pace, dialer: Dialer, *, lost: Callable[[Slot, Exception], None]) -> None:
        self._slots = slots
        self._repeats = repeats
        self._pace = pace
        self._dialer = dialer
        self._lost = lost
        self.looked = 0.0

    def look(self, now: float, *, due: bool, busy: bool) -> None:
        """Check all connections, if the last check is long enough ago.

        Args:
            now: monotonic seconds.
            due: an answer was due: seconds in which this thread was held up then count for no connection.
            busy: no connection lacks work.
        """
        if now - self.looked < CONNECTION_LOOK_SECONDS:
            return
        held_up = max(0.0, now - self.looked - 2 * CONNECTION_LOOK_SECONDS) if due else 0.0
        self.looked = now
        for slot in self._slots:
            if slot.asked:
                self._check(slot, now, held_up, busy=busy)
        self._repeats.repeat_urgent(now)

    def rest(self, slot: Slot) -> None:
        """Send no more requests over a connection that is slow, or whose session ends soon. Once it has none in flight it is replaced
        by a new one, opened in the background."""
        self._slots.half.pop(slot, None)
        if not slot.asked:
            self._replace(slot)

    def _check(self, slot: Slot, now: float, held_up: float, *, busy: bool) -> None:
        slot.asked[0].since += held_up
        slot.moved += held_up
        for attempt in slot.asked:
            attempt.asked += held_up
        if now - slot.moved > slot.connection.timeout + WAIT_MS / 1000:
            self._lost(slot, ConnectionLost(f"{slot.connection.peer}: timed out while receiving"))
            return
        attempt = slot.asked[0]
        if attempt.late and attempt.segment.ready:
            self._overtaken(slot, now)
        elif not attempt.late and self._pace.is_late(attempt, now, busy=busy):
            self._slots.half.pop(slot, None)
            self._repeats.late(attempt)

    def _overtaken(self, slot: Slot, now: float) -> None:
        """Another connection was faster: the later requests on this one must not wait as well."""
        if now - slot.moved > SILENT_CONNECTION_SECONDS:
            self._replace(slot)
            return
        for attempt in slot.asked:
            if not attempt.late:
                self._repeats.late(attempt)

    def _replace(self, slot: Slot) -> None:
        self._slots.remove(slot)
        for attempt in slot.asked:
            self._repeats.release(attempt, None)
        self._dialer.want(1)
