"""A cluster over the raw protocol: metadata, leaders, connections, offsets, producers.

Over 300 lines: every question shares one client's memory of leaders, epochs and connections.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from mirror_pipeline.errors import BrokerError, ConnectionLost, WrongCluster
from mirror_pipeline.kafka.answers import (
    LATEST_TIME,
    ClusterMetadata,
    OffsetAnswer,
    ProducerState,
    cluster_metadata,
    epoch_answers,
    offset_answers,
    producer_answers,
    topic_uuid,
)
from mirror_pipeline.kafka.cluster_info import KnownBrokers
from mirror_pipeline.kafka.codes import LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, Action, broker_error, lookup
from mirror_pipeline.kafka.needs import Need, require
from mirror_pipeline.kafka.wire import requests
from mirror_pipeline.kafka.wire.buffers import STEP, BufferPool
from mirror_pipeline.kafka.wire.connection import IDLE_PATIENCE
from mirror_pipeline.kafka.wire.connection import Connection as Connection
from mirror_pipeline.kafka.wire.connection import readable as readable
from mirror_pipeline.kafka.wire.dial import Dialler
from mirror_pipeline.kafka.wire.messages import (
    SPOKEN,
    Api,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    InitProducerIdRequest,
    MetadataRequest,
)
from mirror_pipeline.model import Stamp, TopicPartition

if TYPE_CHECKING:
    from mirror_pipeline.config import ClusterSettings

METADATA_TIMEOUT = 15.0  # an unreachable cluster is reported within this
OPEN_TIMEOUT = 10.0  # connect, TLS and authentication with one broker
SETTLE_TIME = 5.0  # how long requests to leaders are repeated while leadership moves
UNKNOWN_TOPIC_TIME = 1.0  # until a new topic is known to every broker; a deleted one never comes back
RETRY_PAUSES = (0.05, 1.0)  # first and longest pause between attempts
ASK_AGAIN = {Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME}  # harmless here: nothing in this file changes a log

T = TypeVar("T")

# For one of many connections over a long link: the kernel would begin with a window of 64 KiB and widen it gradually, while brokers send
# up to 100 KiB in each round trip. Linux grants at most ``net.core.rmem_max`` (208 KiB by default), twice.
LONG_RECEIVE_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Routes:
    """What a client knows of a cluster: addresses of its brokers, leaders, ids of topics, and the seconds of a round trip."""

    brokers: Mapping[int, tuple[str, int]]
    leaders: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    round_trip: float


class WireClient:
    """Talks to one cluster. Not thread-safe: one client per thread (its connections are its own).

    Nothing is opened before the first request. Names, leaders and connections are cached; ``forget`` a partition
    when a broker says that it is not the leader.

    Args:
        cluster: Where and how to connect; secrets are resolved when a connection is made.
        timeout: Seconds without any byte transferred after which a request is given up.
        known: Another client has talked to the cluster: a login that is refused is waited for like a broker that is down. The same
            holds for this client after its first connection.
    """

    def __init__(self, cluster: ClusterSettings, *, timeout: float = 30.0, known: bool = False) -> None:
        self.cluster = cluster
        self.timeout = timeout
        self._dialler = Dialler(cluster, timeout, known=known)
        self._connections: dict[tuple[int, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._muted: dict[int, float] = {}
        self._epochs: dict[TopicPartition, tuple[str, int]] = {}
        self._silent: dict[int, str] = {}
        self._avoided: frozenset[int] = frozenset()
        self._round_trip = 0.0

    def metadata(self, topics: Iterable[str] | None = None) -> ClusterMetadata:
        """Ask any broker about the cluster and the named topics; None means all topics, an empty collection none.

        A topic that does not exist, or may not be seen, comes back with its error code.

        Raises:
            ClusterUnreachable: No broker answered within 15 seconds (or ``timeout`` when that is less).
            WrongCluster: Every address leads to another cluster.
            BrokerError: Authentication failed at a first contact; it is not tried again.
            TlsFailed: No broker could be trusted at a first contact.
        """
        names = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        message = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        answer = cluster_metadata(self._ask_any(message, min(METADATA_TIMEOUT, self.timeout)))
        self._brokers = answer.brokers
        for topic in answer.topics.values():
            self._dialler.topics.learn(topic.name, topic.topic_id)
            for number, part in topic.partitions.items():
                tp = TopicPartition(topic.name, number)
                if self._is_old(tp, topic.topic_id, part.leader_epoch):
                    continue  # the broker does not know the latest change: the leader it names is outdated
                if part.leader in answer.brokers:
                    self._leaders[tp] = part.leader
                else:
                    self._leaders.pop(tp, None)
        return answer

    def require(self, needs: Collection[Need]) -> None:
        """Make sure that the cluster is not too old for a mirror, by what the broker that answered last speaks.

        Raises:
            BrokerError: 35, it is too old.
            ClusterUnreachable: No broker answered.
        """
        if not self._dialler.versions:
            self.metadata([])
        require(self.cluster.alias, needs, self._dialler.versions)

    def _is_old(self, tp: TopicPartition, topic_id: str, epoch: int) -> bool:
        """Whether a later leader epoch of this very topic was seen before; unknown without topic ids."""
        known = self._epochs.get(tp)
        if known is not None and topic_id and known[0] == topic_id and epoch < known[1]:
            return True
        self._epochs[tp] = topic_id, epoch
        return False

    def brokers(self) -> KnownBrokers:
        """The brokers of the cluster, those that are down included as far as it names them.

        Kafka 4 lists them (KIP-1073). Before that those are known that hold replicas of topics which this principal may describe.

        Raises:
            ClusterUnreachable: No broker answered.
        """
        up = frozenset(self.metadata([]).brokers)
        if self._dialler.versions.get(Api.DESCRIBE_CLUSTER, (0, 0))[1] >= SPOKEN[Api.DESCRIBE_CLUSTER].lowest:
            answer = self._ask_any(DescribeClusterRequest(include_fenced_brokers=True), min(METADATA_TIMEOUT, self.timeout))
            if not answer.error_code:
                return KnownBrokers(up, frozenset(broker.broker_id for broker in answer.brokers) - up, listed=True)
        parts = (part for topic in self.metadata(None).topics.values() for part in topic.partitions.values())
        return KnownBrokers(up, frozenset(node for part in parts for node in part.replicas) - up, listed=False)

    def ask_elsewhere(self) -> None:
        """Send the next request that any broker can answer to a different broker than the last, if there is one."""
        self._dialler.turn()

    def leader(self, tp: TopicPartition) -> int:
        """Node id of the partition's leader, from memory or from new metadata.

        Raises:
            BrokerError: 3 when the partition does not exist, 5 when it has no leader for 5 seconds.
            ClusterUnreachable: No broker answered.
        """
        leaders, errors = self.leaders([tp])
        if tp in errors:
            raise errors[tp]
        return leaders[tp]

    def leaders(
        self, tps: Collection[TopicPartition], *, patience: float = SETTLE_TIME
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, BrokerError]]:
        """Node ids of the leaders, from memory or from new metadata, and errors for partitions without one; one request for all.

        Args:
            tps: partitions.
            patience: seconds for which those without a leader are asked for again; 0 asks once.

        Raises:
            ClusterUnreachable: No broker answered.
        """
        begin = time.monotonic()
        for pause in _pauses():
            codes = self._look_up(tps)
            waited = time.monotonic() - begin
            if not any(waited <= min(self._patience(code), patience) for code in codes.values()) or not patience:
                break
            time.sleep(pause)
        leaders = {tp: self._leaders[tp] for tp in tps if tp not in codes}
        return leaders, {tp: broker_error(code, f"{self.cluster.alias}: leader of {tp}") for tp, code in codes.items()}

    def known_leader(self, tp: TopicPartition) -> int | None:
        """Node id of the leader if it is cached; sends nothing."""
        return self._leaders.get(tp)

    def avoid(self, nodes: Collection[int]) -> None:
        """Send these brokers nothing from now on: their partitions get NETWORK_EXCEPTION, and metadata comes from others."""
        self._avoided = frozenset(nodes)

    def take_silent(self) -> dict[int, str]:
        """Brokers with a request that timed out since the last call, and the error message."""
        silent, self._silent = self._silent, {}
        return silent

    def forget(self, tp: TopicPartition) -> None:
        """Drop what is known about the partition's leader: the next ``leader`` asks again."""
        self._leaders.pop(tp, None)

    def connection(self, node_id: int, lane: int = 0, *, within: float = OPEN_TIMEOUT) -> Connection:
        """The connection number ``lane`` to a broker, opened ``within`` seconds when there is none, or it is dead.

        Raises:
            ConnectionLost: The broker cannot be reached, or a broker of another cluster answers there.
            BrokerError: Authentication failed at a first contact.
            TlsFailed: The broker could not be trusted at a first contact.
        """
        before = self._connections.get((node_id, lane))
        cached = self.take(node_id, lane, within=within)
        if cached is not None:
            self._connections[node_id, lane] = cached
            return cached
        if node_id not in self._brokers:
            self.metadata(())
        if node_id not in self._brokers:
            raise ConnectionLost(f"{self.cluster.alias}: broker {node_id} is not in the cluster now", hint="bring the broker up")
        try:
            opened = self._dialler.open(*self._brokers[node_id], open_timeout=within)
            opened.identify(within)
        except ConnectionLost as error:
            if error.timed_out:
                self._silent[node_id] = error.message
            else:
                del self._brokers[node_id]  # it may come back at another address
            raise
        if before is not None:
            opened.follow(before)
        opened.mute(self._muted.get(node_id, 0.0))
        self._connections[node_id, lane] = opened
        return opened

    def mute(self, node_id: int, until: float) -> None:
        """A broker that throttles us is sent nothing over new connections before this time (monotonic seconds) either."""
        self._muted[node_id] = max(until, self._muted.get(node_id, 0.0))

    @property
    def round_trip(self) -> float:
        """Seconds: the shortest measured while opening a connection, 0 before there is one. Load makes single measurements too long."""
        return min((connection.round_trip for connection in self._connections.values()), default=self._round_trip)

    def take(self, node_id: int, lane: int, *, within: float = IDLE_PATIENCE) -> Connection | None:
        """Take the connection number ``lane`` to a broker out of the cache, for use in another thread; None if there is none."""
        cached = self._connections.pop((node_id, lane), None)
        if cached is not None and cached.stale(within):
            self.mute(node_id, cached.muted_until)
            cached.close()
            return None
        return cached

    def opener(self, node_id: int, replies: BufferPool | None = None) -> Callable[[], Connection]:
        """Opens a further connection over a long link to a known broker; may be called in another thread.

        ``replies``: memory for answers that all of them share.
        """
        address = self._brokers[node_id]  # a parallel fetch waits for all of its connections when one is throttled
        return lambda: self._dialler.open(*address, open_timeout=OPEN_TIMEOUT, receive_buffer=LONG_RECEIVE_BYTES, replies=replies)

    def routes(self) -> Routes:
        """What this client knows of the cluster, for others."""
        return Routes(dict(self._brokers), dict(self._leaders), dict(self._dialler.topics.texts), self.round_trip)

    def follow(self, routes: Routes) -> None:
        """Take over what another client knows: over a long link each question costs."""
        self._brokers |= routes.brokers
        self._leaders |= routes.leaders
        for name, topic_id in routes.topic_ids.items():
            self._dialler.topics.learn(name, topic_id)
        self._round_trip = routes.round_trip

    def keep(self, node_id: int, lane: int, opened: Connection) -> None:
        """Make ``opened`` the connection number ``lane`` to a broker."""
        opened.own_replies()
        self._connections[node_id, lane] = opened

    def list_offsets(
        self, at: Mapping[TopicPartition, int], *, isolation: int = 1, within: float | None = None
    ) -> dict[TopicPartition, OffsetAnswer]:
        """Offsets of partitions, each for a time in milliseconds or one of the special times.

        Args:
            at: -2 is the first offset, -1 the end (with isolation 1 the last stable offset), -3 the record with the
                newest timestamp; any other T the first record with time >= T, whose answer is offset -1 if there is none.
            isolation: 1 read committed, 0 read uncommitted.
            within: seconds for each leader's answer, which is then requested only once; a broker that exceeds them is silent.

        Returns:
            An answer for every partition; its ``error`` is 13 when the leader could not be reached. Without ``within``,
            transient errors (a moving leader) are retried for 5 seconds first.
        """

        build = requests.offsets(at, isolation)
        return self._ask_leaders(at.keys(), build, offset_answers, lambda a: a.error, _no_offset, within=within)

    def init_producer_id(self) -> Stamp:
        """A new producer id, epoch 0, without a transactional id (KIP-98).

        Raises:
            BrokerError: The cluster refused, or was not ready within ``timeout``.
            ClusterUnreachable: No broker answered.
        """
        deadline = time.monotonic() + self.timeout
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1)
        for pause in _pauses():
            answer = self._ask_any(message, max(deadline - time.monotonic(), 0.1))
            if not answer.error_code:
                return Stamp(answer.producer_id, answer.producer_epoch)
            if lookup(answer.error_code).action not in ASK_AGAIN or time.monotonic() + pause > deadline:
                raise broker_error(answer.error_code, f"{self.cluster.alias}: new producer id")
            time.sleep(pause)
        raise AssertionError("unreachable")

    def delete_topic(self, topic_id: str, name: str) -> None:
        """Delete the topic with this id, and no other one that may have its ``name`` by now (KIP-516). It is asked once.

        Raises:
            BrokerError: e.g. 100 (UNKNOWN_TOPIC_ID) when no topic has this id, 29 without the right, 73 where deletion is disabled.
            ConnectionLost, ClusterUnreachable: no answer; the topic may be deleted or not.
        """
        wanted = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_uuid(topic_id))
        message = DeleteTopicsRequest(topics=[wanted], timeout_ms=int(self.timeout * 1000))
        answer = self.connection(self.metadata([]).controller).request(message, timeout=self.timeout)
        for row in answer.responses:
            if row.error_code:
                raise broker_error(row.error_code, f"{self.cluster.alias}: delete topic {name} ({topic_id})", row.error_message)

    def log_ends(self, tps: Collection[TopicPartition], *, within: float | None = None) -> dict[TopicPartition, OffsetAnswer]:
        """The true end of each leader's log, including records that are not replicated yet and that consumers do not see.

        ``within`` as in :meth:`list_offsets`.
        """
        build = requests.offsets(dict.fromkeys(tps, LATEST_TIME), 0, requests.DEBUGGER)
        return self._ask_leaders(tps, build, offset_answers, lambda a: a.error, _no_offset, within=within)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int], *, within: float | None = None) -> dict[TopicPartition, OffsetAnswer]:
        """Where each partition's leader epoch ends in the leader's log (KIP-320).

        Args:
            epochs: a leader epoch by partition.
            within: as in :meth:`list_offsets`.

        Returns:
            For each partition the end offset of the greatest epoch up to the one asked (-1 when the log knows none), with
            that epoch; errors as in :meth:`list_offsets`.
        """

        build = requests.epochs(epochs)
        return self._ask_leaders(epochs.keys(), build, epoch_answers, lambda a: a.error, _no_offset, within=within)

    def describe_producers(
        self, tps: Collection[TopicPartition], *, within: float | None = None
    ) -> dict[TopicPartition, list[ProducerState] | BrokerError]:
        """The producers each partition's leader remembers (KIP-664; needs READ on the topic), or its error.

        ``within`` as in :meth:`list_offsets`.
        """

        def failed(code: int) -> tuple[int, str | None, list[ProducerState]]:
            return code, None, []

        answers = self._ask_leaders(tps, requests.producers, producer_answers, lambda a: a[0], failed, within=within)
        return {
            tp: broker_error(error, f"{self.cluster.alias}: producers of {tp}", message) if error else states
            for tp, (error, message, states) in answers.items()
        }

    def close(self) -> None:
        """Close all connections; the client can be used again and opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._dialler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _ask_any(self, message: Any, seconds: float) -> Any:
        avoid = {self._brokers[node] for node in self._avoided if node in self._brokers}
        return self._dialler.ask(message, seconds, self._brokers.values(), avoid=avoid)

    def _look_up(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for leaders if any is unknown; returns error codes of those that have none.

        The response may also say that a partition with a cached leader has lost it.
        """
        topics = {tp.topic for tp in tps if tp not in self._leaders}
        if not topics:
            return {}
        answer = self.metadata(topics)
        errors = {}
        for tp in tps:
            topic = answer.topics.get(tp.topic)
            part = topic.partitions.get(tp.partition) if topic else None
            if tp not in self._leaders:
                error = (topic.error if topic else 0) or (part.error if part else UNKNOWN_TOPIC_OR_PARTITION)
                errors[tp] = error or LEADER_NOT_AVAILABLE
        return errors

    def _patience(self, error: int) -> float:
        if error == UNKNOWN_TOPIC_OR_PARTITION:
            return UNKNOWN_TOPIC_TIME
        return SETTLE_TIME if lookup(error).action in ASK_AGAIN else 0.0

    def _ask_leaders(
        self,
        tps: Collection[TopicPartition],
        build: Callable[[list[TopicPartition]], Any],
        read: Callable[[Any], Iterable[tuple[TopicPartition, T]]],
        error_of: Callable[[T], int],
        failed: Callable[[int], T],
        *,
        within: float | None = None,
    ) -> dict[TopicPartition, T]:
        """Ask each partition's leader, all in parallel, and retry transient errors; ``within`` seconds and no retries if given."""
        begin, open_questions, answers = time.monotonic(), set(tps), dict[TopicPartition, T]()
        for pause in _pauses():
            codes = self._look_up(open_questions)
            answers.update((tp, failed(code)) for tp, code in codes.items())
            answers.update(self._round(open_questions - codes.keys(), build, read, failed, within))
            if within is not None:
                return answers
            waited = time.monotonic() - begin
            open_questions = {tp for tp in open_questions if (code := error_of(answers[tp])) and waited < self._patience(code)}
            if not open_questions:
                return answers
            for tp in open_questions:
                self.forget(tp)
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _round(
        self,
        tps: Collection[TopicPartition],
        build: Callable[[list[TopicPartition]], Any],
        read: Callable[[Any], Iterable[tuple[TopicPartition, T]]],
        failed: Callable[[int], T],
        within: float | None,
    ) -> dict[TopicPartition, T]:
        by_leader = sorted(tps, key=lambda tp: (self._leaders[tp], tp))
        groups = {node: list(group) for node, group in groupby(by_leader, key=lambda tp: self._leaders[tp])}
        answers = {tp: failed(NETWORK_EXCEPTION) for tp in tps}
        asked: list[tuple[int, Connection, int]] = []
        for node in groups.keys() - self._avoided:
            try:
                connection = self.connection(node, within=OPEN_TIMEOUT if within is None else within)
                asked.append((node, connection, connection.post(build(groups[node]))))
            except ConnectionLost:
                continue  # stays NETWORK_EXCEPTION
        end = None if within is None else time.monotonic() + within
        for node, connection, question in asked:
            try:
                answers.update(read(connection.answer(question, timeout=None if end is None else max(0.0, end - time.monotonic()))))
            except ConnectionLost as error:
                if error.timed_out:
                    self._silent[node] = error.message
        return answers


class HasMetadata(Protocol):
    """A client, or what answers in its place."""

    def metadata(self, topics: Iterable[str]) -> ClusterMetadata:
        """As of :class:`WireClient`."""


def metadata_of(client: HasMetadata, topics: Iterable[str]) -> ClusterMetadata:
    """Metadata of topics for whoever compares ids: where every address leads to another cluster, that one's id and no topic.

    Raises:
        ClusterUnreachable: No broker answers.
    """
    try:
        return client.metadata(topics)
    except WrongCluster as error:
        return ClusterMetadata(error.cluster_id, -1, {}, {})


def shared_replies(room: int) -> BufferPool:
    """Memory for the answers of many connections, which wait for each other; up to ``room`` bytes of it are used again.

    It goes with the last of the connections that has not become a client's own.
    """
    return BufferPool(math.inf, room=room, pinned=STEP)


def _no_offset(code: int) -> OffsetAnswer:
    return OffsetAnswer(-1, -1, code)


def _pauses() -> Iterator[float]:
    pause, longest = RETRY_PAUSES
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311 - a spread, not a secret
        pause = min(pause * 2, longest)
