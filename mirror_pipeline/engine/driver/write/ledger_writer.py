"""Records in the ledger what is on the target: sends, and the gaps among them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import Gap, HoleCause, Send

log = logging.getLogger(__name__)

# Sends are recorded together: a transaction for each turn would cost more than the turn. Until then the target's log has them.
LEDGER_TOGETHER_SECONDS, TOGETHER_SENDS = 1.0, 10_000
# Causes that mean a record is missing on the target; the others never were records to copy.
LOSS_CAUSES = (HoleCause.RETENTION, HoleCause.TRUNCATION, HoleCause.QUARANTINED, HoleCause.UNEXPLAINED)


class LedgerWriter:
    """Sends of one run that are not in the ledger yet; used by the write loop alone."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._number = context.ledger.last_record() + 1
        self._unwritten: list[Send] = []
        self._due = 0.0
        self._unknown_sends = 0

    def add(self, sends: Sequence[Send]) -> None:
        """Queue ``sends`` for :meth:`write`, which is due a second later at most."""
        if sends and not self._unwritten:
            self._due = time.monotonic() + self._context.store.spaced(LEDGER_TOGETHER_SECONDS)
        self._unwritten += sends

    @property
    def due(self) -> bool:
        """Whether something has waited long enough to be written."""
        return bool(self._unwritten) and (time.monotonic() >= self._due or len(self._unwritten) >= TOGETHER_SENDS)

    def write(self) -> bool:
        """Write what is queued into the ledger; False while the disk is full.

        The records are on the target, whose log shows the same to the next run: waiting loses nothing.

        Raises:
            BufferUnusable: the ledger cannot be written for another reason.
        """
        try:
            self._resolve_unknown()
            self._record(self._unwritten)
        except BufferUnusable as error:
            if not error.retryable:
                raise
            log.warning("the ledger waits: %s", error.message)
            with self._context.state.lock:
                self._context.state.buffer_is(error.message)
            self._context.room_wanted.set()
            return False
        self._unwritten = []
        return True

    def _resolve_unknown(self) -> None:
        """Find out whether a record landed whose answer was lost with the store."""
        if self._unknown_sends:
            self._context.hold.check()  # a record of this number is ours only while the lane is
            if self._context.ledger.recorded(self._number):
                del self._unwritten[: self._unknown_sends]
                self._number += 1
            self._unknown_sends = 0

    def _record(self, sends: Sequence[Send]) -> None:
        if not sends:
            return
        gaps = self._gaps(sends)
        self._context.hold.check()
        crash_point("record.before")
        self._unknown_sends = len(sends)
        landed = self._context.ledger.record(self._number, sends, gaps)
        self._unknown_sends = 0
        if not landed:
            raise BufferUnusable(
                f"ledger record {self._number} of lane {self._context.lane} was already written by another run",
                hint="two runs of one lane? end one of them",
            )
        crash_point("record.after")
        self._number += 1
        with self._context.state.lock:
            self._context.state.gaps += len(gaps)

    def _gaps(self, sends: Sequence[Send]) -> list[Gap]:
        mirror, now = self._context.mirror, int(time.time() * 1000)
        return [
            Gap(
                mirror.name, s.topic, s.partition, s.incarnation, s.source_start, s.source_end, s.cause,
                self._context.permits.decided_by(s, self._context.mirror.on_loss), now,
            )
            for s in sends
            if s.cause in LOSS_CAUSES
        ]  # fmt: skip
