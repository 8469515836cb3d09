"""A model cluster of one leader: requests wait at its door until the search lets it handle them, well or badly."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mirror_pipeline.errors import ClusterUnreachable, ConnectionLost
from mirror_pipeline.kafka.answers import ClusterMetadata, OffsetAnswer, PartitionMetadata, ProducerState, TopicIds, TopicMetadata
from mirror_pipeline.kafka.wire.connection import Reply
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.model import Stamp, TopicPartition
from tests.model.broker import NOT_LEADER, ModelPartition, fetch_answer, fetch_wait, parse_fetch, parse_produce, produce_answer
from tests.model.processes import Clock, pause

NODE = 1
OUT_OF_RANGE = 1
REQUEST_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Fault:
    """How a produce request goes wrong for one partition (None: all): refused, or answered with an error after it was applied."""

    code: int
    applied: bool
    partition: int | None = None


@dataclass(slots=True)
class Waiting:
    """An appended request that waits for the replicas: results, and the log end each partition must reach."""

    correlation_id: int
    results: dict[TopicPartition, tuple[int, int]]
    ends: dict[TopicPartition, int]


class ModelConnection:
    """Both ends of a connection. What was sent stays at the broker's door when the client is gone."""

    peer = "model:9092"
    timeout = 10.0
    round_trip = throttle = muted = 0.0
    patience = 2.0
    fetch_share = None
    topics = TopicIds()  # it is too old to be asked by id

    def __init__(self, cluster: ModelCluster, node: int = NODE) -> None:
        self.cluster, self.node = cluster, node
        self.closed = self.old_leader = False
        self.requests: deque[tuple[int, dict[TopicPartition, bytes]]] = deque()
        self.unreplicated: deque[Waiting] = deque()
        self.replies: deque[Reply] = deque()
        self.held: deque[tuple[int, int, bytes, float]] = deque()
        self._ids = 0

    def version(self, api: int) -> int:
        return {Api.PRODUCE: 7, Api.FETCH: 11}[Api(api)]

    def stale(self) -> bool:
        return self.closed

    def give_up(self) -> None:
        self.close()

    def send(self, api: int, version: int, parts: Sequence[Any], *, wait: float = 0.0) -> int:
        pause(f"send {Api(api).name.lower()}")
        if self.closed:
            raise ConnectionLost("model: connection lost")
        self._ids += 1
        body = b"".join(bytes(part) for part in parts)
        if api == Api.PRODUCE:
            self.requests.append((self._ids, parse_produce(body)))
        else:
            self.held.append((self._ids, version, body, self.cluster.clock.now + fetch_wait(body)))
        return self._ids

    def ready(self) -> bool:
        """Whether ``receive`` would return at once; a fetch is held open until there is something, or its time is over.

        With several brokers the search says when one finds that there is something: its answer is of that moment, whenever it is read.
        """
        while self.answerable() and (self.cluster.at_once or self.clock.now >= self.held[0][3]):
            self.answer_held()
        return bool(self.replies) or self.closed

    def answerable(self) -> bool:
        """Whether the broker has an answer to the oldest fetch that it holds open."""
        if not self.held or self.closed or self.node in self.cluster.silent:
            return False
        return self.clock.now >= self.held[0][3] or self.cluster.has_news(self.held[0][2], self.node)

    def answer_held(self) -> None:
        """The broker answers the oldest fetch, with what it knows now."""
        number, version, body, _ = self.held.popleft()
        self.replies.append(Reply(number, Api.FETCH, version, memoryview(self.cluster.serve_fetch(body, self.node))))

    @property
    def clock(self) -> Clock:
        return self.cluster.clock

    @property
    def wake_at(self) -> float:
        """When a fetch that is held open ends without news, or the client gives up."""
        ends = () if self.node in self.cluster.silent else (until for *_, until in self.held)
        return min([self.cluster.clock.now + REQUEST_TIMEOUT, *ends])

    def receive(self) -> Reply:
        pause("receive", until=self.ready, wake_at=self.wake_at)
        if not self.ready() or not self.replies:
            self.close()
            raise ConnectionLost("model: connection lost")
        return self.replies.popleft()

    def limit(self, seconds: float) -> None:
        """The model's connections break; they are never silent."""

    def throttled(self, milliseconds: int) -> None:
        assert milliseconds == 0

    def wait_out_throttle(self) -> None:
        """Nobody throttles."""

    def close(self) -> None:
        """The client's end: requests on their way are still handled, or not."""
        self.closed = True
        self.replies.clear()
        self.held.clear()

    def handle(self, fault: Fault | None = None) -> None:
        """The broker takes the oldest request."""
        number, batches = self.requests.popleft()
        fault = Fault(NOT_LEADER, applied=False) if self.old_leader else fault
        waiting = Waiting(number, {}, {})
        for tp, batch in batches.items():
            hit = fault if fault is not None and fault.partition in (None, tp.partition) else None
            error, base = (hit.code, -1) if hit is not None and not hit.applied else self.cluster.append(tp, batch)
            waiting.results[tp] = (hit.code, -1) if hit is not None and not error else (error, base)
            if not waiting.results[tp][0]:
                waiting.ends[tp] = self.cluster.logs[tp].end
        self.unreplicated.append(waiting)
        self.answer()

    def answer(self, *, error: int = 0) -> None:
        """Answer, in order, what the replicas hold; with ``error`` everything else too, with that error."""
        while self.unreplicated:
            first = self.unreplicated[0]
            late = {tp for tp, end in first.ends.items() if self.cluster.logs[tp].replicated < end}
            if late and not error:
                return
            self.unreplicated.popleft()
            results = first.results | {tp: (error, -1) for tp in late}
            if not self.closed:
                self.replies.append(Reply(first.correlation_id, Api.PRODUCE, 7, memoryview(produce_answer(results))))

    def holds(self, tp: TopicPartition) -> bool:
        """Whether a request for the partition waits at the door."""
        return any(tp in batches for _, batches in self.requests) or any(tp in w.results for w in self.unreplicated)


class ModelCluster:
    """Partitions, connections, and whether anybody is there at all."""

    at_once = True
    """Whether held fetches are answered as soon as there is something."""
    nodes: tuple[int, ...] = (NODE,)
    silent: frozenset[int] | set[int] = frozenset()
    """Brokers that take questions and do not answer."""

    def __init__(self, clock: Clock, alias: str, topic: str, partitions: int, topic_id: str) -> None:
        self.clock = clock
        self.alias, self.topic, self.topic_id = alias, topic, topic_id
        self.logs = {TopicPartition(topic, n): ModelPartition() for n in range(partitions)}
        self.connections: list[ModelConnection] = []
        self.down = self.slow_replicas = False
        self._producer_ids = 4000

    def append(self, tp: TopicPartition, batch: bytes) -> tuple[int, int]:
        log = self.logs[tp]
        result = log.append(batch)
        if not self.slow_replicas:
            log.replicated = log.end
        return result

    def leader_of(self, tp: TopicPartition) -> int:
        """Who leads the partition, as metadata tells."""
        return NODE

    def watermark(self, tp: TopicPartition, node: int) -> tuple[int, int]:
        """High watermark and log end as the broker knows them, (-1, -1) when it does not take itself for the leader."""
        log = self.logs[tp]
        return log.replicated, log.replicated

    def offset_told(self, tp: TopicPartition, node: int, when: int) -> OffsetAnswer:
        """What the broker answers to ListOffsets."""
        return OffsetAnswer(0 if when == -2 else self.logs[tp].replicated, -1, 0)

    def epoch_end(self, tp: TopicPartition, epoch: int) -> int:
        """Where the epoch ends in the leader's log."""
        return self.logs[tp].end

    def _fetched(self, tp: TopicPartition, node: int, offset: int, most: int) -> tuple[ModelPartition, int, bytes, int]:
        log, (told, end) = self.logs[tp], self.watermark(tp, node)
        error = NOT_LEADER if told < 0 else 0 if offset <= end else OUT_OF_RANGE
        return log, error, b"" if error else log.read(offset, most, told), told

    def serve_fetch(self, body: bytes, node: int = NODE) -> bytes:
        return fetch_answer({tp: self._fetched(tp, node, *wanted) for tp, wanted in parse_fetch(body).items()})

    def has_news(self, body: bytes, node: int = NODE) -> bool:
        return any(any(self._fetched(tp, node, offset, 1)[1:3]) for tp, (offset, _) in parse_fetch(body).items())

    def replicate(self) -> None:
        """The replicas catch up; whoever waited for that is answered."""
        for log in self.logs.values():
            log.replicated = log.end
        for connection in self.connections:
            connection.answer()

    def time_out(self, error: int) -> None:
        """The leader stops waiting for the replicas and says so."""
        for connection in self.connections:
            connection.answer(error=error)

    def fail_over(self) -> None:
        """Another replica leads: what only the old leader had is gone, whoever waits is told."""
        for log in self.logs.values():
            log.fail_over()
        for connection in self.connections:
            connection.old_leader = True
            connection.answer(error=NOT_LEADER)

    def cut(self, connection: ModelConnection, *, lose_requests: bool) -> None:
        """The connection breaks; requests at the door are lost with it, or handled later."""
        connection.close()
        if lose_requests:
            connection.requests.clear()

    def busy(self) -> list[ModelConnection]:
        """Connections with requests at the door."""
        self.connections = [c for c in self.connections if c.requests or c.unreplicated or not c.closed]
        return [c for c in self.connections if c.requests]

    def new_producer_id(self) -> Stamp:
        self._producer_ids += 1
        return Stamp(self._producer_ids, 0)


class ModelClient:
    """Stands in for ``WireClient``."""

    def __init__(self, cluster: ModelCluster) -> None:
        self._model = self.cluster = cluster
        self._open: dict[tuple[int, int], ModelConnection] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._silent: dict[int, str] = {}
        self._avoided: frozenset[int] = frozenset()

    def _ask(self, what: str) -> None:
        pause(what)
        if self._model.down:
            raise ClusterUnreachable(self._model.alias, "model: nobody answers")

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        self._ask("metadata")
        nodes = self._model.nodes
        parts = {tp.partition: PartitionMetadata(self._model.leader_of(tp), 0, nodes, nodes, 0) for tp in self._model.logs}
        self._leaders = {tp: self._model.leader_of(tp) for tp in self._model.logs}
        found = TopicMetadata(self._model.topic, self._model.topic_id, 0, False, parts)
        wanted = {found.name: found} if topics is None or found.name in list(topics) else {}
        return ClusterMetadata(f"{self._model.alias}-id", NODE, {node: ("model", 9092) for node in nodes}, wanted)

    @property
    def round_trip(self) -> float:
        return 0.0

    def ask_elsewhere(self) -> None:
        """There is one broker."""

    def leader(self, tp: TopicPartition) -> int:
        return self._leaders.setdefault(tp, self._model.leader_of(tp))

    def forget(self, tp: TopicPartition) -> None:
        """Whoever leads now is reached over a new connection."""
        self._leaders.pop(tp, None)
        self._open = {key: connection for key, connection in self._open.items() if not connection.old_leader}

    def leaders(
        self, tps: Collection[TopicPartition], *, patience: float = 0
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Any]]:
        if any(tp not in self._leaders for tp in tps):
            self._ask("metadata")
        return {tp: self.leader(tp) for tp in tps}, {}

    def known_leader(self, tp: TopicPartition) -> int | None:
        return self._leaders.get(tp)

    def avoid(self, nodes: Collection[int]) -> None:
        self._avoided = frozenset(nodes)

    def take_silent(self) -> dict[int, str]:
        silent, self._silent = self._silent, {}
        return silent

    def connection(self, node_id: int, lane: int = 0, *, within: float = 0.0) -> ModelConnection:
        known = self._open.get((node_id, lane))
        if known is None or known.stale():
            if self._model.down:
                raise ConnectionLost("model: nobody answers")
            known = self._open[node_id, lane] = ModelConnection(self._model, node_id)
            self._model.connections.append(known)
        return known

    def list_offsets(
        self, at: Mapping[TopicPartition, int], *, isolation: int = 1, within: float | None = None
    ) -> dict[TopicPartition, OffsetAnswer]:
        self._ask("list offsets")
        answers = {}
        for tp, when in at.items():
            node = self.leader(tp)
            answers[tp] = OffsetAnswer(-1, -1, 13) if node in self._avoided else self._model.offset_told(tp, node, when)
            if within is not None and node in self._model.silent - self._avoided:
                self._silent[node] = "model: no answer"
            if answers[tp].error and within is None:  # asked again, as by the real one
                self.forget(tp)
                answers[tp] = self._model.offset_told(tp, self.leader(tp), when)
        return answers

    def log_ends(self, tps: Collection[TopicPartition], *, within: float | None = None) -> dict[TopicPartition, OffsetAnswer]:
        self._ask("log ends")
        return {tp: OffsetAnswer(self._model.logs[tp].end, -1, 0) for tp in tps}

    def epoch_ends(self, epochs: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, OffsetAnswer]:
        self._ask("epoch ends")
        return {tp: OffsetAnswer(self._model.epoch_end(tp, epoch), epoch, 0) for tp, epoch in epochs.items()}

    def describe_producers(
        self, tps: Collection[TopicPartition], *, within: float | None = None
    ) -> dict[TopicPartition, list[ProducerState]]:
        self._ask("describe producers")
        return {
            tp: [
                ProducerState(producer, entry.epoch, entry.last_sequence, 0, -1, -1)
                for producer, entry in self._model.logs[tp].producers.items()
            ]
            for tp in tps
        }

    def require(self, _: object) -> None:
        """All of them are new enough."""

    def init_producer_id(self) -> Stamp:
        self._ask("init producer id")
        return self._model.new_producer_id()

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
