"""The stage task: raw Fetch of its ranges into one Parquet part file. Runs in a Spark worker."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.longlink.connection_count import LineCount
from mirror_pipeline.engine.longlink.read_ahead import Reading
from mirror_pipeline.engine.longlink.segments import Stretch
from mirror_pipeline.engine.read.messages import RangeOutcome, StageResult, StageTask
from mirror_pipeline.engine.read.plan import ESTIMATE_SLACK
from mirror_pipeline.engine.read.span_builder import RangeReader
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
class _Line:
    """A connection and the partitions that are read over it; ``asked`` when, ``rests`` until when the broker wants no question."""

    node: int
    connection: Connection
    sources: list[TopicPartition]
    asked: float = 0.0
    rests: float = 0.0


def run_stage(task: StageTask) -> StageResult:
    """Read all ranges of ``task`` and write them as spans.

    A broken connection, a moved leader or a silent broker ends the reading of its own ranges with what was read; the
    next micro-batch goes on there. A range that cannot go on at all halts its topic alone.

    Raises:
        BufferUnusable: the part file cannot be written.
    """
    began = time.monotonic()
    writer = PartFileWriter(task.store, task.micro_batch, task.index, durable=task.durable)
    try:
        staging = _Staging(task, writer)
        crash_point("stage.before_fetch")
        staging.run(deadline=began + task.seconds)
        crash_point("stage.before_close")
        part = writer.close()
    except _Unwritten as fault:
        writer.abort()
        return StageResult(None, staging.nothing(fault), time.monotonic() - began)
    except BaseException:
        writer.abort()
        raise
    return StageResult(part, staging.outcomes(), time.monotonic() - began, staging.silent, staging.heard)


class _Unwritten(Exception):
    """A range could not be written by a fault of ours: the task's file is no good."""

    def __init__(self, source: TopicPartition, problem: Exception) -> None:
        super().__init__(str(problem))
        self.source, self.problem = source, problem


class _Staging:
    def __init__(self, task: StageTask, writer: PartFileWriter) -> None:
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
        self._readers = {terms.range.source: RangeReader(terms, writer.add) for terms in task.terms}

    def run(self, *, deadline: float) -> None:
        try:
            client = worker_cache.client_of(self._task.cluster, timeout=self._task.timeout)
            client.avoid(self._task.avoid)
            self._fetch_all(client, deadline)
        except (ConnectionLost, ClusterUnreachable) as problem:
            worker_cache.forget(self._task.cluster)
            for source in self._open():
                self._errors.setdefault(source, problem.message)
        self._flush()

    def outcomes(self) -> tuple[RangeOutcome, ...]:
        rows = []
        for source, reader in self._readers.items():
            rows.append(
                RangeOutcome(
                    source.topic, source.partition, reader.next, reader.records, reader.bytes_read,
                    error=self._errors.get(source, ""), halt=self._halted.get(source),
                    end=self._ends.get(source, -1), first_epoch=reader.first_epoch,
                    mark=reader.mark if source not in self._faulty else None, quarantined=tuple(reader.quarantined), batches=reader.batches,
                    beyond=source in self._beyond,
                )
            )  # fmt: skip
        return tuple(rows)

    def nothing(self, fault: _Unwritten) -> tuple[RangeOutcome, ...]:
        """Outcomes of a task whose file was thrown away: nothing was read, but one topic has halted."""
        halt = internal(fault.source, fault.problem)
        rows = [(source, halt if source == fault.source else None) for source in self._readers]
        said = "its part file could not be written; it is read again"
        return tuple(
            RangeOutcome(tp.topic, tp.partition, self._readers[tp].terms.range.start, 0, 0, error="" if halted else said, halt=halted)
            for tp, halted in rows
        )

    def _open(self) -> list[TopicPartition]:
        return [s for s, r in self._readers.items() if not r.done and s not in self._halted and s not in self._errors]

    def _fetch_all(self, client: WireClient, deadline: float) -> None:
        by_leader = self._leaders(client)
        ranges = [self._readers[source].terms.range for source in self._open()]
        reading: Reading | None = worker_cache.take(self._task.cluster)
        if reading is not None and not (self._task.onward and reading.goes_on(ranges)):
            reading.end()
            reading = None
        lines = self._lines(client, by_leader) if reading is None else []
        # A busy moment makes any round trip look long: the shortest one that was seen counts.
        round_trip = reading.round_trip if reading else min((line.connection.round_trip for line in lines), default=0.0)
        learnt = worker_cache.remembered(self._task.cluster, LineCount)
        count = learnt.now(round_trip, self._task.connections, tasks=self._task.tasks)
        if count:
            self._fetch_wide(client, reading or Reading(client, round_trip), count, deadline)
        else:
            self._fetch_short(client, lines, deadline)

    def _leaders(self, client: WireClient) -> dict[int, list[TopicPartition]]:
        """Partitions by leader; those without one, or whose leader is silent, are left to another time."""
        leaders, errors = client.leaders(list(self._readers), patience=0)
        for source, problem in errors.items():
            self._refused(client, source, problem)
        by_leader: dict[int, list[TopicPartition]] = {}
        for source, node in leaders.items():
            if node in self._task.avoid:
                self._errors[source] = f"broker {node} does not answer"
            else:
                by_leader.setdefault(node, []).append(source)
        return by_leader

    def _lines(self, client: WireClient, by_leader: Mapping[int, list[TopicPartition]]) -> list[_Line]:
        """Two connections to each broker that takes them."""
        lines = []
        for node, sources in by_leader.items():
            halves = [sources[::2], sources[1::2]] if len(sources) > 1 else [sources]
            patience = self._patience(client, node)
            try:
                mine = [_Line(node, client.connection(node, lane, within=patience), half) for lane, half in enumerate(halves)]
            except WireError as problem:
                self._lost(client, node, sources, problem)
                continue
            for line in mine:
                line.connection.limit(patience)
            lines += mine
        return lines

    def _patience(self, client: WireClient, node: int) -> float:
        return max(self._task.patience.get(node, SILENT_SECONDS), PATIENT_ROUND_TRIPS * client.round_trip)

    def _lost(self, client: WireClient, node: int, sources: Sequence[TopicPartition], problem: WireError) -> None:
        """Nothing more comes of these in this task; the others go on. What no broker of the cluster will take is raised."""
        if isinstance(problem, BrokerError) and lookup(problem.code).action is Action.FATAL:
            raise problem
        client.take_silent()
        for source in set(sources) & set(self._open()):
            client.forget(source)
            if isinstance(problem, BrokerError) and not problem.retryable:
                self._halted[source] = refused(source, problem)
            else:
                self._errors[source] = problem.message
        if isinstance(problem, ConnectionLost) and problem.timed_out:
            self.silent[node] = problem.message

    def _fetch_short(self, client: WireClient, lines: list[_Line], deadline: float) -> None:
        """Keep one request per connection on the way while answers are worked on; each broker is waited for apart."""
        waiting = {line.connection: line for line in lines if self._ask(client, line, deadline)}
        try:
            while waiting:
                now = time.monotonic()
                asked = [line for line in waiting.values() if not line.rests]
                until = [line.asked + self._patience(client, line.node) for line in asked]
                until += [line.rests for line in waiting.values() if line.rests]
                ready = readable([line.connection for line in asked], min(until) - now)
                for connection in ready:
                    line = waiting.pop(connection)
                    if self._take_answer(client, line) and time.monotonic() < deadline and self._ask(client, line, deadline):
                        waiting[connection] = line
                for line in list(waiting.values()):
                    if line.rests and line.rests <= now:
                        del waiting[line.connection]
                        if self._ask(client, line, deadline):
                            waiting[line.connection] = line
                    elif not line.rests and line.connection not in ready and line.asked + self._patience(client, line.node) <= now:
                        del waiting[line.connection]
                        line.connection.close()
                        said = f"{line.connection.peer}: no answer within {now - line.asked:.1f} s"
                        self._lost(client, line.node, line.sources, ConnectionLost(said, timed_out=True))
        except BaseException:
            for connection in waiting:
                connection.close()
            raise

    def _take_answer(self, client: WireClient, line: _Line) -> bool:
        """Take what has come over a connection; whether it can be asked again."""
        try:
            answers = receive_fetch(line.connection)
        except WireError as problem:
            self._lost(client, line.node, line.sources, problem)
            return False
        self.heard[line.node] = max(self.heard.get(line.node, 0.0), time.monotonic() - line.asked)
        for source, data in answers.items():
            self._answer(client, source, data, self._readers[source].next)
            self._held += len(data.records)
            self._throttle.pause(len(data.records))
        if self._held >= self._task.memory_bytes:
            self._flush()
        return True

    def _fetch_wide(self, client: WireClient, reading: Reading, count: int, deadline: float) -> None:
        """Read over many connections; what they bring is taken over in the order of offsets."""
        try:
            ranges = [self._readers[source].terms.range for source in self._open()]
            for reader in self._readers.values():
                reader.most_bytes = math.inf  # stretches are taken as a whole: what is left of one would be read again
            until = None  # the first stretch is waited for unless its broker is silent: a slow link must not stand still
            reading.share(ranges, count=count, ahead=self._task.onward, pause=self._throttle.pause)
            while (stretch := reading.next(until, patience=lambda node: self._patience(client, node))) is not None:
                self._take_stretch(client, stretch)
                reading.taken(stretch)
                reader = self._readers[stretch.source]
                if reader.bytes_read >= ESTIMATE_SLACK * reader.terms.range.max_bytes:
                    reading.enough(stretch.source, reader.next)
                until = deadline
            for node in reading.silent:
                mine = [source for source in self._open() if reading.leader(source) == node]
                self._lost(client, node, mine, ConnectionLost(f"broker {node} does not answer", timed_out=True))
            worker_cache.remembered(self._task.cluster, LineCount).brought(*reading.brought())
        except BaseException:
            reading.end()
            raise
        if self._task.onward and reading.unfinished and not self._errors and not self._halted:
            worker_cache.keep(self._task.cluster, reading)
        else:
            reading.end()

    def _take_stretch(self, client: WireClient, stretch: Stretch) -> None:
        source, reader = stretch.source, self._readers[stretch.source]
        if stretch.fault is not None:
            self._halted.setdefault(source, internal(source, stretch.fault))
        if stretch.problem is not None and not isinstance(stretch.problem, MirrorError):
            raise stretch.problem
        if stretch.problem is not None:
            self._errors.setdefault(source, str(stretch.problem))
        if not stretch.answers or source in self._errors or source in self._halted or reader.next < stretch.start:
            return  # what lies before is missing: the next micro-batch reads on from there
        for place, answer in enumerate(stretch.answers):
            self._answer(client, source, answer, -1 if place else stretch.start)
            self._held += len(answer.records)
        stretch.answers = []
        if self._held >= self._task.memory_bytes:
            self._flush()

    def _fetch_bytes(self, source: TopicPartition) -> int:
        """No more than the range may still take: what a broker sends is staged as a whole. A larger batch is asked for again."""
        reader, most = self._readers[source], self._task.partition_fetch_bytes
        if self._empty.get(source):
            return most
        batch = reader.terms.range.bytes_per_batch
        usual = max(USUAL_FETCH_BYTES, int(FETCHED_BATCHES * batch)) if batch else LEAST_FETCH_BYTES
        return min(most, usual, max(reader.terms.range.max_bytes - reader.bytes_read, LEAST_FETCH_BYTES))

    def _ask(self, client: WireClient, line: _Line, deadline: float) -> bool:
        """Ask for what is still to be read over a connection, now or when its broker wants to be asked; False when there is nothing."""
        still = set(self._open())
        wants = {
            s: (self._readers[s].fetch_offset, self._fetch_bytes(s)) for s in line.sources if s in still
        }
        if not wants:
            return False
        now = time.monotonic()
        line.rests = now + line.connection.muted if line.connection.muted else 0.0
        if line.rests:
            return line.rests < deadline
        line.asked = now
        try:
            send_fetch(line.connection, wants, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=self._task.fetch_bytes)
        except WireError as problem:
            self._lost(client, line.node, line.sources, problem)
            return False
        return True

    def _answer(self, client: WireClient, source: TopicPartition, data: FetchedPartition, asked: int = -1) -> None:
        reader = self._readers[source]
        if reader.done or source in self._halted or source in self._errors:
            return  # behind a place where reading stopped nothing may be taken: it would look like a hole
        try:
            if data.error:
                self._refused(client, source, broker_error(data.error, str(source)), data)
                return
            before = reader.next
            self._ends[source] = data.last_stable_offset
            reader.take(data, asked=asked, ask=partial(self._ask_again, client, source, len(data.records)))
            self._empty[source] = 0 if reader.next > before else self._empty.get(source, 0) + 1
            if self._empty[source] > EMPTY_ANSWERS_BEFORE_GIVING_UP:
                self._errors[source] = f"the broker returned nothing for {source} at offset {reader.next}"
        except TopicHalted as halt:
            self._halted[source] = halt
        except (WireError, ClusterUnreachable) as problem:  # asked again, the broker refuses or is silent
            client.forget(source)
            self._errors[source] = problem.message
        except CorruptBatch as problem:
            self._halted[source] = TopicHalted(
                source.topic, f"{source} at offset {reader.next}: {problem.message}", partition=source.partition,
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
        self, client: WireClient, source: TopicPartition, problem: BrokerError, data: FetchedPartition | None = None
    ) -> None:
        action = lookup(problem.code).action
        if action is Action.RESEEK and data is not None:
            try:
                self._out_of_range(client, source)
            except BrokerError as refusal:
                self._refused(client, source, refusal)
        elif action in (Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME):
            client.forget(source)
            self._errors[source] = problem.message
        else:
            self._halted[source] = refused(source, problem)

    def _out_of_range(self, client: WireClient, source: TopicPartition) -> None:
        """Deleted before it was read, or beyond the end? The end's word is not taken here: the run looks at it, and looks twice."""
        reader = self._readers[source]
        start = offsets_at(client, [source], EARLIEST, within=SILENT_SECONDS)[source]
        if start > reader.next:
            reader.skip_trimmed(start)
            return
        client.forget(source)
        self._beyond.add(source)
        self._errors[source] = f"the broker holds nothing of {source} at offset {reader.next}"

    def _flush(self) -> None:
        for source, reader in self._readers.items():
            if source in self._faulty:
                continue
            try:
                reader.flush()
            except MirrorError:
                raise
            except Exception as fault:
                raise _Unwritten(source, fault) from fault
        self._held = 0
