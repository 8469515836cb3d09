"""Rounds beside a run: in one thread of one of a mirror's runs, whatever the number of lanes, until the run ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.errors import LaneBusy, MirrorError
from mirror_pipeline.flow import Flow

log = logging.getLogger(__name__)

# A run that cannot begin says why within this time.
FIRST_SECONDS = 10.0


class RunEnd(threading.Event):
    """Set when a run ends. Soon after the start it may have failed to begin: its error says why, and a thread beside it says nothing."""

    def __init__(self, first: float = FIRST_SECONDS) -> None:
        super().__init__()
        self._begun = time.monotonic() + first
        self._failed = False

    @contextmanager
    def awaited(self, thread: threading.Thread, seconds: float) -> Iterator[None]:
        """Run the thread during the block, and give it some seconds to end after it."""
        thread.start()
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            self.set()
            thread.join(seconds)

    def may_say(self) -> bool:
        """Whether to log an error; waits until the run has begun or ended."""
        early = self._begun - time.monotonic()
        return early <= 0 or not (self.wait(early) and self._failed)


@dataclass(frozen=True, slots=True)
class BackgroundRounds:
    """Rounds of one kind, in the run that holds the lock of their folder.

    Args:
        flow: the mirror.
        name: of the thread, and in the log.
        lane: the folder whose lock the rounds need.
        rounds: runs them until the run ends; an error ends them, and they are tried again.
        interval: seconds between two tries to get the lock.
        end_seconds: how long the end of a run waits for a round in progress, which may be abandoned at any point.
        at_end: try once more after the end of the run.
    """

    flow: Flow
    name: str
    lane: str
    rounds: Callable[[LaneStore, RunEnd], None]
    interval: float
    end_seconds: float
    at_end: bool = False

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Run them during the block. An error is logged, it does not end the run."""
        ended = RunEnd()
        with ended.awaited(threading.Thread(target=self._work, args=(ended,), name=self.name, daemon=True), self.end_seconds):
            yield

    def _work(self, ended: RunEnd) -> None:
        """Wait for the lock, then run rounds."""
        while True:
            last = ended.is_set()
            try:
                store = open_lane(self.flow.config.buffer, self.flow.name, self.lane)
                with lane_lock(store, patience=0.0):
                    self.rounds(store, ended)
                    return
            except LaneBusy:
                log.debug("%s mirror=%s: another run of the mirror does them", self.name, self.flow.name)
            except MirrorError as error:
                if ended.may_say():
                    log.warning("%s mirror=%s: %s", self.name, self.flow.name, error)
            if last or (ended.wait(self.interval) and not self.at_end):
                return
