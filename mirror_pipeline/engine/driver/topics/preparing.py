"""The thread of a lane that prepares topics. What is asked about one topic, and a cluster that is slow to answer, hold up no other copy."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mirror_pipeline.engine.driver.context import FULL_DISK_POLL_SECONDS, LaneContext, Patience, backoff
from mirror_pipeline.engine.driver.topics.prepare import Preparation
from mirror_pipeline.errors import BufferUnusable, ClusterUnreachable, ConnectionLost
from mirror_pipeline.topics.lanes import LaneTopic

log = logging.getLogger(__name__)

PREPARE_POLL_SECONDS = 0.2


class Preparing:
    """Looks for new topics and prepares what waits, until ``over`` is set; errors that do not pass end the lane.

    Args:
        context: the lane.
        preparation: used by this thread alone from now on.
        discover: the lane's topics; None in a run that takes in no new ones.
        again: when to look for topics again after a search that began at a moment (monotonic seconds).
    """

    def __init__(
        self, context: LaneContext, preparation: Preparation, discover: Callable[[], list[LaneTopic]] | None,
        again: Callable[[float], float],
    ) -> None:  # fmt: skip
        self._context = context
        self._state = context.state
        self._preparation = preparation
        self._discover = discover
        self._again = again
        self._discover_at = again(time.monotonic())
        self._look_due = False
        self._patience = Patience(context.mirror.engine.target_wait)
        self._failures = 1 if context.state.target_down else 0  # by the first preparation
        self.over = threading.Event()

    def run(self) -> None:
        """Prepare until the run ends. Runs in a thread of its own."""
        try:
            while not self._is_over():
                self._context.stop.wait(self._turn())
        except Exception as error:  # noqa: BLE001 - handed to the run's own thread, which raises it
            self._context.fail(error)

    def _is_over(self) -> bool:
        return self.over.is_set() or self._context.stop.is_set()

    def _turn(self) -> float:
        """One turn; returns seconds to wait before the next."""
        try:
            self._context.hold.check()
            self._look_for_topics()
            if self._is_over():
                return 0.0
            if self._look_due:  # again until the target answers: nobody else may ask it
                self._preparation.look_at_targets()
                self._look_due = False
            self._preparation.finish()
        except (ConnectionLost, ClusterUnreachable) as error:
            return self._lost(error)
        except BufferUnusable as error:
            if not error.retryable:
                raise
            log.warning("topics wait: %s", error.message)
            return FULL_DISK_POLL_SECONDS
        if self._failures:
            self._failures = 0
            self._patience.found()
            with self._state.lock:
                self._state.target_back()
        return PREPARE_POLL_SECONDS

    def _look_for_topics(self) -> None:
        began = time.monotonic()
        if self._discover is None or (began < self._discover_at and not self._preparation.decided()):
            return
        try:
            self._preparation.rediscover(self._discover)
            self._look_due = True
        finally:
            self._discover_at = self._again(began)

    def _lost(self, error: ConnectionLost | ClusterUnreachable) -> float:
        """The target does not answer. A ``once`` run with nothing else left to send gives up after ``target_wait``."""
        self._failures += 1
        with self._state.lock:
            self._state.target_lost(error.message)
            busy = any(part.pending or part.writing.outcome_unknown for part in self._state.checked())
        unreachable = ClusterUnreachable(self._context.target.alias, error.message, hint=error.hint)
        self._patience.lost(unreachable, forever=busy or not self._context.once)
        return backoff(self._failures)
