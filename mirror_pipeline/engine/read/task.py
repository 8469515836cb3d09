"""The stage task: raw Fetch of its ranges into one Parquet part file. Runs in a Spark worker."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.longlink.connection_count import ConnectionCount
from mirror_pipeline.engine.longlink.read_ahead import ReadAhead
from mirror_pipeline.engine.longlink.segments import Segment
from mirror_pipeline.engine.read.messages import RangeOutcome, ReadResult, ReadTask
from mirror_pipeline.engine.read.plan import ESTIMATE_SLACK
from mirror_pipeline.engine.read.span_builder import SpanBuilder
from mirror_pipeline.engine.read.throttle import Throttle
from mirror_pipeline.engine.silent_brokers import PATIENT_ROUND_TRIPS, SILENT_SECONDS
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConnectionLost, CorruptBatch, MirrorError, TopicHalted, WireError
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.halts import internal, refused
from mirror_pipeline.kafka.answers import EARLIEST
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import Action, broker_error, lookup
from mirror_pipeline.kafka.connection import Connection
from mirror_pipeline.kafka.fetch import FetchedPartition, fetch, receive_fetch, send_fetch
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.kafka.poll import readable
from mirror_pipeline.model import TopicPartition

EMPTY_ANSWERS_BEFORE_GIVING_UP = 20
FETCH_WAIT_MS = 100
LEAST_FETCH_BYTES = 1_048_588
"""The largest batch of a topic with Kafka's own settings."""
USUAL_FETCH_BYTES, FETCHED_BATCHES = 512 * 1024, 4
"""Of a partition at a time: what many partitions bring together should still be in the processor's cache when it is looked at."""


@dataclass(slots=True, eq=False)
class _Slot:
    """A connection and the partitions that are read over it; ``asked`` when, ``rests`` until when the broker wants no question."""

    node: int
    connection: Connection
    sources: list[TopicPartition]
    asked: float = 0.0
    rests: float = 0.0


def run_read(task: ReadTask) -> ReadResult:
    """Read all ranges of ``task`` and write them as spans.

    A broken connection, a moved leader or a silent broker ends the reading of its own ranges with what was read; the
    next micro-batch goes on there. A range that cannot go on at all halts its topic alone.

    Raises:
        BufferUnusable: the part file cannot be written.
    """
    began = time.monotonic()
    writer = PartFileWriter(task.store, task.micro_batch, task.index, durable=task.durable)
    try:
        work = _TaskRun(task, writer)
        crash_point("stage.before_fetch")
        work.run(deadline=began + task.seconds)
        crash_point("stage.before_close")
        part = writer.close()
    except _Unwritten as fault:
        writer.abort()
        return ReadResult(None, work.nothing(fault), time.monotonic() - began)
    except BaseException:
        writer.abort()
        raise
    return ReadResult(part, work.outcomes(), time.monotonic() - began, work.silent, work.heard)


class _Unwritten(Exception):
    """A range could not be written by a fault of ours: the task's file is no good."""

    def __init__(self, source: TopicPartition, error: Exception) -> None:
        super().__init__(str(error))
        self.source, self.error = source, error


class _TaskRun:
    def __init__(self, task: ReadTask, writer: PartFileWriter) -> None:
        self._task = task
        self._held = 0
        self._ends: dict[TopicPartition, int] = {}
        self._throttle = Throttle(task.bytes_per_second)
        self._halted: dict[TopicPartition, TopicHalted] = {}
        self._errors: dict[TopicPartition, str] = {}
        self._empty: dict[TopicPartition, int] = {}
        self._beyond: set[TopicPartition] = set()
        self._faulty: set[TopicPartition] = set()
        self.silent: dict[int, str] = {}
        self.heard: dict[int, float] = {}
        self._builders = {rules.range.source: SpanBuilder(rules, writer.add) for rules in task.rules}

    def run(self, *, deadline: float) -> None:
        try:
            client = worker_cache.client_of(self._task.cluster, timeout=self._task.timeout)
            client.avoid(self._task.avoid)
            self._fetch_all(client, deadline)
        except (ConnectionLost, ClusterUnreachable) as error:
            worker_cache.forget(self._task.cluster)
            for source in self._open():
                self._errors.setdefault(source, error.message)
        self._flush()

    def outcomes(self) -> tuple[RangeOutcome, ...]:
        rows = []
        for source, builder in self._builders.items():
            rows.append(
                RangeOutcome(
                    source.topic, source.partition, builder.next, builder.records, builder.bytes_read,
                    error=self._errors.get(source, ""), halt=self._halted.get(source),
                    end=self._ends.get(source, -1), first_epoch=builder.first_epoch,
                    mark=builder.mark if source not in self._faulty else None, quarantined=tuple(builder.quarantined),
                    batches=builder.batches, beyond=source in self._beyond,
                )
            )  # fmt: skip
        return tuple(rows)

    def nothing(self, fault: _Unwritten) -> tuple[RangeOutcome, ...]:
        """Outcomes of a task whose file was thrown away: nothing was read, but one topic has halted."""
        halt = internal(fault.source, fault.error)
        rows = [(source, halt if source == fault.source else None) for source in self._builders]
        said = "its part file could not be written; it is read again"
        return tuple(
            RangeOutcome(tp.topic, tp.partition, self._builders[tp].rules.range.start, 0, 0, error="" if halted else said, halt=halted)
            for tp, halted in rows
        )

    def _open(self) -> list[TopicPartition]:
        return [s for s, r in self._builders.items() if not r.done and s not in self._halted and s not in self._errors]

    def _fetch_all(self, client: WireClient, deadline: float) -> None:
        by_leader = self._leaders(client)
        ranges = [self._builders[source].rules.range for source in self._open()]
        read_ahead: ReadAhead | None = worker_cache.take(self._task.cluster)
        if read_ahead is not None and not (self._task.onward and read_ahead.goes_on(ranges)):
            read_ahead.end()
            read_ahead = None
        slots = self._slots(client, by_leader) if read_ahead is None else []
        # A busy moment makes any round trip look long: the shortest one that was seen counts.
        round_trip = read_ahead.round_trip if read_ahead else min((slot.connection.round_trip for slot in slots), default=0.0)
        learnt = worker_cache.remembered(self._task.cluster, ConnectionCount)
        count = learnt.now(round_trip, self._task.connections, tasks=self._task.tasks)
        if count:
            self._fetch_parallel(client, read_ahead or ReadAhead(client, round_trip), count, deadline)
        else:
            self._fetch_short(client, slots, deadline)

    def _leaders(self, client: WireClient) -> dict[int, list[TopicPartition]]:
        """Partitions by leader; those without one, or whose leader is silent, are left to another time."""
        leaders, errors = client.leaders(list(self._builders), patience=0)
        for source, error in errors.items():
            self._refused(client, source, error)
        by_leader: dict[int, list[TopicPartition]] = {}
        for source, node in leaders.items():
            if node in self._task.avoid:
                self._errors[source] = f"broker {node} does not answer"
            else:
                by_leader.setdefault(node, []).append(source)
        return by_leader

    def _slots(self, client: WireClient, by_leader: Mapping[int, list[TopicPartition]]) -> list[_Slot]:
        """Two connections to each broker that takes them."""
        slots = []
        for node, sources in by_leader.items():
            halves = [sources[::2], sources[1::2]] if len(sources) > 1 else [sources]
            patience = self._patience(client, node)
            try:
                mine = [_Slot(node, client.connection(node, number, within=patience), half) for number, half in enumerate(halves)]
            except WireError as error:
                self._lost(client, node, sources, error)
                continue
            for slot in mine:
                slot.connection.limit(patience)
            slots += mine
        return slots

    def _patience(self, client: WireClient, node: int) -> float:
        return max(self._task.patience.get(node, SILENT_SECONDS), PATIENT_ROUND_TRIPS * client.round_trip)

    def _lost(self, client: WireClient, node: int, sources: Sequence[TopicPartition], error: WireError) -> None:
        """Nothing more comes of these in this task; the others go on. What no broker of the cluster will take is raised."""
        if isinstance(error, BrokerError) and lookup(error.code).action is Action.FATAL:
            raise error
        client.take_silent()
        for source in set(sources) & set(self._open()):
            client.forget(source)
            if isinstance(error, BrokerError) and not error.retryable:
                self._halted[source] = refused(source, error)
            else:
                self._errors[source] = error.message
        if isinstance(error, ConnectionLost) and error.timed_out:
            self.silent[node] = error.message

    def _fetch_short(self, client: WireClient, slots: list[_Slot], deadline: float) -> None:
        """Keep one request per connection on the way while answers are worked on; each broker is waited for apart."""
        waiting = {slot.connection: slot for slot in slots if self._ask(client, slot, deadline)}
        try:
            while waiting:
                now = time.monotonic()
                asked = [slot for slot in waiting.values() if not slot.rests]
                until = [slot.asked + self._patience(client, slot.node) for slot in asked]
                until += [slot.rests for slot in waiting.values() if slot.rests]
                ready = readable([slot.connection for slot in asked], min(until) - now)
                for connection in ready:
                    slot = waiting.pop(connection)
                    if self._take_answer(client, slot) and time.monotonic() < deadline and self._ask(client, slot, deadline):
                        waiting[connection] = slot
                for slot in list(waiting.values()):
                    if slot.rests and slot.rests <= now:
                        del waiting[slot.connection]
                        if self._ask(client, slot, deadline):
                            waiting[slot.connection] = slot
                    elif not slot.rests and slot.connection not in ready and slot.asked + self._patience(client, slot.node) <= now:
                        del waiting[slot.connection]
                        slot.connection.close()
                        said = f"{slot.connection.peer}: no answer within {now - slot.asked:.1f} s"
                        self._lost(client, slot.node, slot.sources, ConnectionLost(said, timed_out=True))
        except BaseException:
            for connection in waiting:
                connection.close()
            raise

    def _take_answer(self, client: WireClient, slot: _Slot) -> bool:
        """Take what has come over a connection; whether it can be asked again."""
        try:
            answers = receive_fetch(slot.connection)
        except WireError as error:
            self._lost(client, slot.node, slot.sources, error)
            return False
        self.heard[slot.node] = max(self.heard.get(slot.node, 0.0), time.monotonic() - slot.asked)
        for source, data in answers.items():
            self._answer(client, source, data, self._builders[source].next)
            self._held += len(data.records)
            self._throttle.pause(len(data.records))
        if self._held >= self._task.memory_bytes:
            self._flush()
        return True

    def _fetch_parallel(self, client: WireClient, read_ahead: ReadAhead, count: int, deadline: float) -> None:
        """Read over many connections; what they bring is taken over in the order of offsets."""
        try:
            ranges = [self._builders[source].rules.range for source in self._open()]
            for builder in self._builders.values():
                builder.most_bytes = math.inf  # segments are taken as a whole: what is left of one would be read again
            until = None  # the first segment is waited for unless its broker is silent: a slow link must not stand still
            read_ahead.share(ranges, count=count, ahead=self._task.onward, pause=self._throttle.pause)
            while (segment := read_ahead.next(until, patience=lambda node: self._patience(client, node))) is not None:
                self._take_segment(client, segment)
                read_ahead.taken(segment)
                builder = self._builders[segment.source]
                if builder.bytes_read >= ESTIMATE_SLACK * builder.rules.range.max_bytes:
                    read_ahead.enough(segment.source, builder.next)
                until = deadline
            for node in read_ahead.silent:
                mine = [source for source in self._open() if read_ahead.leader(source) == node]
                self._lost(client, node, mine, ConnectionLost(f"broker {node} does not answer", timed_out=True))
            worker_cache.remembered(self._task.cluster, ConnectionCount).brought(*read_ahead.brought())
        except BaseException:
            read_ahead.end()
            raise
        if self._task.onward and read_ahead.unfinished and not self._errors and not self._halted:
            worker_cache.keep(self._task.cluster, read_ahead)
        else:
            read_ahead.end()

    def _take_segment(self, client: WireClient, segment: Segment) -> None:
        source, builder = segment.source, self._builders[segment.source]
        if segment.fault is not None:
            self._halted.setdefault(source, internal(source, segment.fault))
        if segment.error is not None and not isinstance(segment.error, MirrorError):
            raise segment.error
        if segment.error is not None:
            self._errors.setdefault(source, str(segment.error))
        if not segment.answers or source in self._errors or source in self._halted or builder.next < segment.start:
            return  # what lies before is missing: the next micro-batch reads on from there
        for place, answer in enumerate(segment.answers):
            self._answer(client, source, answer, -1 if place else segment.start)
            self._held += len(answer.records)
        segment.answers = []
        if self._held >= self._task.memory_bytes:
            self._flush()

    def _fetch_bytes(self, source: TopicPartition) -> int:
        """No more than the range may still take: what a broker sends is staged as a whole. A larger batch is asked for again."""
        builder, most = self._builders[source], self._task.partition_fetch_bytes
        if self._empty.get(source):
            return most
        batch = builder.rules.range.bytes_per_batch
        usual = max(USUAL_FETCH_BYTES, int(FETCHED_BATCHES * batch)) if batch else LEAST_FETCH_BYTES
        return min(most, usual, max(builder.rules.range.max_bytes - builder.bytes_read, LEAST_FETCH_BYTES))

    def _ask(self, client: WireClient, slot: _Slot, deadline: float) -> bool:
        """Ask for what is still to be read over a connection, now or when its broker wants to be asked; False when there is nothing."""
        still = set(self._open())
        wants = {
            s: (self._builders[s].fetch_offset, self._fetch_bytes(s)) for s in slot.sources if s in still
        }
        if not wants:
            return False
        now = time.monotonic()
        slot.rests = now + slot.connection.muted if slot.connection.muted else 0.0
        if slot.rests:
            return slot.rests < deadline
        slot.asked = now
        try:
            send_fetch(slot.connection, wants, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=self._task.fetch_bytes)
        except WireError as error:
            self._lost(client, slot.node, slot.sources, error)
            return False
        return True

    def _answer(self, client: WireClient, source: TopicPartition, data: FetchedPartition, asked: int = -1) -> None:
        builder = self._builders[source]
        if builder.done or source in self._halted or source in self._errors:
            return  # behind a place where reading stopped nothing may be taken: it would look like a hole
        try:
            if data.error:
                self._refused(client, source, broker_error(data.error, str(source)), data)
                return
            before = builder.next
            self._ends[source] = data.last_stable_offset
            builder.take(data, asked=asked, ask=partial(self._ask_again, client, source, len(data.records)))
            self._empty[source] = 0 if builder.next > before else self._empty.get(source, 0) + 1
            if self._empty[source] > EMPTY_ANSWERS_BEFORE_GIVING_UP:
                self._errors[source] = f"the broker returned nothing for {source} at offset {builder.next}"
        except TopicHalted as halt:
            self._halted[source] = halt
        except (WireError, ClusterUnreachable) as error:  # asked again, the broker refuses or is silent
            client.forget(source)
            self._errors[source] = error.message
        except CorruptBatch as error:
            self._halted[source] = TopicHalted(
                source.topic, f"{source} at offset {builder.next}: {error.message}", partition=source.partition,
                hint="the source's log is damaged there, or a proxy changed the bytes; check the broker's disk", code="unreadable",
            )  # fmt: skip
        except MirrorError:
            raise
        except Exception as fault:  # noqa: BLE001 - one topic's trouble; what its reader holds may be anything
            self._faulty.add(source)
            self._halted[source] = internal(source, fault)

    def _ask_again(self, client: WireClient, source: TopicPartition, seen: int, offset: int) -> FetchedPartition:
        """What lies at an offset, over a connection of its own: answers may be due on the others.

        Raises:
            BrokerError, ConnectionLost: the broker refuses, or does not answer.
        """
        size = seen + self._task.partition_fetch_bytes
        leaders, errors = client.leaders([source], patience=0)
        if source in errors:
            raise errors[source]
        connection = client.opener(leaders[source])()
        try:
            answers = fetch(connection, {source: (offset, size)}, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=size)
        finally:
            connection.close()
        if source not in answers:
            raise ConnectionLost(f"{connection.peer}: the answer leaves {source} out")
        if answers[source].error:
            raise broker_error(answers[source].error, str(source))
        return answers[source]

    def _refused(
        self, client: WireClient, source: TopicPartition, error: BrokerError, data: FetchedPartition | None = None
    ) -> None:
        action = lookup(error.code).action
        if action is Action.RESEEK and data is not None:
            try:
                self._out_of_range(client, source)
            except BrokerError as refusal:
                self._refused(client, source, refusal)
        elif action in (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME):
            client.forget(source)
            self._errors[source] = error.message
        else:
            self._halted[source] = refused(source, error)

    def _out_of_range(self, client: WireClient, source: TopicPartition) -> None:
        """Deleted before it was read, or beyond the end? The end's word is not taken here: the run looks at it, and looks twice."""
        builder = self._builders[source]
        start = offsets_at(client, [source], EARLIEST, within=SILENT_SECONDS)[source]
        if start > builder.next:
            builder.skip_trimmed(start)
            return
        client.forget(source)
        self._beyond.add(source)
        self._errors[source] = f"the broker holds nothing of {source} at offset {builder.next}"

    def _flush(self) -> None:
        for source, builder in self._builders.items():
            if source in self._faulty:
                continue
            try:
                builder.flush()
            except MirrorError:
                raise
            except Exception as fault:
                raise _Unwritten(source, fault) from fault
        self._held = 0
