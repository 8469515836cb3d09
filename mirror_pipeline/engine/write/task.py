"""The produce task: the one owner of its target partitions sends their spans, stamped, in order. Runs in a Spark worker.

The task never decides what an unknown outcome means. It stops that partition and says so; the driver reads
the target's tail before anything is sent there again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.write.messages import PartitionOutcome, PartitionWork, ProduceResult, ProduceTask
from mirror_pipeline.engine.write.offset_map import records_before
from mirror_pipeline.engine.write.pieces import whole_batches
from mirror_pipeline.errors import BrokerError, BufferUnusable, ClusterUnreachable, ConnectionLost, CorruptBatch
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.halts import internal
from mirror_pipeline.kafka.client import OPEN_TIMEOUT, WireClient
from mirror_pipeline.kafka.codes import Action, after_produce, broker_error
from mirror_pipeline.kafka.connection import Connection
from mirror_pipeline.kafka.produce import ProduceAnswer, receive_produce, send_produce
from mirror_pipeline.kafka.records.restamp import SequencedBatch, assign_sequences
from mirror_pipeline.model import Stamp, TopicPartition

MEMORY_SECONDS = 1.0
"""An acknowledgement this young tells that the broker still knows our producer."""
REQUESTS_IN_FLIGHT = 5
"""The broker remembers a producer's last five batches of a partition (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""


@dataclass(slots=True)
class _Lane:
    """One target partition while it is being sent."""

    work: PartitionWork
    batches: Iterator[SequencedBatch]
    in_flight: int = 0
    acked: int = 0
    acked_bytes: int = 0
    acked_at: float = 0.0
    remembered: bool = False
    empty: bool = False
    stopped: bool = False
    uncertain: bool = False
    error: str = ""
    halted: str = ""
    hint: str = ""
    code: str = ""
    trace: str = ""

    @property
    def window(self) -> int:
        """Batches that may be on the way. A broker without state of our producer accepts *any* first sequence:
        were several sent at once and the first refused, the second would be appended in its place. Brokers forget
        producers by the time of their records: of old ones only a single batch is ever on the way."""
        return REQUESTS_IN_FLIGHT if self.remembered and time.monotonic() - self.acked_at < MEMORY_SECONDS else 1

    def stop(self, *, error: str = "", halted: str = "", hint: str = "", code: str = "", uncertain: bool = True) -> None:
        if not self.stopped:
            self.error, self.halted, self.hint, self.code = error, halted, hint, code
        self.stopped = True
        self.uncertain = self.uncertain or uncertain

    def outcome(self) -> PartitionOutcome:
        return PartitionOutcome(
            self.work.target, self.acked, self.acked_bytes, self.uncertain, self.error, self.halted, self.hint, self.code, self.trace
        )


@dataclass(slots=True)
class _Line:
    """One connection with its partitions and the requests on their way."""

    connection: Connection
    lanes: list[_Lane]
    waiting: deque[dict[TopicPartition, tuple[_Lane, SequencedBatch]]] = field(default_factory=deque)
    node: int = -1


def run_produce(task: ProduceTask) -> ProduceResult:
    """Send what the task holds; returns how far each partition came. Raises BufferUnusable if a span cannot be read."""
    began = time.monotonic()
    reader = SpanReader(task.store)
    lanes = [_Lane(w, _sequenced(w, reader, task.stamp)) for w in task.work]
    silent: dict[int, str] = {}
    if time.time() - task.issued > task.lease:
        _stop_all(lanes, "the task started after its lease was over")
    else:
        silent = _send_all(task, lanes, deadline=began + task.lease)
    outcomes = tuple(lane.outcome() for lane in lanes)
    sent = [span for lane in lanes if lane.empty and not lane.stopped for span in lane.work.spans]
    del lanes  # and with them the last views into the buffer
    reader.release(sent)
    return ProduceResult(outcomes, time.monotonic() - began, silent)


def _sequenced(work: PartitionWork, reader: SpanReader, stamp: Stamp) -> Iterator[SequencedBatch]:
    """The batches to send."""
    if work.producer_epoch:
        stamp = replace(stamp, producer_epoch=stamp.producer_epoch + work.producer_epoch)
    sequence = work.position.ordinal
    for span in work.spans:
        if span.records:
            skip = records_before(span, work.position.source_next)
            for piece, records in whole_batches(reader.stretches(span), span):
                known = min(skip, records)
                yield from assign_sequences(piece, stamp, sequence, skip=known)
                sequence += records - known
                skip -= known


def _send_all(task: ProduceTask, lanes: list[_Lane], *, deadline: float) -> dict[int, str]:
    """Send everything; the brokers that let a question pass, and how that showed."""
    silent: dict[int, str] = {}
    try:
        client = worker_cache.client_of(task.cluster, timeout=task.timeout)
        lines = _lines(client, lanes, task, silent)
    except (ConnectionLost, ClusterUnreachable) as problem:
        worker_cache.forget(task.cluster)
        _stop_all(lanes, problem.message)
        return silent
    active = list(lines)
    while active:
        for line in _unmuted(active):
            try:
                _fill(line, task, deadline)
                if line.waiting:
                    _collect(line, task)
                else:
                    active.remove(line)
            except ConnectionLost as problem:
                active.remove(line)
                line.connection.close()
                silent |= {line.node: problem.message} if problem.timed_out else {}
                for lane in line.lanes:
                    if lane.in_flight or not lane.empty:
                        lane.stop(error=problem.message)
    for lane in lanes:
        if lane.stopped and not lane.halted:
            client.forget(lane.work.target)
    return silent


def _unmuted(lines: list[_Line]) -> list[_Line]:
    """Those whose brokers do not throttle us now; where all do, the one that may be asked first."""
    return [line for line in lines if not line.connection.muted] or [min(lines, key=lambda line: line.connection.muted)]


def _stop_all(lanes: list[_Lane], error: str) -> None:
    for lane in lanes:
        lane.stop(error=error)


def _lines(client: WireClient, lanes: list[_Lane], task: ProduceTask, silent: dict[int, str]) -> list[_Line]:
    """A connection to each leader. One that cannot be reached stops its own partitions only; it may be ``silent``."""
    leaders, errors = client.leaders([lane.work.target for lane in lanes], patience=0.0)
    by_leader: dict[int, list[_Lane]] = {}
    for lane in lanes:
        if lane.work.target in errors:
            _refuse(lane, errors[lane.work.target])
        else:
            by_leader.setdefault(leaders[lane.work.target], []).append(lane)
    lines = []
    for leader, owned in by_leader.items():
        try:
            connection = client.connection(leader, within=min(OPEN_TIMEOUT, task.silence or OPEN_TIMEOUT))
        except ConnectionLost as problem:
            _stop_all(owned, problem.message)
            silent |= {leader: problem.message} if problem.timed_out else {}
            continue
        connection.limit(min(task.timeout, task.silence or task.timeout))
        lines.append(_Line(connection, owned, node=leader))
    return lines


def _fill(line: _Line, task: ProduceTask, deadline: float) -> None:
    """Send until five requests are on the way or nothing is left to send; one at a time to a broker that throttles us."""
    while len(line.waiting) < (REQUESTS_IN_FLIGHT if not line.connection.throttle else 1):
        request = _next_request(line, task.request_bytes)
        if not request:
            return
        line.connection.wait_out_throttle()
        # The lease is checked as close to the send as it can be.
        if time.monotonic() >= deadline:
            for lane in line.lanes:
                lane.stop(error="the lease of the produce task ended", uncertain=bool(lane.in_flight))
            return
        for lane, _ in request.values():
            lane.in_flight += 1
        line.waiting.append(request)
        batches = {target: (batch.head, batch.rest) for target, (_, batch) in request.items()}
        crash_point("produce.before_send")
        send_produce(line.connection, batches, timeout_ms=int(task.timeout * 1000), wait=0.0 if task.silence else None)
        crash_point("produce.after_send")


def _collect(line: _Line, task: ProduceTask) -> None:
    """Wait for the oldest request's answer."""
    answers = receive_produce(line.connection)
    crash_point("produce.before_ack")
    for target, (lane, batch) in line.waiting.popleft().items():
        lane.in_flight -= 1
        _acknowledge(lane, answers.get(target), batch, task.forgotten_before)


def _next_request(line: _Line, request_bytes: int) -> dict[TopicPartition, tuple[_Lane, SequencedBatch]]:
    """One batch of every partition that may send, until ``request_bytes`` are together; the line's order rotates."""
    request: dict[TopicPartition, tuple[_Lane, SequencedBatch]] = {}
    size = 0
    for _ in range(len(line.lanes)):
        if size >= request_bytes:
            break
        lane = line.lanes.pop(0)
        line.lanes.append(lane)
        if lane.stopped or lane.empty or lane.in_flight >= lane.window:
            continue
        try:
            batch = next(lane.batches, None)
        except CorruptBatch as problem:
            lane.stop(
                halted=f"the buffer holds a damaged batch for {lane.work.target}: {problem.message}",
                hint="check the buffer's disk; remove the lane's `spans` folder to read the rest from the source again",
                code="buffer_damaged",
                uncertain=bool(lane.in_flight),
            )
            continue
        except BufferUnusable:
            raise
        except Exception as problem:  # noqa: BLE001 - a fault of ours over one partition: the others go on
            _fault(lane, problem)
            continue
        if batch is None:
            lane.empty = True
            continue
        request[lane.work.target] = (lane, batch)
        size += batch.size
    return request


def _fault(lane: _Lane, problem: Exception) -> None:
    halt = internal(lane.work.target, problem)
    lane.stop(halted=halt.message, hint=halt.hint, code=halt.code, uncertain=bool(lane.in_flight))
    lane.trace = halt.trace


def _acknowledge(lane: _Lane, answer: ProduceAnswer | None, batch: SequencedBatch, forgotten_before: int) -> None:
    if answer is None:
        lane.stop(error=f"the broker did not answer for {lane.work.target}")
        return
    if lane.stopped and (lane.uncertain or lane.halted):
        return  # an earlier batch is missing: what this one's answer says is the tail's to tell
    if answer.error:
        _refuse(lane, broker_error(answer.error, str(lane.work.target)))
        return
    expected = lane.work.position.target_next + lane.acked
    if answer.base_offset != expected:
        lane.stop(
            halted=f"{lane.work.target} put a batch at offset {answer.base_offset} where {expected} was expected:"
            " somebody else writes to the target topic",
            hint="stop the other writer; mirrored topics take no other records",
            code="foreign_writer",
        )
        return
    lane.acked += batch.records
    lane.acked_bytes += batch.size
    lane.acked_at = time.monotonic()
    lane.remembered = batch.newest > forgotten_before


def _refuse(lane: _Lane, problem: BrokerError) -> None:
    action = after_produce(problem.code)
    if action in (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME):
        lane.stop(error=problem.message)
    else:
        lane.stop(halted=problem.message, hint=problem.hint, code=problem.name.lower())
