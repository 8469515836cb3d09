"""Sends staged spans: chooses them, gives each target partition to one write task, and runs the tasks."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from mirror_pipeline.engine.driver.context import LaneContext, Losses
from mirror_pipeline.engine.driver.plan import assign
from mirror_pipeline.engine.driver.state import PartitionState
from mirror_pipeline.engine.driver.write.outcomes import SendOutcomes
from mirror_pipeline.engine.tasks.write.messages import PartitionWork, WriteTask
from mirror_pipeline.engine.tasks.write.task import run_write
from mirror_pipeline.errors import BufferUnusable, TaskLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.model import SpanRef

log = logging.getLogger(__name__)

# How long a broker may leave a produce request without an answer while others have work; twice as long after each failure.
SILENT_TARGET_SECONDS = 3.0
# A produce request is sent once its batches are this large together.
PRODUCE_REQUEST_BYTES = 2**20
# Of its lease, the most that a task of more than the usual size may take, by the rate of the one before: a slow target gets usual sizes.
LEASE_SHARE = 0.25


class Sender:
    """Sends what is staged, one micro-batch at a time."""

    def __init__(self, context: LaneContext, client: WireClient, outcomes: SendOutcomes, losses: Losses) -> None:
        self._context = context
        self._state = context.state
        self._client = client
        self._outcomes = outcomes
        self._losses = losses
        self._rate = 0.0  # bytes a second that the target last took
        self._ahead: dict[str, float] = {}  # by how much other hosts' clocks are ahead of this one's

    def choose(self, parts: Sequence[PartitionState]) -> list[PartitionWork]:
        """Spans to send next: oldest first from every partition in turn, about one micro-batch of bytes together."""
        now = time.monotonic()
        ready = [p for p in parts if p.pending and not p.writing.outcome_unknown and p.writing.retry_at <= now]
        if not ready:
            return []
        budget = self._context.mirror.engine.micro_batch_bytes
        shared = self._context.shared
        work = _choose(ready, budget, shared)
        reach = self._context.placement.for_write(_size(work)).reach
        most = int(min(budget * reach, self._rate * self._context.mirror.engine.lease * LEASE_SHARE))
        return _choose(ready, most, shared) if most > budget else work

    def send(self, work: Sequence[PartitionWork]) -> None:
        """Run write tasks and account for what came of them.

        Raises:
            ConnectionLost: no broker took anything.
            BufferUnusable: spans cannot be read.
            TaskLost: workers keep dying without progress.
        """
        began = time.monotonic()
        place = self._context.placement.for_write(_size(work))
        shares = assign([(w, float(w.bytes)) for w in work], place.runner.tasks)
        tasks = [self._task(share) for share in shares]
        try:
            answers = place.runner.run_each(run_write, tasks, name="produce")
            self._state.ran(tasks, place)
        except BufferUnusable:  # in the middle of its spans: others may be on their way, or there
            with self._state.lock:
                self._set_unknown(work)
            raise
        lost = self._mark_unknown([(share, answer) for share, answer in zip(shares, answers, strict=True) if isinstance(answer, TaskLost)])
        results = [answer for answer in answers if not isinstance(answer, TaskLost)]
        # Within the lease it may as well be a start that took long.
        lease = self._context.mirror.engine.lease
        self._ahead |= {result.host: result.ahead if abs(result.ahead) > lease else 0.0 for result in results}
        self._outcomes.apply_results(work, results, began)
        if lost is not None:
            self._context.stop.wait(self._losses.lost(lost))
        else:
            self._losses.done()
            self._rate = _size(work) / max(time.monotonic() - began, 1e-6)

    def _task(self, share: Sequence[PartitionWork]) -> WriteTask:
        assert self._context.state.stamp is not None  # noqa: S101 - set before the first span can be sent
        engine = self._context.mirror.engine
        return WriteTask(
            store=self._context.store,
            cluster=self._context.target,
            stamp=self._context.state.stamp,
            work=tuple(share),
            timeout=engine.request_timeout,
            lease=min(engine.lease, self._context.hold.left),
            issued=time.time(),
            request_bytes=PRODUCE_REQUEST_BYTES,
            markers=self._context.state.markers,
            forgotten_before=int((time.time() - self._context.state.memory_seconds / 2) * 1000),
            silence=self._silence(share),
            ahead=dict(self._ahead),
        )

    def _silence(self, share: Sequence[PartitionWork]) -> float | None:
        """Seconds that a broker may be silent in a task; None, so long as a request may take, where no other broker has anything to do."""
        with self._state.lock:
            leaders = {self._client.known_leader(part.target) for part in self._state.sendable()}
            failures = max(self._of(work).writing.failures for work in share)
        return SILENT_TARGET_SECONDS * 2.0 ** min(failures, 5) if len(leaders) > 1 else None

    def _of(self, work: PartitionWork) -> PartitionState:
        source = work.spans[0].source
        return self._state.topics[source.topic].partitions[source.partition]

    def _mark_unknown(self, lost: Sequence[tuple[Sequence[PartitionWork], TaskLost]]) -> TaskLost | None:
        """Workers died between reading and acknowledging: only the target's log shows what they sent."""
        with self._state.lock:
            for share, error in lost:
                log.warning("producing: %s", error.message)
                self._set_unknown(share)
        return lost[0][1] if lost else None

    def _set_unknown(self, sent: Sequence[PartitionWork]) -> None:
        """The outcome of this work is unknown; with the state locked."""
        for work in sent:
            self._of(work).writing.outcome_unknown = True


def _size(work: Sequence[PartitionWork]) -> int:
    return sum(each.bytes for each in work)


def _choose(ready: Sequence[PartitionState], budget_bytes: int, shared: bool = False) -> list[PartitionWork]:
    """The oldest spans of every partition, about an equal share of the budget each, and one span at least.

    A span that lies more within the share than beyond it belongs to it: what is left of a micro-batch would be a job of its own.
    """
    share = budget_bytes / len(ready)
    work = []
    for part in ready:
        chosen: list[SpanRef] = []
        size = 0
        for span in part.pending:
            if chosen and size + span.bytes / 2 > share:
                break
            chosen.append(span)
            size += span.bytes
        work.append(PartitionWork(part.target, tuple(chosen), part.writing.position, part.writing.producer_epoch, shared))
    return work
