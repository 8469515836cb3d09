"""What the parts of one lane's run share: clusters, settings, tables, state."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lock import HELD, Hold
from mirror_pipeline.buffer.place.place import DIRECTED_FORMAT, EXACT_FORMAT, LaneStore, open_lane, raise_format
from mirror_pipeline.buffer.place.space import SpaceWatch
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import BufferConfig, ClusterSettings, MirrorConfig
from mirror_pipeline.engine.driver.permits import Permits
from mirror_pipeline.engine.driver.state import LaneState
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.execution.placement import Placement
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.topics.lanes import LANE_PREFIX

if TYPE_CHECKING:
    from mirror_pipeline.engine.driver.read.kept import KeptSource
    from mirror_pipeline.flow import Flow

VerifyStaged = Callable[..., Any]
TailsDiffer = Callable[..., str]
SamplesDiffer = Callable[..., dict[TopicPartition, str]]
FIRST_BACKOFF_SECONDS = 0.25
LONGEST_BACKOFF_SECONDS = 5.0
FULL_DISK_POLL_SECONDS = 0.5
WORKER_LOSSES, WORKER_LOSSES_SECONDS = 10, 120.0


@dataclass(slots=True)
class LaneContext:
    """Collaborators of one lane's run.

    ``once`` ends the run at the end offsets seen at its start; ``drain`` does not ask the source and ends the run when everything
    staged is on the target; ``room_wanted`` wakes the maintenance thread.
    ``hold`` is checked before any action that only the lane's one run may take.
    ``verify_staged`` compares spans with the target (:func:`mirror_pipeline.verify.staged.verify_staged`); None in a run
    without verification.
    ``tails_differ`` proves a copy whose ledger was lost (:func:`mirror_pipeline.verify.same_offsets.tails_differ`, ``offsets: exact``).
    ``kept`` are the source offsets that a backfill reads from the buffer; None if it reads none. ``copies`` are other clusters that hold
    the source's topics with the same offsets, compared by ``samples_differ``
    (:func:`mirror_pipeline.verify.same_offsets.samples_differ`).
    """

    mirror: MirrorConfig
    lane: str
    source: ClusterSettings
    target: ClusterSettings
    buffer: BufferConfig
    store: LaneStore
    spans: SpanTable
    ledger: Ledger
    permits: Permits
    placement: Placement
    once: bool
    stop: threading.Event
    state: LaneState = field(default_factory=LaneState)
    room_wanted: threading.Event = field(default_factory=threading.Event)
    hold: Hold = HELD
    drain: bool = False
    verify_staged: VerifyStaged | None = None
    tails_differ: TailsDiffer | None = None
    kept: KeptSource | None = None
    copies: tuple[ClusterSettings, ...] = ()
    samples_differ: SamplesDiffer | None = None
    _room: SpaceWatch | None = None

    @property
    def is_mirror(self) -> bool:
        """Whether this is a lane of the mirror, not of a backfill."""
        return self.lane.startswith(LANE_PREFIX)

    @property
    def shared(self) -> bool:
        """Whether others may write the lane's target topics too; a backfill has new ones of its own."""
        return self.mirror.shared and self.is_mirror

    @property
    def exact(self) -> bool:
        """Whether records get the source's offsets; a backfill's topics are no copies of whole logs."""
        return self.mirror.exact and self.is_mirror

    @property
    def room(self) -> SpaceWatch:
        """How full the buffer is; shared, so that the maintenance thread knows the sizes that the read loop has seen."""
        if self._room is None:
            self._room = SpaceWatch(self.store, cap=self.buffer.max_bytes, micro_batch=self.mirror.engine.micro_batch_bytes)
        return self._room

    def fail(self, error: Exception) -> None:
        """End the whole lane with this error."""
        with self.state.lock:
            if self.state.failure is None:
                self.state.failure = error
            self.stop.set()
            self.state.lock.notify_all()


def open_context(
    flow: Flow,
    lane: str,
    placement: Placement,
    *,
    once: bool,
    stop: threading.Event,
    verify_staged: VerifyStaged,
    tails_differ: TailsDiffer | None = None,
    samples_differ: SamplesDiffer | None = None,
    drain: bool = False,
) -> LaneContext:
    """Collaborators of one run over one lane of a flow. Without ``samples_differ`` it has no copies: none is read uncompared.

    Raises:
        BufferUnusable: buffer or ledger cannot be read.
    """
    buffer = flow.config.buffer
    store = open_lane(buffer, flow.name, lane)
    if flow.settings.shared:
        raise_format(store, DIRECTED_FORMAT)
    if flow.settings.exact:
        raise_format(store, EXACT_FORMAT)
    return LaneContext(
        mirror=flow.settings,
        lane=lane,
        source=flow.source,
        target=flow.target,
        buffer=buffer,
        store=store,
        spans=SpanTable(store, durable=buffer.durable),
        ledger=Ledger(store, durable=buffer.durable),
        permits=Permits(Decisions(store, durable=buffer.durable), flow.claims(), flow.directions()),
        placement=placement,
        once=once,
        stop=stop,
        drain=drain,
        verify_staged=verify_staged,
        tails_differ=tails_differ,
        copies=flow.copies if samples_differ is not None else (),
        samples_differ=samples_differ,
    )


def backoff(failures: int) -> float:
    """Seconds to wait after that many failures in a row: doubling, capped, with jitter."""
    longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


@dataclass(slots=True)
class Losses:
    """Fails the run when workers keep dying without making progress."""

    count: int = 0
    since: float | None = None

    def lost(self, error: MirrorError) -> float:
        """Seconds to wait before the next try; raises ``error`` after too many losses without progress."""
        now = time.monotonic()
        self.since = self.since if self.since is not None else now
        self.count += 1
        if now - self.since > WORKER_LOSSES_SECONDS and self.count > WORKER_LOSSES:
            raise error
        return backoff(min(self.count, 2))

    def done(self) -> None:
        """Progress was made."""
        self.count, self.since = 0, None


@dataclass(slots=True)
class Patience:
    """How long a cluster may stay silent before a ``once`` run gives up."""

    seconds: float
    since: float | None = None

    def lost(self, error: MirrorError, *, forever: bool) -> None:
        """The cluster did not answer; raise ``error`` once that has lasted too long, unless the run waits ``forever``."""
        now = time.monotonic()
        self.since = self.since if self.since is not None else now
        if not forever and now - self.since > self.seconds:
            raise error

    def found(self) -> None:
        """The cluster answered."""
        self.since = None
