"""The staging side of a lane: plan, stage, commit, as fast as the source and the buffer allow."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from mirror_pipeline.engine.context import LaneContext, Patience, backoff
from mirror_pipeline.engine.housekeeping import make_room
from mirror_pipeline.engine.plan import assign, plan_ranges
from mirror_pipeline.engine.stage import RangeOutcome, StageResult, StageTask, run_stage
from mirror_pipeline.engine.taking import RangeTerms
from mirror_pipeline.errors import ClusterUnreachable, ConnectionLost, TopicHalted
from mirror_pipeline.model import OffsetRange, PartFile, TopicPartition
from mirror_pipeline.wire.client import WireClient

log = logging.getLogger(__name__)

FULL_BUFFER_POLL_SECONDS = 0.5
ROOM_SHARE = 0.8
EVICTED_GRACE_SECONDS = 1.0
PARTITION_FETCH_BYTES = 4 * 2**20
TASK_MEMORY_BYTES = 64 * 2**20
"""Fetched bytes a task holds before it writes them out as spans."""


class Staging:
    """Reads from the source until the run ends. Runs in a thread of its own."""

    def __init__(self, context: LaneContext, client: WireClient) -> None:
        self._context = context
        self._state = context.state
        self._client = client
        self._micro_batch = context.spans.last_micro_batch() + 1
        self._patience = Patience(context.mirror.engine.source_wait)
        self._failures = 0

    def run(self) -> None:
        """Stage until stopped or, with ``once``, until all ends are reached; errors end the lane."""
        try:
            while not self._context.stop.is_set():
                try:
                    more = self._turn()
                except (ConnectionLost, ClusterUnreachable) as problem:
                    self._source_lost(problem)
                    continue
                if not more:
                    break
        except Exception as problem:  # noqa: BLE001 - handed to the run's own thread, which raises it
            self._context.fail(problem)
        finally:
            with self._state.lock:
                self._state.staging_over = True
                self._state.lock.notify_all()

    def refresh_ends(self) -> None:
        """Ask the source for the last stable offsets of all partitions that go on."""
        with self._state.lock:
            wanted = {p.source: -1 for p in self._state.live()}
        if not wanted:
            return
        answers = self._client.list_offsets(wanted, isolation=1)
        with self._state.lock:
            for part in self._state.live():
                answer = answers.get(part.source)
                if answer is None:
                    continue
                if answer.error:
                    self._client.forget(part.source)
                elif answer.offset < part.staged and part.hard_end is None:
                    halt = _truncated(part.source, answer.offset, part.staged)
                    self._state.halt(part.source.topic, halt, sendable=True)
                else:
                    part.end = answer.offset

    def _turn(self) -> bool:
        context, state = self._context, self._state
        if not context.once:
            self.refresh_ends()
        if self._buffer_full():
            context.stop.wait(FULL_BUFFER_POLL_SECONDS)
            return True
        with state.lock:
            ranges = plan_ranges(
                [p.view() for p in state.live()], budget_bytes=context.mirror.engine.micro_batch_bytes
            )
            terms = [self._terms(r) for r in ranges]
        if not ranges:
            if context.once and not state.unready:
                return False  # topics whose target is not there yet may still join a `once` run
            context.stop.wait(context.mirror.engine.poll_interval)
            return True
        self._stage(terms)
        return True

    def _terms(self, planned: OffsetRange) -> RangeTerms:
        run = self._state.topics[planned.topic]
        return RangeTerms(planned, run.max_batch_bytes, run.compacted, self._context.mirror.on_loss == "record_gap")

    def _stage(self, terms: Sequence[RangeTerms]) -> None:
        engine = self._context.mirror.engine
        began = time.monotonic()
        shares = assign([(t, float(t.range.max_bytes)) for t in terms], self._context.runner.tasks)
        tasks = [
            StageTask(
                store=self._context.store,
                cluster=self._context.source,
                micro_batch=self._micro_batch,
                index=index,
                terms=tuple(share),
                fetch_bytes=engine.fetch_max_bytes,
                partition_fetch_bytes=PARTITION_FETCH_BYTES,
                memory_bytes=TASK_MEMORY_BYTES,
                timeout=engine.request_timeout,
                seconds=engine.max_batch_age,
                durable=self._context.buffer.durable,
            )
            for index, share in enumerate(shares)
        ]
        results = self._context.runner.run(run_stage, tasks, name=f"stage {self._micro_batch}")
        self._commit(results, began)

    def _commit(self, results: Sequence[StageResult], began: float) -> None:
        state = self._state
        parts = [result.part for result in results if result.part is not None]
        self._halt_recreated({span.source.topic for part in parts for span in part.spans})
        if parts:
            self._context.spans.commit(self._micro_batch, parts)
            self._micro_batch += 1
        outcomes = [outcome for result in results for outcome in result.outcomes]
        with state.lock:
            self._take_over(parts)
            for outcome in outcomes:
                self._settle(outcome)
            state.seconds_staging += time.monotonic() - began
            state.lock.notify_all()
        self._judge(outcomes, bool(parts))

    def _halt_recreated(self, topics: set[str]) -> None:
        """What was read belongs to the incarnation only if the topic still has that id after the read."""
        metadata = self._client.metadata(sorted(topics)) if topics else None
        if metadata is None:
            return
        with self._state.lock:
            for name in topics:
                run, found = self._state.topics[name], metadata.topics.get(name)
                if found is not None and not found.error and found.topic_id != run.incarnation:
                    self._state.halt(name, recreated(name, run.incarnation, found.topic_id), sendable=True)

    def _take_over(self, parts: Sequence[PartFile]) -> None:
        for part in parts:
            for span in part.spans:
                run = self._state.topics[span.topic]
                if run.halted is not None:
                    continue
                partition = run.partitions[span.partition]
                partition.pending.append(span)
                partition.staged = span.end
                partition.learned(span.end - span.start, span.bytes)
                self._state.staged_records += span.records
                self._state.staged_bytes += span.bytes
        if parts:
            self._state.active()

    def _settle(self, outcome: RangeOutcome) -> None:
        if outcome.halted:
            halt = TopicHalted(outcome.topic, outcome.halted, hint=outcome.hint, partition=outcome.partition)
            self._state.halt(outcome.topic, halt, sendable=True)
        elif outcome.error:
            self._client.forget(TopicPartition(outcome.topic, outcome.partition))
            log.info("staging %s[%s]: %s", outcome.topic, outcome.partition, outcome.error)

    def _judge(self, outcomes: Sequence[RangeOutcome], progress: bool) -> None:
        errors = [outcome.error for outcome in outcomes if outcome.error]
        if progress or not errors:
            self._failures = 0
            self._patience.found()
            self._state.source_down = ""
            return
        self._source_lost(ConnectionLost(errors[0]))

    def _source_lost(self, problem: ConnectionLost | ClusterUnreachable) -> None:
        self._failures += 1
        self._state.source_down = problem.message
        self._patience.lost(
            ClusterUnreachable(self._context.source.alias, problem.message, hint=problem.hint), forever=not self._context.once
        )
        self._context.stop.wait(backoff(self._failures))

    def _buffer_full(self) -> bool:
        """Whether another micro-batch would not fit under the cap, after forgetting what the target has."""
        context = self._context
        room = context.buffer.max_bytes - context.mirror.engine.micro_batch_bytes
        full = context.spans.disk_bytes() > room
        if full:
            with self._state.lock:
                positions = {
                    (p.source.topic, p.source.partition, p.incarnation): p.position.source_next for p in self._state.live()
                }
            make_room(context.spans, positions, target_bytes=int(room * ROOM_SHARE), grace=EVICTED_GRACE_SECONDS)
            full = context.spans.disk_bytes() > room
        self._state.buffer_full = full
        return full


def _truncated(source: TopicPartition, end: int, staged: int) -> TopicHalted:
    return TopicHalted(
        source.topic,
        f"{source} ends at offset {end}, before the next offset to copy ({staged}): the source's log was truncated"
        " (unclean leader election?) or the topic recreated",
        hint="compare both sides; to start over, mirror into a new target topic",
        partition=source.partition,
    )


def recreated(topic: str, known: str, found: str) -> TopicHalted:
    """The halt for a topic whose id is not the one the lane has copied so far."""
    return TopicHalted(
        topic,
        f"source topic {topic} was recreated: its topic id is {found}, the copy so far is of {known}",
        hint="the target holds the old topic's records; mirror the new one under another target name",
    )
