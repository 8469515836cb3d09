"""The read loop of a lane: plans, reads and commits micro-batches as fast as the source and the buffer allow."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.context import LaneContext, Losses, Patience, backoff
from mirror_pipeline.engine.driver.plan import TURN_SECONDS, PartitionView, assign, budget_of, plan_ranges, planned_bytes, turn_seconds
from mirror_pipeline.engine.driver.read.kept import kept_tasks
from mirror_pipeline.engine.driver.read.source import SourceSide
from mirror_pipeline.engine.driver.read.source_copies import Copies
from mirror_pipeline.engine.tasks.longlink.connection_count import is_long
from mirror_pipeline.engine.tasks.longlink.link import Link
from mirror_pipeline.engine.tasks.longlink.several import Holding
from mirror_pipeline.engine.tasks.read.kept_task import run_kept
from mirror_pipeline.engine.tasks.read.messages import RangeOutcome, ReadResult, ReadTask
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.task import run_read
from mirror_pipeline.errors import BufferUnusable, ClusterUnreachable, ConnectionLost, TaskLost
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.execution.placement import Place
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.halts import ENDED
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.model import OffsetRange, PartFile, TopicPartition

Reconsider = Callable[[Sequence[RangeOutcome]], Sequence[RangeOutcome]]
"""Takes halts back that the topics' settings, read anew, do not bear out; never raises."""

log = logging.getLogger(__name__)

FULL_BUFFER_POLL_SECONDS = 0.5
# Without the source: between two looks whether a copy is compared, and attempts that bring nothing until no more are made.
COPIES_POLL_SECONDS, VAIN_TURNS = 0.2, 3
# How long maintenance may take to make room in a buffer that holds what a ``once`` run has given up.
LEFT_FULL_SECONDS = 15.0
PARTITION_FETCH_BYTES = 4 * 2**20
# Until a micro-batch is closed that `bandwidth` slows down: its records arrive meanwhile, and a stop waits for it.
LIMITED_SECONDS = 2.0
# Until one is closed that the next one should follow soon: topics are dealt out to copies by their sizes, and copies tell what they hold.
SOON_SECONDS = 0.5
# A micro-batch filled to this share is full: over a long link the next one may be larger.
FULL_SHARE = 0.9
TASK_MEMORY_BYTES = 64 * 2**20
"""Fetched bytes a task holds before it writes them out as spans."""


class ReadLoop:
    """Reads from the source until the run ends. Runs in a thread of its own."""

    def __init__(self, context: LaneContext, client: WireClient, reconsider: Reconsider = list) -> None:
        self._context = context
        self._state = context.state
        self._client = client
        self._reconsider = reconsider
        self._micro_batch = context.spans.last_micro_batch() + 1
        self._patience = Patience(context.mirror.engine.source_wait)
        self._losses = Losses()
        self._quiet = self._far = False
        self._reach = 1
        self._place = Place(InlineRunner(), in_process=True, small=True)
        self._source = SourceSide(context, client)
        self._link = Link()
        self._copies = Copies(context)
        self._holdings: tuple[Holding, ...] = ()
        self._ask_copies = self._copies_alone = False
        self._room = context.room
        self._staged = 0
        self._failures = 0
        self._full_since: float | None = None
        self._commit_unknown: tuple[Sequence[PartFile], Sequence[RangeOutcome], float] | None = None

    def run(self) -> None:
        """Stage until stopped or, with ``once``, until all ends are reached; errors end the lane."""
        try:
            while not self._context.stop.is_set():
                try:
                    more = self._turn_without_source() if self._context.drain else self._turn()
                except (ConnectionLost, ClusterUnreachable) as error:
                    self._source_lost(error)
                    self._ask_copies = bool(self._context.copies)
                    continue
                except TaskLost as error:
                    self._task_lost(error)
                    continue
                except BufferUnusable as error:
                    if not error.retryable:
                        raise
                    self._buffer_unusable(error)
                    continue
                if not more:
                    break
        except ClusterUnreachable as error:
            with self._state.lock:
                self._state.source_lost = error
        except Exception as error:  # noqa: BLE001 - handed to the run's own thread, which raises it
            self._context.fail(error)
        finally:
            self._link.end()
            self._copies.end()
            worker_cache.close()
            self._source.end()
            with self._state.lock:
                self._state.reading_over = True
                self._state.lock.notify_all()

    def end(self) -> None:
        """It will not run: end what it opened."""
        self._copies.end()

    def refresh_ends(self) -> None:
        """Ask the source for the last stable offsets of all active partitions; a ``once`` run asks for each until it has the answer."""
        self._source.refresh_ends()

    def _turn(self) -> bool:
        context, state = self._context, self._state
        context.hold.check()
        self._resolve_commit()
        if self._ask_copies:
            self._ask_copies = False
            if not self._buffer_full():
                self._read_copies()
            return True
        self._source.look_up()
        long_link = self._far and self._reach > 1
        if not context.once and self._source.look_is_due(known=self._quiet or long_link, small=self._place.small and not self._far):
            self.refresh_ends()
        if self._buffer_full():
            context.stop.wait(FULL_BUFFER_POLL_SECONDS)
            return not self._stays_full()
        self._full_since = None
        with state.lock:
            ranges = self._plan()
            rules = [self._rules_of(r if context.kept is None else context.kept.clipped(r)) for r in ranges]
        if not ranges:
            return self._nothing_to_read()
        self._stage(rules)
        return True

    def _stays_full(self) -> bool:
        """Whether a ``once`` run has waited long enough for room that partitions take up which the target does not take."""
        now = time.monotonic()
        self._full_since = now if self._full_since is None else self._full_since
        with self._state.lock:
            return bool(self._state.left()) and now - self._full_since > LEFT_FULL_SECONDS

    def _nothing_to_read(self) -> bool:
        """Wait until there is; False when a ``once`` run has read all it is to read. Raises ConnectionLost while it cannot tell."""
        if not self._context.once:
            self._quiet = self._source.await_news()
            return True
        with self._state.lock:  # together: a topic that joins leaves the one for the other
            end_unknown, unready = self._state.end_unknown(), bool(self._state.unready)
        if end_unknown is not None:
            self.refresh_ends()
        if (error := self._source.unread()) is not None:
            raise error
        if end_unknown is None and unready:  # topics whose target is not there yet may still join
            self._context.stop.wait(self._context.mirror.engine.poll_interval)
        return end_unknown is not None or unready

    def _plan(self) -> list[OffsetRange]:
        views = [p.view() for p in self._state.ready()]
        waiting = sum(view.wanted_bytes for view in views)
        surely = int(sum(view.least_bytes for view in views))
        budget = self._budget(views)
        ranges = plan_ranges(views, budget_bytes=budget)
        size = planned_bytes(ranges)
        self._holdings = self._copies.holdings(waiting)
        self._far = is_long(self._client.round_trip) or bool(self._holdings)
        self._place = self._context.placement.for_read(size, far=self._far, waiting=surely)
        self._reach = self._place.reach if size >= FULL_SHARE * budget else 1
        return ranges

    def _budget(self, views: Sequence[PartitionView]) -> int:
        waiting, context = sum(view.wanted_bytes for view in views), self._context
        return budget_of(context.mirror.engine.micro_batch_bytes, self._reach, context.buffer.max_bytes, far=self._far, waiting=waiting)

    def _rules_of(self, planned: OffsetRange) -> RangeRules:
        run = self._state.topics[planned.topic]
        context = self._context
        approved = context.permits.approved(planned.incarnation, planned.source)
        gaps = context.mirror.on_loss == "record_gap"
        return RangeRules(planned, run.max_batch_bytes, run.compacted, gaps, approved, run.settings_unread)

    def _stage(self, rules: Sequence[RangeRules]) -> None:
        context, engine, place = self._context, self._context.mirror.engine, self._place
        began = time.monotonic()
        self._quiet = False
        asked, copies = kept_tasks(context, rules, self._micro_batch, place.runner.tasks)
        shares = assign([(each, float(each.range.max_bytes)) for each in asked], place.runner.tasks) if asked else []
        limit = engine.bandwidth_at(datetime.now().time())
        unsized = self._copies.wanted and not all(each.range.bytes_per_batch for each in rules)
        soon = unsized or self._copies.awaited
        seconds = SOON_SECONDS if soon else LIMITED_SECONDS if limit else engine.max_batch_age
        tasks = [
            ReadTask(
                store=self._context.store,
                cluster=self._context.source,
                micro_batch=self._micro_batch,
                index=index,
                rules=tuple(share),
                fetch_bytes=engine.fetch_max_bytes, partition_fetch_bytes=PARTITION_FETCH_BYTES, memory_bytes=TASK_MEMORY_BYTES,
                timeout=engine.request_timeout,
                seconds=min(engine.max_batch_age, seconds),
                durable=self._context.buffer.durable,
                connections=engine.connections,
                tasks=len(shares),
                bytes_per_second=limit / len(shares) if limit else None,
                avoid=frozenset(self._source.brokers.now),
                patience=self._source.brokers.patience(),
                holdings=self._holdings,
                source_down=self._copies_alone,
            )  # fmt: skip
            for index, share in enumerate(shares)
        ]
        read = partial(run_read, link=self._link) if place.in_process else run_read
        answers = place.runner.run_each(read, tasks, name=f"stage {self._micro_batch}")
        if copies:
            answers = [*answers, *place.runner.run_each(run_kept, copies, name=f"stage {self._micro_batch} from the archive")]
        self._state.ran([*tasks, *copies], place)
        results = [answer for answer in answers if not isinstance(answer, TaskLost)]
        self._source.take_results(results)
        for result in results:
            self._copies.found(result)
        self._commit(results, began)
        lost = next((answer for answer in answers if isinstance(answer, TaskLost)), None)
        if lost is not None:
            raise lost
        self._losses.done()
        if not self._context.once and place.small:
            size = sum(result.part.size for result in results if result.part is not None)
            turn = turn_seconds(size) if self._context.store.local else self._context.store.spaced(TURN_SECONDS)
            self._context.stop.wait(max(0.0, turn - (time.monotonic() - began)))

    def _commit(self, results: Sequence[ReadResult], began: float) -> None:
        outcomes = [outcome for result in results for outcome in result.outcomes]
        self._context.permits.cases.keep([q for outcome in outcomes for q in outcome.quarantined])
        refused = self._source.another_log(outcomes)
        # A file with another log's records in it must never become visible; what else is in it is read again.
        parts = [r.part for r in results if r.part is not None and not {span.topic for span in r.part.spans} & refused]
        outcomes = [o for r in results if r.part is None or r.part in parts for o in r.outcomes if o.topic not in refused]
        if parts:
            self._context.hold.check()
            crash_point("commit.before")
            self._commit_unknown = parts, outcomes, began
            landed = self._context.spans.commit(self._micro_batch, parts)
            self._commit_unknown = None
            if not landed:
                raise BufferUnusable(
                    f"micro-batch {self._micro_batch} of lane {self._context.lane} was already committed by another run",
                    hint="two runs of one lane? end one of them",
                )
        with self._state.lock:
            for alias, size in ((alias, size) for r in results if r.part in parts for alias, size in r.copied.items()):
                self._state.copied[alias] = self._state.copied.get(alias, 0) + size
        self._committed(parts, outcomes, began)

    def _committed(self, parts: Sequence[PartFile], outcomes: Sequence[RangeOutcome], began: float) -> None:
        """Take over what is in the buffer now."""
        state = self._state
        if parts:
            self._staged += sum(part.size for part in parts)
            crash_point("commit.after")
            self._micro_batch += 1
        resolved = self._reconsider(outcomes)
        with state.lock:
            self._take_over(parts)
            for outcome in resolved:
                self._source.apply_outcome(state.topics[outcome.topic].partitions[outcome.partition], outcome)
            state.seconds_staging += time.monotonic() - began
            state.lock.notify_all()
        if not self._copies_alone:
            self._source.ask_ends([TopicPartition(o.topic, o.partition) for o in outcomes if o.beyond])
            self._note_source_answers(outcomes, bool(parts))

    def _resolve_commit(self) -> None:
        """Find out whether a commit succeeded whose answer was lost. Raises BufferUnusable while that is unknown."""
        if self._commit_unknown is not None:
            parts, outcomes, began = self._commit_unknown
            landed = self._context.spans.holds(parts)
            self._commit_unknown = None
            if landed:
                self._committed(parts, outcomes, began)

    def _take_over(self, parts: Sequence[PartFile]) -> None:
        for part in parts:
            for span in part.spans:
                run = self._state.topics[span.topic]
                over = run.halted is not None and run.halted.code == ENDED  # any other topic may be resumed, behind these spans
                if over or run.incarnation != span.incarnation:
                    continue
                partition = run.partitions[span.partition]
                partition.pending.append(span)
                partition.staged = span.end
                partition.reading.learned(span)
                self._state.staged_records += span.records
                self._state.staged_bytes += span.bytes
                self._state.spark_bytes += 0 if self._place.in_process else span.bytes
        if parts:
            self._state.active()

    def _note_source_answers(self, outcomes: Sequence[RangeOutcome], progress: bool) -> None:
        """Ranges that failed were put off alone; the source as a whole answers if any was read."""
        if progress or not any(outcome.error for outcome in outcomes):
            self._failures = 0
            self._patience.found()
            self._state.source_back()

    def _source_lost(self, error: ConnectionLost | ClusterUnreachable) -> None:
        self._failures += 1
        self._state.source_silent(error.message)
        self._patience.lost(
            ClusterUnreachable(self._context.source.alias, error.message, hint=error.hint), forever=not self._context.once
        )
        self._context.stop.wait(backoff(self._failures))

    def _turn_without_source(self) -> bool:
        """Read what copies hold of a source that did not answer at the begin; False once all were compared and give nothing more."""
        self._context.hold.check()
        self._resolve_commit()
        compared, before = self._copies.compared, self._micro_batch
        if self._buffer_full():
            self._context.stop.wait(FULL_BUFFER_POLL_SECONDS)
            return True
        self._read_copies()
        if self._micro_batch > before:
            self._failures = 0
        elif compared:
            self._failures += 1
        else:
            self._context.stop.wait(COPIES_POLL_SECONDS)
        return self._failures < VAIN_TURNS

    def _read_copies(self) -> None:
        """While the source does not answer: read what its copies hold."""
        holdings = self._copies.holdings(math.inf)
        held = {source: bounds for holding in holdings for source, bounds in holding.offsets.items()}
        if not held:
            return
        with self._state.lock:
            parts = [part for part in self._state.live() if part.source in held and part.staged >= held[part.source][0]]
            views = [replace(part.view(), end=held[part.source][1]) for part in parts]
            self._state.ahead = {
                holding.cluster.alias: sum(
                    max(0, holding.offsets[part.source][1] - part.writing.position.source_next)
                    for part in self._state.live() if part.source in holding.offsets
                ) for holding in holdings
            }  # fmt: skip
            ranges = plan_ranges(views, budget_bytes=self._budget(views))
            rules = [self._rules_of(planned) for planned in ranges]
            self._place = self._context.placement.for_read(planned_bytes(ranges), far=True)
        if rules:
            self._holdings, self._copies_alone = holdings, True
            try:
                self._stage(rules)
            finally:
                self._copies_alone = False

    def _task_lost(self, error: TaskLost) -> None:
        """Nothing of its task was committed: it is read again. A worker that dies every time is no accident."""
        log.warning("staging: %s", error.message)
        self._context.stop.wait(self._losses.lost(error))

    def _buffer_unusable(self, error: BufferUnusable) -> None:
        """Reading pauses. On a full disk the write loop continues, and what it has sent may leave the buffer."""
        log.warning("staging waits: %s", error.message)
        with self._state.lock:
            self._state.buffer_is(error.message)
        try:
            self._resolve_commit()
            self._context.spans.discard_uncommitted(self._context.hold.check)
        except BufferUnusable as worse:
            if not worse.retryable:
                raise
        self._context.room_wanted.set()
        self._context.stop.wait(FULL_BUFFER_POLL_SECONDS)

    def _buffer_full(self) -> bool:
        """Whether another micro-batch would not fit under the cap or on the disk; the maintenance thread is woken before that happens."""
        room = self._room.cached(self._staged)
        self._staged = 0
        if room.near:
            self._context.room_wanted.set()
        with self._state.lock:
            self._state.buffer_is(room.why_full)
        return bool(room.why_full)
