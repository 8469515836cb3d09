"""State of a running lane: its topics, their partitions, and what is staged but not sent."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sized
from dataclasses import dataclass, field

from mirror_pipeline.engine.driver.plan import PartitionView
from mirror_pipeline.engine.tasks.write.offset_map import segments
from mirror_pipeline.errors import ClusterUnreachable, MirrorError
from mirror_pipeline.execution.placement import Place
from mirror_pipeline.halts import OF_LOG, OF_TOPIC, Halt
from mirror_pipeline.model import UNKNOWN_BYTES_PER_OFFSET, BatchMark, MarkerStamp, Position, SpanRef, Stamp, TopicPartition
from mirror_pipeline.reports import Latency
from mirror_pipeline.topics.configs import DEFAULT_MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

# A halt whose cause may pass is tried again after this time, then after twice as long each, and from the start once it has stayed away.
FIRST_TRIAL_SECONDS, RAREST_TRIAL_SECONDS, STEADY_SECONDS = 10.0, 300.0, 60.0
# How long one partition of a topic is tried alone.
TRIAL_SECONDS = 5.0


@dataclass(slots=True)
class ReadSide:
    """What the read loop knows of a source partition.

    Args:
        end: the exclusive end as last reported; ``end_known`` once this run's source has reported it.
        last_end: the end that the last run knew; all that is known of a topic that is gone.
        end_was_known: the source has reported ``last_end`` to an earlier run.
        hard_end: the end of a backfill.
        mark: the last batch read.
        unread: why the partition cannot be read now; it is not read before ``read_at`` (monotonic seconds).
    """

    end: int = 0
    end_known: bool = False
    last_end: int = 0
    end_was_known: bool = False
    hard_end: int | None = None
    mark: BatchMark | None = None
    unread: str = ""
    read_at: float = 0.0
    read_failures: int = 0
    bytes_per_offset: float = UNKNOWN_BYTES_PER_OFFSET
    bytes_per_batch: float = 0.0

    @property
    def readable_end(self) -> int:
        """The exclusive end that may be read now."""
        return self.end if self.hard_end is None else min(self.end, self.hard_end)

    @property
    def seen_end(self) -> int:
        """The end as this run knows it, else as the last one did."""
        return self.readable_end if self.end_known else max(self.readable_end, self.last_end)

    def learned(self, span: SpanRef) -> None:
        """Update the estimates of bytes per offset and per batch from one span."""
        if span.end > span.start and span.bytes:
            each, known = span.bytes / (span.end - span.start), self.bytes_per_batch > 0
            self.bytes_per_offset = 0.5 * self.bytes_per_offset + 0.5 * each if known else each
            self.bytes_per_batch = span.bytes / max(1, span.batches)

    def put_off(self, why: str, *, delay: float) -> None:
        """It cannot be read now: the other partitions continue, and its leader is looked up again after ``delay`` seconds."""
        self.unread, self.read_at = why, time.monotonic() + delay
        self.read_failures += 1

    def was_read(self) -> None:
        """Its leader has answered."""
        self.unread, self.read_at, self.read_failures = "", 0.0, 0


@dataclass(slots=True)
class WriteSide:
    """What the write loop knows of a target partition.

    Args:
        position: what the target has.
        producer_epoch: is added to the epoch of the lane's producer.
        suspect: the halt that one answer of the target calls for; the topic halts if a second answer confirms it.
        outcome_unknown: the target's tail must be read before anything is sent.
        tail_read: this run has read the tail at least once.
        resumed: records were staged that are not in the ledger when this run began: an earlier run may have sent them.
        retry_at: nothing is sent before this time (monotonic seconds).
        reached: the leader has answered the last time that something failed.
        waits_since: since when (monotonic seconds) the target has taken nothing of it, though it was tried.
        left: why a ``once`` run has given it up: the target took nothing of it for ``target_wait`` seconds.
    """

    position: Position
    producer_epoch: int = 0
    suspect: Halt | None = None
    outcome_unknown: bool = True
    tail_read: bool = False
    resumed: bool = False
    retry_at: float = 0.0
    failures: int = 0
    error: str = ""
    reached: bool = True
    waits_since: float | None = None
    left: str = ""

    def failed(self, error: str, *, delay: float, reached: bool = True) -> None:
        """Nothing more is sent before ``delay`` seconds have passed and the tail was read; ``reached``: its leader has answered."""
        self.outcome_unknown, self.error, self.reached = True, error, reached
        self.failures += 1
        now = time.monotonic()
        self.retry_at = now + delay
        self.waits_since = now if self.waits_since is None else self.waits_since

    def worked(self) -> None:
        """The target took records, or nothing waits for it."""
        self.failures, self.error, self.retry_at, self.waits_since = 0, "", 0.0, None


@dataclass(slots=True)
class PartitionState:
    """One partition between source and target: the read loop changes ``reading``, the write loop ``writing``.

    What is staged is handed over: ``staged`` is the next source offset to read, ``pending`` are the spans to send.
    """

    source: TopicPartition
    target: TopicPartition
    incarnation: str
    staged: int
    writing: WriteSide
    reading: ReadSide = field(default_factory=ReadSide)
    pending: deque[SpanRef] = field(default_factory=deque)

    @property
    def lag(self) -> int:
        """Offsets between position and readable end."""
        return max(0, self.reading.readable_end - self.writing.position.source_next)

    @property
    def hole_next(self) -> bool:
        """With exact offsets: whether the target's log ends where the source has no record, as far as that is staged."""
        at = self.writing.position
        if at.target_next < at.source_next:
            return True
        span = next((span for span in self.pending if span.end > at.source_next), None)
        return span is not None and next(segments(span, at.source_next))[2] is not None

    @property
    def unfinished(self) -> bool:
        """Whether there is something to read, or the end is not known yet."""
        return not self.reading.end_known or self.staged < self.reading.readable_end

    def view(self) -> PartitionView:
        """What the planner gets to see."""
        read = self.reading
        return PartitionView(
            self.source.topic, self.source.partition, self.incarnation, self.staged, read.readable_end,
            read.bytes_per_offset, read.hard_end is not None, read.bytes_per_batch,
        )  # fmt: skip


@dataclass(slots=True)
class Trial:
    """When a topic's halt is tried again: after ``pause`` seconds, ``at`` that time (monotonic), less often each time.

    ``halt`` is what is on trial since then; it is over when it has not come back.
    """

    halt: Halt | None = None
    at: float = 0.0
    pause: float = 0.0

    def put_off(self) -> bool:
        """Set the time of the next trial; whether it is the first one for a while."""
        now = time.monotonic()
        first = not self.pause or now - self.at > self.pause + STEADY_SECONDS
        self.pause = FIRST_TRIAL_SECONDS if first else min(2 * self.pause, RAREST_TRIAL_SECONDS)
        self.at = now + self.pause
        return first

    @property
    def over(self) -> bool:
        """Whether the topic has not halted again."""
        return time.monotonic() - self.at > TRIAL_SECONDS


@dataclass(slots=True)
class TopicRun:
    """One topic of a running lane. ``halted`` ends its staging; what is staged is still sent while it is ``sendable``.

    ``draining`` says that the next generation begins once everything staged is sent, ``left_out`` that the topic is gone on
    the source and an operator has accepted that. ``settings_unread`` says why it is not known whether the topic is ``compacted``,
    ``waits`` why its target topic could not be checked yet.
    """

    topic: str
    target_topic: str
    incarnation: str
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    max_batch_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    compacted: bool = False
    settings_unread: str = ""
    target_checked: bool = False
    waits: str = ""
    halted: Halt | None = None
    trial: Trial = field(default_factory=Trial)
    sendable: bool = True
    draining: bool = False
    left_out: bool = False
    records: int = 0
    bytes: int = 0

    def resume(self) -> None:
        """Try a halted topic again: its target topic is checked first, then one partition goes ahead of the others."""
        halt = self.trial.halt = self.halted
        self.trial.at, self.halted = time.monotonic(), None
        ahead = halt.partition if halt is not None and halt.partition in self.partitions else min(self.partitions, default=0)
        for number, part in self.partitions.items():
            if number != ahead:
                part.reading.put_off("another partition is tried first", delay=TRIAL_SECONDS)
            if not self.sendable:
                part.writing.outcome_unknown, part.writing.suspect = True, None
                part.writing.retry_at = 0.0 if number == ahead else self.trial.at + TRIAL_SECONDS
        if not self.sendable:
            self.sendable, self.target_checked = True, False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being sent; with the lock held."""
        busy = any(part.pending or part.writing.outcome_unknown for part in self.partitions.values())
        return self.halted is None and self.target_checked and not self.draining and not busy


@dataclass(slots=True)
class LaneState:
    """Shared by the lane's read loop, write loop and preparation; every access holds ``lock``.

    ``behind_since`` is monotonic, for topics that wait. ``source_lost`` has ended the read loop; what is staged is still sent.
    ``search_failure`` says why the latest search for new topics and partitions found out nothing. ``stamp`` is the lane's producer, set
    before the first span is sent; ``memory_seconds`` the age of records at which the target's brokers forget it. ``copied`` and
    ``left_out`` are those of :class:`RunReport`, ``ahead`` of :class:`Progress`.
    """

    topics: dict[str, TopicRun] = field(default_factory=dict)
    unready: dict[str, str] = field(default_factory=dict)
    behind_since: dict[str, float] = field(default_factory=dict)
    refused: dict[str, Halt] = field(default_factory=dict)
    lock: threading.Condition = field(default_factory=threading.Condition)
    reading_over: bool = False
    staged_records: int = 0
    staged_bytes: int = 0
    copied: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    ahead: dict[str, int] = field(default_factory=dict)
    spark_bytes: int = 0
    spark_jobs: int = 0
    records: int = 0
    bytes: int = 0
    micro_batches: int = 0
    gaps: int = 0
    seconds_staging: float = 0.0
    seconds_producing: float = 0.0
    source_down: str = ""
    source_down_since: float | None = None
    source_lost: ClusterUnreachable | None = None
    target_down: str = ""
    target_down_since: float | None = None
    buffer_full: str = ""
    buffer_full_since: float | None = None
    search_failure: str = ""
    last_activity: float = field(default_factory=time.monotonic)
    failure: MirrorError | Exception | None = None
    stamp: Stamp | None = None
    markers: MarkerStamp | None = None
    memory_seconds: float = 86_400.0
    confirmed_at: float | None = None
    latency: Latency = field(default_factory=Latency)

    def ran(self, tasks: Sized, place: Place) -> None:
        """Count the Spark jobs of these tasks, one each."""
        if not place.in_process:
            with self.lock:
                self.spark_jobs += len(tasks)

    def live(self) -> list[PartitionState]:
        """Partitions that are still staged."""
        return [p for t in self.topics.values() if t.halted is None and not t.draining for p in t.partitions.values()]

    def ready(self) -> list[PartitionState]:
        """Those of them that can be read now, as far as known."""
        return [p for p in self.live() if not p.reading.unread]

    def end_unknown(self) -> TopicPartition | None:
        """A live source partition whose end offset the source has not reported yet."""
        return next((part.source for part in self.live() if not part.reading.end_known), None)

    def sendable(self) -> list[PartitionState]:
        """Partitions whose staged spans are still sent, now or later."""
        return [p for t in self.topics.values() if t.sendable for p in t.partitions.values() if not p.writing.left]

    def left(self) -> list[PartitionState]:
        """Partitions that a ``once`` run has given up."""
        return [p for t in self.topics.values() if t.sendable for p in t.partitions.values() if p.writing.left]

    def leave(self, part: PartitionState) -> None:
        """Give a partition up: what is staged of it waits for the next run, and so does its topic's next generation."""
        part.writing.left = part.writing.error
        if self.topics[part.source.topic].draining:
            self.unready.pop(part.source.topic, None)

    def checked(self) -> list[PartitionState]:
        """Those of them that may be sent now, because their target topics were checked."""
        return [p for t in self.topics.values() if t.sendable and t.target_checked for p in t.partitions.values() if not p.writing.left]

    def unchecked(self) -> list[TopicRun]:
        """Topics whose target topics are still to be checked."""
        return [t for t in self.topics.values() if not t.target_checked and (t.halted is None or t.sendable)]

    def halt(self, topic: str, halt: Halt, *, sendable: bool = False) -> None:
        """Halt one topic; the others continue. With ``sendable`` what is staged is still sent. The first cause counts, unless it was
        found in the log of what turns out to be another topic."""
        run = self.topics.get(topic)
        if run is None:
            self.refused[topic] = halt
            return
        held = run.halted
        if held is None or (held.again and not halt.again) or (held.code in OF_LOG and halt.code in OF_TOPIC):
            run.halted, run.trial.halt = halt, None
            if halt.again and run.trial.put_off():
                log.warning("topic_halted topic=%s code=%s: %s; it is tried again", topic, halt.code, halt.message)
        run.sendable = run.sendable and sendable

    def try_again(self) -> None:
        """Resume topics whose halt may have passed and that have waited long enough."""
        with self.lock:
            for run in self.topics.values():
                if run.halted is not None and run.halted.again and time.monotonic() >= run.trial.at:
                    run.resume()
                elif run.trial.halt is not None and run.trial.over:
                    log.info("topic_resumed topic=%s code=%s", run.topic, run.trial.halt.code)
                    run.trial.halt = None

    def active(self) -> None:
        """Note activity: the lane is not idle."""
        self.last_activity = time.monotonic()

    def buffer_is(self, why_full: str) -> None:
        """Note why the buffer is full, so that reading waits; "" if it is not."""
        if not why_full:
            self.buffer_full_since = None
        elif self.buffer_full_since is None:
            self.buffer_full_since = time.time()
        self.buffer_full = why_full

    def target_lost(self, why: str) -> None:
        """The target cannot be reached; reading continues."""
        if not self.target_down:
            self.target_down_since = time.time()
        self.target_down = why

    def source_silent(self, why: str) -> None:
        """The source cannot be reached; what is staged is still sent."""
        if self.source_down_since is None:
            self.source_down_since = time.time()
        self.source_down = why

    def source_back(self) -> None:
        """The source answered."""
        self.source_down, self.source_down_since, self.ahead = "", None, {}

    def copy_answers(self, alias: str) -> None:
        """A copy of the source can be asked."""
        with self.lock:
            self.left_out.pop(alias, None)

    def leave_copy_out(self, what: str, why: str) -> None:
        """A copy of the source, or one of its topics, is not read."""
        with self.lock:
            self.left_out[what] = why

    def searched(self, failure: str = "") -> None:
        """Note how the latest search for new topics went; a failure is logged when it begins."""
        if failure and not self.search_failure:
            log.warning("search_failed: no new topics or partitions are found: %s", failure)
        self.search_failure = failure

    def target_back(self) -> None:
        """The target answered."""
        self.target_down, self.target_down_since = "", None
