"""The write loop of a lane: the order of all that a lane does on its target, and what an error of any step means.

    ledger: record what is due -> outcomes: recover -> sender: send spans -> ledger ...

One thread runs all steps. Nothing is sent to a topic before
:class:`~mirror_pipeline.engine.driver.topics.preparing.Preparing` has checked it, or to a partition before its outcome is known; and
an error of any step says the same about the target, so they share one patience and one backoff. What the target answers about one
partition is that partition's, with a patience and a backoff of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mirror_pipeline.engine.driver.context import FULL_DISK_POLL_SECONDS, LaneContext, Losses
from mirror_pipeline.engine.driver.state import PartitionState
from mirror_pipeline.engine.driver.write.ledger_writer import LedgerWriter
from mirror_pipeline.engine.driver.write.outcomes import SendOutcomes
from mirror_pipeline.engine.driver.write.sender import Sender
from mirror_pipeline.engine.driver.write.target_health import TargetHealth
from mirror_pipeline.errors import BufferUnusable, ClusterUnreachable, ConnectionLost
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.kafka.client import WireClient

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.2


class WriteLoop:
    """Sends what is staged until the run ends. Runs in a thread of its own."""

    def __init__(self, context: LaneContext, client: WireClient) -> None:
        self._context = context
        self._state = context.state
        losses = Losses()
        self._health = TargetHealth(context, client)
        self._ledger_writer = LedgerWriter(context)
        self._outcomes = SendOutcomes(context, client, self._health, self._ledger_writer, losses)
        self._sender = Sender(context, client, self._outcomes, losses)

    def run(self) -> None:
        """Send until stopped or, with ``once``, until the read loop has ended and all of it is sent; errors end the lane."""
        try:
            while not self._context.stop.is_set():
                try:
                    if not self._turn():
                        break
                except (ConnectionLost, ClusterUnreachable) as error:
                    self._health.lost(error)
                except BufferUnusable as error:
                    if not error.retryable:
                        raise
                    self._buffer_unusable(error)
            self._ledger_writer.write()
        except Exception as error:  # noqa: BLE001 - handed to the run's own thread, which raises it
            self._context.fail(error)
        finally:
            self._health.close()
            worker_cache.close()

    def _turn(self) -> bool:
        """Run each step once; False when nothing is left to do."""
        self._context.hold.check()
        if self._ledger_writer.due and not self._ledger_writer.write():
            self._context.stop.wait(FULL_DISK_POLL_SECONDS)
            return True
        self._outcomes.recover()
        with self._state.lock:
            self._health.give_up()
            parts = self._state.checked()
            skipped = self._outcomes.pass_holes(parts)
            work, over = self._sender.choose(parts), self._over(parts)
        self._ledger_writer.add(skipped)
        if work:
            self._sender.send(work)
            return True
        if over:
            return not self._ledger_writer.write()
        self._wait(parts)
        return True

    def _over(self, parts: Sequence[PartitionState]) -> bool:
        """Whether the read loop has ended and nothing is left to send."""
        state = self._state
        waiting = state.unready and state.source_lost is None  # without the source no topic can begin
        left = any(part.pending or part.writing.outcome_unknown for part in parts)
        return state.reading_over and not left and not waiting and not state.unchecked()

    def _wait(self, parts: Sequence[PartitionState]) -> None:
        """Wait until the state changes."""
        with self._state.lock:
            if not any(p.pending or p.writing.outcome_unknown for p in parts):
                self._health.idle()
            self._state.lock.wait(WAIT_SECONDS)

    def _buffer_unusable(self, error: BufferUnusable) -> None:
        """The buffer cannot be read, or may no longer be this run's: wait, as for a full disk."""
        log.warning("producing waits: %s", error.message)
        with self._state.lock:
            self._state.buffer_is(error.message)
        self._context.stop.wait(FULL_DISK_POLL_SECONDS)
