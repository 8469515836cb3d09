"""The produce task: the only sender to its target partitions assigns sequences and sends their spans in order. Runs in a Spark worker.

The task never decides what an unknown outcome means. It stops that partition and reports so; the driver reads
the target's tail before anything is sent there again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.tasks.write.filling import fill_holes
from mirror_pipeline.engine.tasks.write.messages import PartitionOutcome, PartitionWork, WriteResult, WriteTask
from mirror_pipeline.engine.tasks.write.offset_map import append_run, records_before
from mirror_pipeline.errors import BrokerError, BufferUnusable, ClusterUnreachable, ConnectionLost, CorruptBatch
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.halts import Halt, buffer_damaged, displaced, internal, refused_topic
from mirror_pipeline.host import host_clock
from mirror_pipeline.kafka.client import OPEN_TIMEOUT, Connection, WireClient
from mirror_pipeline.kafka.codes import UNREACHED, Action, after_produce, broker_error
from mirror_pipeline.kafka.produce import ProduceAnswer, receive_produce, send_produce
from mirror_pipeline.kafka.records.header import HEADER, HEADER_BYTES, LOG_OVERHEAD
from mirror_pipeline.kafka.records.restamp import SequencedBatch, assign_sequences
from mirror_pipeline.model import MarkerStamp, SpanRef, Stamp, TopicPartition

# An acknowledgement this recent proves that the broker still remembers our producer.
MEMORY_SECONDS = 1.0
# The broker remembers a producer's last five batches of a partition (ProducerStateEntry.NUM_BATCHES_TO_RETAIN).
REQUESTS_IN_FLIGHT = 5


@dataclass(slots=True)
class _Slot:
    """One target partition while it is being sent.

    ``end`` is the end of its log as far as the target has said, ``next`` where the batch after those in flight goes. With ``exact``
    offsets up to ``fill_to`` are to be filled before the batch that is ``held``; ``fenced``: a marker of this task is there.
    """

    work: PartitionWork
    batches: Iterator[SequencedBatch]
    exact: bool = False
    end: int = field(init=False)
    next: int = field(init=False)
    fill_to: int = -1
    fenced: bool = False
    held: SequencedBatch | None = None
    in_flight: int = 0
    acked: int = 0
    acked_bytes: int = 0
    acked_at: float = 0.0
    remembered: bool = False
    empty: bool = False
    stopped: bool = False
    outcome_unknown: bool = False
    error: str = ""
    halt: Halt | None = None
    answered: bool = False
    landed: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.next = self.work.position.target_next

    @property
    def target(self) -> TopicPartition:
        """The partition."""
        return self.work.target

    @property
    def wants_fill(self) -> bool:
        """Whether markers must be there before anything more is sent."""
        return not self.stopped and self.fill_to > self.next

    def take(self) -> SequencedBatch | None:
        """The next batch to send; None at the end, and while a hole before it is not filled. Raises CorruptBatch, BufferUnusable."""
        batch, self.held = self.held or next(self.batches, None), None
        if self.exact:
            to = batch.base if batch is not None else self.work.spans[-1].end
            if to < self.next and batch is not None:
                raise CorruptBatch(f"the batch at source offset {to} comes after offset {self.next - 1} of the target")
            if to > self.next:
                self.held, self.fill_to = batch, to
                return None
        if batch is not None:
            self.next += batch.records
        else:
            self.empty = True
        return batch

    @property
    def window(self) -> int:
        """Batches that may be in flight. A broker without state of our producer accepts *any* first sequence:
        if several were sent at once and the first refused, the second would be appended in its place. Brokers forget
        producers by the time of their records: of old records only a single batch is ever in flight."""
        return REQUESTS_IN_FLIGHT if self.remembered and time.monotonic() - self.acked_at < MEMORY_SECONDS else 1

    def stop(self, *, error: str = "", halt: Halt | None = None, outcome_unknown: bool = True, answered: bool = False) -> None:
        if not self.stopped:
            self.error, self.halt, self.answered = error, halt, answered
        self.stopped = True
        self.outcome_unknown = self.outcome_unknown or outcome_unknown

    def refuse(self, error: BrokerError) -> None:
        """Stop for what the broker has answered."""
        _refuse(self, error)

    def outcome(self) -> PartitionOutcome:
        return PartitionOutcome(
            self.target, self.acked, self.acked_bytes, self.outcome_unknown, self.error, self.halt, self.answered, tuple(self.landed),
            self.end,
        )  # fmt: skip

    def expected(self, base_offset: int) -> int:
        """Where the next batch must lie, given where the broker put it: in a shared topic anywhere behind our last one."""
        if not self.work.shared:
            return self.end
        return max(base_offset, sum(self.landed[-1]) if self.landed else self.work.position.target_next)


@dataclass(slots=True)
class _Link:
    """One connection with its partitions and its requests in flight."""

    connection: Connection
    slots: list[_Slot]
    waiting: deque[dict[TopicPartition, tuple[_Slot, SequencedBatch]]] = field(default_factory=deque)
    node: int = -1


def run_write(task: WriteTask) -> WriteResult:
    """Send the task's spans; returns how far each partition came. Raises BufferUnusable if a span cannot be read."""
    began = time.monotonic()
    reader = SpanReader(task.store)
    slots = [_Slot(w, _sequenced(w, reader, task.stamp), task.markers is not None) for w in task.work]
    silent: dict[int, str] = {}
    host, ahead = host_clock(), time.time() - task.issued
    if ahead - task.ahead.get(host, 0.0) > task.lease:
        for slot in slots:
            slot.stop(error="the task started after its lease was over, by this host's clock", answered=True)
    else:
        silent = _send_all(task, slots, deadline=began + task.lease)
    outcomes = tuple(slot.outcome() for slot in slots)
    return WriteResult(outcomes, time.monotonic() - began, silent, host, ahead)


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
            reader.release([span])  # handed to the kernel: a large task does not have all of its part files in memory at once


def _send_all(task: WriteTask, slots: list[_Slot], *, deadline: float) -> dict[int, str]:
    """Send everything; returns the brokers that let a request time out, each with the error."""
    silent: dict[int, str] = {}
    try:
        client = worker_cache.client_of(task.cluster, timeout=task.timeout)
        links = _links(client, slots, task, silent)
    except (ConnectionLost, ClusterUnreachable) as error:
        worker_cache.forget(task.cluster)
        _stop_all(slots, error.message)
        return silent
    active = list(links)
    while active:
        for link in _unmuted(active):
            try:
                _fill(link, task, deadline)
                if link.waiting:
                    _collect(link, task)
                elif task.markers is not None and (wanting := [slot for slot in link.slots if slot.wants_fill]):
                    _fill_holes(client, link, wanting, task.markers, task, deadline)
                else:
                    active.remove(link)
            except ConnectionLost as error:
                active.remove(link)
                link.connection.close()
                silent |= {link.node: error.message} if error.timed_out else {}
                for slot in link.slots:
                    if slot.in_flight or not slot.empty:
                        slot.stop(error=error.message)
    for slot in slots:
        if slot.stopped and slot.halt is None:
            client.forget(slot.work.target)
    return silent


def _unmuted(links: list[_Link]) -> list[_Link]:
    """Links whose brokers do not throttle us now; if all do, the one that is free first."""
    return [link for link in links if not link.connection.muted] or [min(links, key=lambda link: link.connection.muted)]


def _stop_all(slots: list[_Slot], error: str) -> None:
    for slot in slots:
        slot.stop(error=error)


def _links(client: WireClient, slots: list[_Slot], task: WriteTask, silent: dict[int, str]) -> list[_Link]:
    """A connection to each leader. An unreachable leader stops its own partitions only and may count as ``silent``."""
    leaders, errors = client.leaders([slot.work.target for slot in slots], patience=0.0)
    by_leader: dict[int, list[_Slot]] = {}
    for slot in slots:
        if slot.work.target in errors:
            _refuse(slot, errors[slot.work.target])
        else:
            by_leader.setdefault(leaders[slot.work.target], []).append(slot)
    links = []
    for leader, owned in by_leader.items():
        try:
            connection = client.connection(leader, within=min(OPEN_TIMEOUT, task.silence or OPEN_TIMEOUT))
        except ConnectionLost as error:
            _stop_all(owned, error.message)
            silent |= {leader: error.message} if error.timed_out else {}
            continue
        connection.limit(min(task.timeout, task.silence or task.timeout))
        links.append(_Link(connection, owned, node=leader))
    return links


def _fill(link: _Link, task: WriteTask, deadline: float) -> None:
    """Send until five requests are in flight or nothing is left to send; one at a time to a broker that throttles us."""
    while len(link.waiting) < (REQUESTS_IN_FLIGHT if not link.connection.throttle else 1):
        request = _next_request(link, task.request_bytes)
        if not request:
            return
        link.connection.wait_out_throttle()
        # The lease is checked as close to the send as it can be.
        if time.monotonic() >= deadline:
            for slot in link.slots:
                slot.stop(error="the lease of the produce task ended", outcome_unknown=bool(slot.in_flight))
            return
        for slot, _ in request.values():
            slot.in_flight += 1
        link.waiting.append(request)
        batches = {target: (batch.head, batch.rest) for target, (_, batch) in request.items()}
        crash_point("produce.before_send")
        send_produce(link.connection, batches, timeout_ms=int(task.timeout * 500), wait=0.0)  # its replicas get half of the time
        crash_point("produce.after_send")


def _fill_holes(client: WireClient, link: _Link, slots: list[_Slot], stamp: MarkerStamp, task: WriteTask, deadline: float) -> None:
    fill_holes(
        client, link.connection, slots, stamp, deadline=deadline, within=min(task.timeout, task.silence or task.timeout)
    )
    for slot in slots:
        slot.next = slot.end


def _collect(link: _Link, task: WriteTask) -> None:
    """Wait for the oldest request's answer."""
    answers = receive_produce(link.connection)
    crash_point("produce.before_ack")
    for target, (slot, batch) in link.waiting.popleft().items():
        slot.in_flight -= 1
        _acknowledge(slot, answers.get(target), batch, task.forgotten_before)


def _next_request(link: _Link, request_bytes: int) -> dict[TopicPartition, tuple[_Slot, SequencedBatch]]:
    """One batch of every partition that may send, up to ``request_bytes``; the order of the slots rotates."""
    request: dict[TopicPartition, tuple[_Slot, SequencedBatch]] = {}
    size = 0
    for _ in range(len(link.slots)):
        if size >= request_bytes:
            break
        slot = link.slots.pop(0)
        link.slots.append(slot)
        if slot.stopped or slot.empty or slot.wants_fill or slot.in_flight >= slot.window:
            continue
        try:
            batch = slot.take()
        except CorruptBatch as error:
            slot.stop(halt=buffer_damaged(slot.work.target, error), outcome_unknown=bool(slot.in_flight))
            continue
        except BufferUnusable:
            raise
        except Exception as error:  # noqa: BLE001 - an internal error over one partition: the others continue
            slot.stop(halt=internal(slot.work.target, error), outcome_unknown=bool(slot.in_flight))
            continue
        if batch is None:
            continue
        request[slot.work.target] = (slot, batch)
        size += batch.size
    return request


def _acknowledge(slot: _Slot, answer: ProduceAnswer | None, batch: SequencedBatch, forgotten_before: int) -> None:
    if answer is None:
        slot.stop(error=f"the broker did not answer for {slot.work.target}")
        return
    if slot.stopped and (slot.outcome_unknown or slot.halt is not None):
        return  # an earlier batch is missing: only the tail shows what this answer means
    if answer.error:
        _refuse(slot, broker_error(answer.error, str(slot.work.target)))
        return
    expected = slot.expected(answer.base_offset)
    if answer.base_offset != expected:
        slot.stop(halt=displaced(slot.work.target, answer.base_offset, expected))
        return
    if slot.work.shared:
        append_run(slot.landed, answer.base_offset, batch.records)
    slot.end = answer.base_offset + batch.records
    slot.acked += batch.records
    slot.acked_bytes += batch.size
    slot.acked_at = time.monotonic()
    slot.remembered = batch.newest > forgotten_before


def _refuse(slot: _Slot, error: BrokerError) -> None:
    action = after_produce(error.code)
    if action in (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME):
        slot.stop(error=error.message, answered=error.code not in UNREACHED)
    else:
        slot.stop(halt=refused_topic(slot.work.target.topic, error))


def whole_batches(chunks: Iterator[memoryview], span: SpanRef) -> Iterator[tuple[memoryview, int]]:
    """Pieces of whole batches, each with its record count; a span that arrives in one piece stays as it is.

    Bytes that cannot be cut (damaged, or a batch without its end) come last and unchanged: ``assign_sequences`` reports the damage.
    """
    rest = b""
    for chunk in chunks:
        if len(chunk) == span.bytes:
            yield chunk, span.records
            return
        data = memoryview(rest + chunk)
        end, records = _whole(data)
        if end:
            yield data[:end], records
        rest = bytes(data[end:])
    if rest:
        yield memoryview(rest), 0


def _whole(data: memoryview) -> tuple[int, int]:
    """Where the last whole batch ends, and the record count up to there."""
    at = records = 0
    while at + HEADER_BYTES <= len(data):
        _, length, *_, count = HEADER.unpack_from(data, at)
        stop = at + length + LOG_OVERHEAD
        if stop > len(data) or stop < at + HEADER_BYTES or count < 0:
            break
        at, records = stop, records + count
    return at, records
