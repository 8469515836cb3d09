"""The write loop of a lane: sends staged spans, records them, and recovers from the target's tail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.context import LaneContext, Losses, Patience, backoff
from mirror_pipeline.engine.read import divergence
from mirror_pipeline.engine.read.plan import assign
from mirror_pipeline.engine.silent_brokers import SilentBrokers, prober
from mirror_pipeline.engine.state import PartitionState
from mirror_pipeline.engine.write.ledger_writer import LedgerWriter
from mirror_pipeline.engine.write.messages import PartitionOutcome, PartitionWork, ProduceResult, ProduceTask
from mirror_pipeline.engine.write.offset_map import advance, trailing_holes_only
from mirror_pipeline.engine.write.recovery import ANSWER_SECONDS, Tail, read_tails
from mirror_pipeline.engine.write.task import run_produce
from mirror_pipeline.errors import BrokerError, BufferUnusable, ClusterUnreachable, ConnectionLost, TaskLost, TopicHalted
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.halts import internal, log_internal
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import Action, lookup
from mirror_pipeline.model import Send, SpanRef

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.2
REPLICATION_SECONDS = 1.0
"""How long partitions may hold up the others until their ends are replicated."""
SILENT_SECONDS = 3.0
"""How long a broker may leave a produce request without an answer while others could go on; twice as long after each failure."""
FULL_DISK_POLL_SECONDS = 0.5
TOGETHER_SECONDS = 1.0
LOOKED_AT_AGAIN = {"foreign_writer"}
"""Halts of a produce task that the target's log must confirm."""
REQUEST_BYTES = 2**20
"""A produce request is sent once its batches are this large together."""


class WriteLoop:
    """Sends what is staged until the run ends. Runs in a thread of its own."""

    def __init__(self, context: LaneContext, client: WireClient, prepare_topics: Callable[[], None]) -> None:
        self._context = context
        self._state = context.state
        self._client = client
        self._prepare_topics = prepare_topics
        self._patience = Patience(context.mirror.engine.target_wait)
        self._losses = Losses()
        self._silent = SilentBrokers(prober(context.target), most=context.mirror.engine.request_timeout)
        self._failures = 0
        self._ledger_writer = LedgerWriter(context)

    def run(self) -> None:
        """Produce until stopped or, with ``once``, until staging is over and all of it is sent; errors end the lane."""
        try:
            while not self._context.stop.is_set():
                try:
                    if not self._turn():
                        break
                except (ConnectionLost, ClusterUnreachable) as error:
                    self._target_lost(error)
                except BufferUnusable as error:
                    if not error.retryable:
                        raise
                    self._buffer_unusable(error)
            self._ledger_writer.write()
        except Exception as error:  # noqa: BLE001 - handed to the run's own thread, which raises it
            self._context.fail(error)
        finally:
            self._silent.end()
            worker_cache.close()

    def recover(self) -> None:
        """Read the tail of every partition whose state on the target is not certain, and account for what lies there.

        Raises:
            ConnectionLost, ClusterUnreachable: the target cannot be asked now.
        """
        now = time.monotonic()
        with self._state.lock:
            unknown = [p for p in self._state.sendable() if p.outcome_unknown]
        if not any(p.retry_at <= now for p in unknown):
            return
        # Those that are nearly due come along: each question of its own would hold up partitions that are well.
        unknown = [p for p in unknown if p.retry_at <= (now if p.suspect else now + TOGETHER_SECONDS)]
        crash_point("recover.before")
        self._leave_silent_alone()
        leaders, _ = self._client.leaders([p.target for p in unknown], patience=0.0)
        tails = read_tails(
            self._client,
            {p.target: p.position for p in unknown},
            self._context.stamp,
            timeout=REPLICATION_SECONDS,
            patience=max(ANSWER_SECONDS, self._silent.longest()),
            epochs={p.target: p.producer_epoch for p in unknown if p.producer_epoch},
        )
        self._leave_silent_alone()
        sends: list[Send] = []
        with self._state.lock:
            for part in unknown:
                try:
                    sends += self._apply_tail(part, tails[part.target])
                except Exception as error:  # noqa: BLE001 - a fault of ours over one partition: the others go on
                    self._suspect(part, internal(part.target, error))
        self._ledger_writer.add(sends)
        refusals = [tail for tail in tails.values() if isinstance(tail, BrokerError | ConnectionLost)]
        if len(refusals) < len(tails):
            self._patience.found()
            with self._state.lock:
                self._state.target_back()
        elif not self._others_go_on({leaders.get(target) for target in tails}):
            raise ConnectionLost(refusals[0].message, hint=refusals[0].hint)

    def _leave_silent_alone(self) -> None:
        """Brokers that have let a question pass are asked nothing until they have answered a probe."""
        for node, why in self._client.take_silent().items():
            self._silent.lost(node, why)
        self._client.avoid(list(self._silent.now))

    def _others_go_on(self, refusing: Collection[int | None]) -> bool:
        """Whether partitions that other brokers lead than the ``refusing`` ones are known to be well (None: they have no leader)."""
        with self._state.lock:
            well = [part.target for part in self._state.sendable() if not part.outcome_unknown]
        return any(self._client.known_leader(target) not in refusing for target in well)

    def _apply_tail(self, part: PartitionState, tail: Tail | TopicHalted | BrokerError | ConnectionLost) -> list[Send]:
        topic = part.source.topic
        if isinstance(tail, TopicHalted):
            self._suspect(part, tail)
            return []
        if isinstance(tail, ConnectionLost):
            part.failed(tail.message, delay=backoff(part.failures))
            return []
        if isinstance(tail, BrokerError):
            if lookup(tail.code).action in (Action.HALT, Action.FATAL):
                self._state.halt(topic, TopicHalted(topic, tail.message, hint=tail.hint, code=tail.name.lower()))
            else:
                part.failed(tail.message, delay=backoff(part.failures))
            return []
        if part.suspect is not None and not tail.read:
            self._suspect(part, part.suspect)  # what would tell has been deleted
            return []
        try:
            before = part.position.ordinal
            sends = self._account(part, tail.records)
            self._count(part, part.position.ordinal - before)
        except ValueError as error:
            hint = "was the buffer folder exchanged or emptied by hand?"
            self._state.halt(topic, TopicHalted(topic, f"{part.target}: {error}", hint=hint, code="buffer_gap"))
            return []
        part.outcome_unknown, part.tail_read, part.suspect = False, True, None
        part.error, part.retry_at = "", 0.0
        return sends

    def _suspect(self, part: PartitionState, found: TopicHalted) -> None:
        """Halt by the second answer that asks for it: a broker that has lost its lead, or one behind, may have told the first."""
        topic = part.source.topic
        halt = TopicHalted(topic, found.message, hint=found.hint, partition=part.source.partition, code=found.code, trace=found.trace)
        if part.suspect is not None or found.code == "internal":
            log_internal(halt)
            self._state.halt(topic, halt)
            return
        log.info("%s: looked at again before it halts: %s", part.target, found.message)
        part.suspect = halt
        part.failed(found.message, delay=divergence.SECOND_LOOK_SECONDS)

    def _count(self, part: PartitionState, found: int) -> None:
        """Records that this run has sent and nobody acknowledged; those found at its beginning are an earlier run's."""
        if part.tail_read and found:
            self._losses.done()
            self._state.topics[part.source.topic].records += found
            self._state.records += found

    def _account(self, part: PartitionState, records: int) -> list[Send]:
        """Move the partition's position over ``records`` records that are known to be on the target."""
        sends, part.position = advance(part.pending, part.position, records, target_topic=part.target.topic)
        while part.pending and part.pending[0].end <= part.position.source_next:
            part.pending.popleft()
        part.staged = max(part.staged, part.position.source_next)
        return sends

    def _turn(self) -> bool:
        self._context.hold.check()
        if self._ledger_writer.due and not self._ledger_writer.write():
            self._context.stop.wait(FULL_DISK_POLL_SECONDS)
            return True
        self._prepare_topics()
        self.recover()
        with self._state.lock:
            parts = self._state.sendable()
            skipped = self._pass_holes(parts)
            work, over = self._choose_work(parts), self._over(parts)
        self._ledger_writer.add(skipped)
        if work:
            self._produce(work)
            return True
        if over:
            return not self._ledger_writer.write()
        with self._state.lock:
            stuck = [p for p in parts if p.pending or p.outcome_unknown]
            if not stuck:
                self._patience.found()
            self._state.lock.wait(WAIT_SECONDS)
        if stuck:  # all that is left waits for brokers of its own
            why = stuck[0].error or f"{stuck[0].target} is not ready"
            self._patience.lost(ClusterUnreachable(self._context.target.alias, why), forever=not self._context.once)
        return True

    def _over(self, parts: Sequence[PartitionState]) -> bool:
        """Whether the read loop has ended and nothing is left to send."""
        state = self._state
        waiting = state.unready and state.source_lost is None  # without the source no topic can begin
        return state.staging_over and not any(p.pending or p.outcome_unknown for p in parts) and not waiting

    def _pass_holes(self, parts: Sequence[PartitionState]) -> list[Send]:
        sends: list[Send] = []
        for part in parts:
            if part.pending and not part.outcome_unknown and trailing_holes_only(part.pending, part.position):
                sends += self._account(part, 0)
        return sends

    def _choose_work(self, parts: Sequence[PartitionState]) -> list[PartitionWork]:
        """Spans to send next: oldest first from every partition in turn, about one micro-batch of bytes together."""
        now = time.monotonic()
        ready = [p for p in parts if p.pending and not p.outcome_unknown and p.retry_at <= now]
        if not ready:
            return []
        work = _choose(ready, self._context.mirror.engine.micro_batch_bytes)
        size = sum(each.bytes for each in work)
        most = self._context.runners.most_bytes(size)
        return work if most >= size else _choose(ready, most)

    def _produce(self, work: Sequence[PartitionWork]) -> None:
        assert self._context.stamp is not None  # noqa: S101 - set before the first span can be sent
        began = time.monotonic()
        engine = self._context.mirror.engine
        runner = self._context.runners.of(sum(w.bytes for w in work))
        shares = assign([(w, float(w.bytes)) for w in work], runner.tasks)
        tasks = [
            ProduceTask(
                store=self._context.store,
                cluster=self._context.target,
                stamp=self._context.stamp,
                work=tuple(share),
                timeout=engine.request_timeout,
                lease=min(engine.lease, self._context.hold.left),
                issued=time.time(),
                request_bytes=REQUEST_BYTES,
                forgotten_before=int((time.time() - self._context.memory_seconds / 2) * 1000),
                silence=self._silence(share),
            )
            for share in shares
        ]
        try:
            answers = runner.run_each(run_produce, tasks, name="produce")
        except BufferUnusable:  # in the middle of its spans: others may be on their way, or there
            with self._state.lock:
                self._set_unknown(work)
            raise
        lost = self._mark_unknown([(share, answer) for share, answer in zip(shares, answers, strict=True) if isinstance(answer, TaskLost)])
        self._apply_results(work, [answer for answer in answers if not isinstance(answer, TaskLost)], began)
        if lost is not None:
            self._context.stop.wait(self._losses.lost(lost))
        else:
            self._losses.done()

    def _silence(self, share: Sequence[PartitionWork]) -> float | None:
        """Seconds that a broker may be silent in a task; None, so long as a request may take, where no other broker has anything to do."""
        with self._state.lock:
            leaders = {self._client.known_leader(part.target) for part in self._state.sendable()}
            failures = max(self._of(work).failures for work in share)
        return SILENT_SECONDS * 2.0 ** min(failures, 5) if len(leaders) > 1 else None

    def _of(self, work: PartitionWork) -> PartitionState:
        source = work.spans[0].source
        return self._state.topics[source.topic].partitions[source.partition]

    def _mark_unknown(self, lost: Sequence[tuple[Sequence[PartitionWork], TaskLost]]) -> TaskLost | None:
        """Workers died between reading and acknowledging: what they sent is for the target's log to tell."""
        with self._state.lock:
            for share, error in lost:
                log.warning("producing: %s", error.message)
                self._set_unknown(share)
        return lost[0][1] if lost else None

    def _set_unknown(self, sent: Sequence[PartitionWork]) -> None:
        """What came of this is not known; with the state locked."""
        for work in sent:
            self._of(work).outcome_unknown = True

    def _apply_results(self, work: Sequence[PartitionWork], results: Sequence[ProduceResult], began: float) -> None:
        for node, why in (item for result in results for item in result.silent.items()):
            self._silent.lost(node, why)
        by_target = {w.target: w.spans[0].source for w in work}
        sends: list[Send] = []
        errors: list[str] = []
        acked, failed = 0, set()
        with self._state.lock:
            for outcome in (o for result in results for o in result.outcomes):
                source = by_target[outcome.target]
                run = self._state.topics[source.topic]
                part = run.partitions[source.partition]
                try:
                    sends += self._account(part, outcome.records)
                except Exception as error:  # noqa: BLE001 - a fault of ours over one partition: the others go on
                    self._suspect(part, internal(part.target, error))
                    continue
                acked += outcome.records
                run.records += outcome.records
                run.bytes += outcome.bytes
                self._state.records += outcome.records
                self._state.bytes += outcome.bytes
                self._apply_outcome(part, outcome, errors)
                failed |= {outcome.target} if outcome.error else set()
            self._state.seconds_producing += time.monotonic() - began
            self._state.micro_batches += 1
            self._state.active()
        self._ledger_writer.add(sends)
        if acked:
            self._target_found()
        elif errors and not self._others_go_on({self._client.known_leader(target) for target in failed}):
            raise ConnectionLost(errors[0])

    def _apply_outcome(self, part: PartitionState, outcome: PartitionOutcome, errors: list[str]) -> None:
        if outcome.halted and outcome.code in LOOKED_AT_AGAIN:
            part.outcome_unknown = True
            self._suspect(part, TopicHalted(part.source.topic, outcome.halted, hint=outcome.hint, code=outcome.code))
        elif outcome.halted:
            topic = part.source.topic
            halt = TopicHalted(
                topic, outcome.halted, hint=outcome.hint, partition=part.source.partition, code=outcome.code, trace=outcome.trace
            )
            log_internal(halt)
            self._state.halt(topic, halt)
        elif outcome.error:
            log.info("producing to %s: %s", outcome.target, outcome.error)
            errors.append(outcome.error)
            part.failed(outcome.error, delay=backoff(part.failures))
        else:
            part.worked()

    def _target_lost(self, error: ConnectionLost | ClusterUnreachable) -> None:
        self._failures += 1
        with self._state.lock:
            self._state.target_lost(error.message)
            for part in self._state.sendable():
                part.outcome_unknown = True
        self._patience.lost(
            ClusterUnreachable(self._context.target.alias, error.message, hint=error.hint),
            forever=not self._context.once,
        )
        self._context.stop.wait(backoff(self._failures))

    def _buffer_unusable(self, error: BufferUnusable) -> None:
        """Nothing can be read from the buffer, or it is not sure to be ours: wait, as for a full disk."""
        log.warning("producing waits: %s", error.message)
        with self._state.lock:
            self._state.buffer_is(error.message)
        self._context.stop.wait(FULL_DISK_POLL_SECONDS)

    def _target_found(self) -> None:
        self._failures = 0
        self._patience.found()
        with self._state.lock:
            self._state.target_back()


def _choose(ready: Sequence[PartitionState], budget_bytes: int) -> list[PartitionWork]:
    """The oldest spans of every partition, an equal share of the budget each, and one span at least."""
    share = budget_bytes / len(ready)
    work = []
    for part in ready:
        chosen: list[SpanRef] = []
        size = 0
        for span in part.pending:
            if chosen and size + span.bytes > share:
                break
            chosen.append(span)
            size += span.bytes
        work.append(PartitionWork(part.target, tuple(chosen), part.position, part.producer_epoch))
    return work
