"""The stage task: raw Fetch of its ranges into one Parquet part file. Runs in a Spark worker."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mirror_pipeline.buffer.store import LaneStore
from mirror_pipeline.buffer.write import PartFileWriter
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine import worker
from mirror_pipeline.engine.hazards import internal, refused
from mirror_pipeline.engine.plan import ESTIMATE_SLACK
from mirror_pipeline.engine.reading import Reading
from mirror_pipeline.engine.stretches import Stretch
from mirror_pipeline.engine.taking import RangeReader
from mirror_pipeline.engine.terms import RangeTerms
from mirror_pipeline.engine.throttle import Throttle
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConnectionLost, CorruptBatch, MirrorError, TopicHalted
from mirror_pipeline.faults import crash_point
from mirror_pipeline.model import BatchMark, PartFile, Quarantined, TopicPartition
from mirror_pipeline.wire.answers import EARLIEST
from mirror_pipeline.wire.client import WireClient
from mirror_pipeline.wire.codes import Action, broker_error, lookup
from mirror_pipeline.wire.connection import Connection
from mirror_pipeline.wire.fetch import FetchedPartition, receive_fetch, send_fetch
from mirror_pipeline.wire.offsets import offsets_at

EMPTY_ANSWERS_BEFORE_GIVING_UP = 20
FETCH_WAIT_MS = 100
LEAST_FETCH_BYTES = 1_048_588
"""The largest batch of a topic with Kafka's own settings."""
USUAL_FETCH_BYTES, FETCHED_BATCHES = 512 * 1024, 4
"""Of a partition at a time: what many partitions bring together should still be in the processor's cache when it is looked at."""


@dataclass(frozen=True, slots=True)
class StageTask:
    """Everything one stage task needs; picklable, free of secrets.

    ``seconds`` bounds how long the task goes on fetching, ``memory_bytes`` what it holds before it writes.
    ``connections`` to each broker: None lets the round trip decide, and what ``tasks`` tasks that read at once bring.
    ``bytes_per_second`` is the task's share of a limit. ``onward``: the next task of this thread goes on where this one ends.
    """

    store: LaneStore
    cluster: ClusterSettings
    micro_batch: int
    index: int
    terms: tuple[RangeTerms, ...]
    fetch_bytes: int
    partition_fetch_bytes: int
    memory_bytes: int
    timeout: float
    seconds: float
    durable: bool
    connections: int | None = None
    tasks: int = 1
    bytes_per_second: float | None = None
    onward: bool = False


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """How far one range came. ``halt`` is final for the topic; ``error`` may pass.

    ``end`` is the last stable offset as the last answer told it, ``first_epoch`` the leader epoch of
    the first batch read, ``mark`` the last batch read, ``batches`` how many were read: those of ``bytes``.
    ``beyond`` says that the broker's log does not reach to ``next``: it was truncated, or the broker lags.
    """

    topic: str
    partition: int
    next: int
    records: int
    bytes: int
    error: str = ""
    halt: TopicHalted | None = None
    end: int = -1
    first_epoch: int = -1
    mark: BatchMark | None = None
    quarantined: tuple[Quarantined, ...] = ()
    batches: int = 0
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class StageResult:
    """The task's part file (None when nothing was read) and one outcome for each range."""

    part: PartFile | None
    outcomes: tuple[RangeOutcome, ...]
    seconds: float


def run_stage(task: StageTask) -> StageResult:
    """Read all ranges of ``task`` and write them as spans.

    A broken connection or a moved leader ends the task early with what was read; the next micro-batch goes on
    there. A range that cannot go on at all halts its topic alone.

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
    return StageResult(part, staging.outcomes(), time.monotonic() - began)


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
        self._readers = {terms.range.source: RangeReader(terms, writer.add) for terms in task.terms}

    def run(self, *, deadline: float) -> None:
        try:
            client = worker.client_of(self._task.cluster, timeout=self._task.timeout)
            self._fetch_all(client, deadline)
        except (ConnectionLost, ClusterUnreachable) as problem:
            worker.forget(self._task.cluster)
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
        ranges = [terms.range for terms in self._task.terms]
        reading = worker.take_reading(self._task.cluster)
        if reading is not None and not (self._task.onward and reading.goes_on(ranges)):
            reading.end()
            reading = None
        lines = self._lines(client) if reading is None else []
        # A busy moment makes any round trip look long: the shortest one that was seen counts.
        round_trip = reading.round_trip if reading else min((connection.round_trip for connection, _ in lines), default=0.0)
        learnt = worker.lines_of(self._task.cluster)
        count = learnt.now(round_trip, self._task.connections, tasks=self._task.tasks)
        if count:
            self._fetch_wide(client, reading or Reading(client, round_trip), count, deadline)
        else:
            self._fetch_short(client, lines, deadline)

    def _fetch_short(self, client: WireClient, lines: list[tuple[Connection, list[TopicPartition]]], deadline: float) -> None:
        """Keep one request per connection on the way while the answer before it is worked on."""
        waiting: list[tuple[Connection, list[TopicPartition]]] = []
        for connection, sources in lines:
            if self._ask(connection, sources):
                waiting.append((connection, sources))
        try:
            while waiting:
                connection, sources = waiting.pop(0)
                answers = receive_fetch(connection)
                for source, data in answers.items():
                    self._answer(client, source, data)
                    self._held += len(data.records)
                    self._throttle.pause(len(data.records))
                if self._held >= self._task.memory_bytes:
                    self._flush()
                if time.monotonic() < deadline and self._ask(connection, sources):
                    waiting.append((connection, sources))
        except BaseException:
            for connection, _ in waiting:
                connection.close()
            raise

    def _fetch_wide(self, client: WireClient, reading: Reading, count: int, deadline: float) -> None:
        """Read over many connections; what they bring is taken over in the order of offsets."""
        try:
            ranges = [self._readers[source].terms.range for source in self._open()]
            for reader in self._readers.values():
                reader.most_bytes *= ESTIMATE_SLACK  # the stretches that were cut for it are taken as a whole
            until = None  # the first stretch is waited for in any case: a slow link must not stand still
            for stretch in reading.share(ranges, count=count, ahead=self._task.onward, pause=self._throttle.pause):
                if not reading.wait_for(stretch, until):
                    break
                self._take_stretch(client, stretch)
                reading.taken(stretch)
                until = deadline
            worker.lines_of(self._task.cluster).brought(*reading.brought())
        except BaseException:
            reading.end()
            raise
        if self._task.onward and reading.unfinished and not self._errors and not self._halted:
            worker.keep_reading(self._task.cluster, reading)
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
        for answer in stretch.answers:
            self._answer(client, source, answer)
            self._held += len(answer.records)
        stretch.answers = []
        if self._held >= self._task.memory_bytes:
            self._flush()

    def _lines(self, client: WireClient) -> list[tuple[Connection, list[TopicPartition]]]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for source in self._readers:
            try:
                by_leader.setdefault(client.leader(source), []).append(source)
            except BrokerError as problem:
                self._refused(client, source, problem)
        lines = []
        for leader, sources in by_leader.items():
            halves = [sources[::2], sources[1::2]] if len(sources) > 1 else [sources]
            lines += [(client.connection(leader, lane), half) for lane, half in enumerate(halves)]
        return lines

    def _fetch_bytes(self, source: TopicPartition) -> int:
        """No more than the range may still take: what a broker sends is staged as a whole. A larger batch is asked for again."""
        reader, most = self._readers[source], self._task.partition_fetch_bytes
        if self._empty.get(source):
            return most
        batch = reader.terms.range.bytes_per_batch
        usual = max(USUAL_FETCH_BYTES, int(FETCHED_BATCHES * batch)) if batch else LEAST_FETCH_BYTES
        return min(most, usual, max(reader.terms.range.max_bytes - reader.bytes_read, LEAST_FETCH_BYTES))

    def _ask(self, connection: Connection, sources: list[TopicPartition]) -> bool:
        still = set(self._open())
        wants = {
            s: (self._readers[s].fetch_offset, self._fetch_bytes(s)) for s in sources if s in still
        }
        if not wants:
            return False
        send_fetch(connection, wants, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=self._task.fetch_bytes)
        return True

    def _answer(self, client: WireClient, source: TopicPartition, data: FetchedPartition) -> None:
        reader = self._readers[source]
        if reader.done or source in self._halted or source in self._errors:
            return  # behind a place where reading stopped nothing may be taken: it would look like a hole
        try:
            if data.error:
                self._refused(client, source, broker_error(data.error, str(source)), data)
                return
            before = reader.next
            self._ends[source] = data.last_stable_offset
            reader.take(data)
            self._empty[source] = 0 if reader.next > before else self._empty.get(source, 0) + 1
            if self._empty[source] > EMPTY_ANSWERS_BEFORE_GIVING_UP:
                self._errors[source] = f"the broker returned nothing for {source} at offset {reader.next}"
        except TopicHalted as halt:
            self._halted[source] = halt
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
        start = offsets_at(client, [source], EARLIEST)[source]
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
