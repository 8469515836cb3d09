"""What the parts of one lane's run share: where it reads, where it writes, how it is set."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger import Ledger
from mirror_pipeline.buffer.spans import SpanTable
from mirror_pipeline.buffer.store import LaneStore
from mirror_pipeline.config import BufferConfig, ClusterSettings, MirrorConfig
from mirror_pipeline.engine.spark import Runner
from mirror_pipeline.engine.state import LaneState
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.model import Stamp

FIRST_BACKOFF_SECONDS = 0.25
LONGEST_BACKOFF_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LaneTopic:
    """A topic the lane shall copy.

    A backfill gives ``ranges`` (partition to ``[start, end)``) and ``configs`` for a target topic that it creates;
    ``filled`` permits a target topic with records in it.
    """

    topic: str
    target_topic: str
    ranges: dict[int, tuple[int, int]] | None = None
    configs: dict[str, str] | None = None
    filled: bool = False


@dataclass(slots=True)
class LaneContext:
    """Collaborators of one lane's run. ``once`` ends the run at the end offsets seen at its start."""

    mirror: MirrorConfig
    lane: str
    source: ClusterSettings
    target: ClusterSettings
    buffer: BufferConfig
    store: LaneStore
    spans: SpanTable
    ledger: Ledger
    runner: Runner
    once: bool
    stop: threading.Event
    state: LaneState = field(default_factory=LaneState)
    stamp: Stamp | None = None

    def fail(self, problem: Exception) -> None:
        """End the whole lane with this error."""
        with self.state.lock:
            if self.state.failure is None:
                self.state.failure = problem
            self.stop.set()
            self.state.lock.notify_all()


def backoff(failures: int) -> float:
    """Seconds to wait after that many failures in a row: doubling, capped, with jitter."""
    longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


@dataclass(slots=True)
class Patience:
    """How long a cluster may stay silent before a ``once`` run gives up."""

    seconds: float
    since: float | None = None

    def lost(self, problem: MirrorError, *, forever: bool) -> None:
        """Count the silence; raise ``problem`` once it lasted too long, unless the run waits for ever."""
        now = time.monotonic()
        self.since = self.since if self.since is not None else now
        if not forever and now - self.since > self.seconds:
            raise problem

    def found(self) -> None:
        """The cluster answered."""
        self.since = None
