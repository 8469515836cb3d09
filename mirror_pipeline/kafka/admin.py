"""A cluster as an administrator sees it: identity, topics, settings. Every call is bounded in time.

Over 300 lines: every call shares the retries and the choice of broker.
"""

from __future__ import annotations

import base64
import logging
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    ConfigResource,
    ConfigSource,
    DescribeClusterResult,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicDescription,
)
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConfigError, MirrorError, Stranger, WrongCluster
from mirror_pipeline.kafka.admin_client import Session, answering
from mirror_pipeline.kafka.cluster_info import ClusterInfo, ConfigValue, TopicInfo
from mirror_pipeline.kafka.security.identity import Identity
from mirror_pipeline.kafka.wire.connection import IDLE_SECONDS
from mirror_pipeline.model import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")

REQUEST_TIMEOUT = 15.0
FIRST_CONTACT_TIMEOUT = 10.0  # a command must say "unreachable" within 15 s, its own start included
BROKER_TIMEOUT = 3.0  # for a request that other brokers can answer as well
REFUSED_GRACE = 4.0  # every address refuses or does not resolve: time for a broker that is just starting
# Shares of a request's time for the first tries: librdkafka waits for the broker it has chosen, which may hang.
TRY_SECONDS = 0.2, 0.3
PROBE_SECONDS = 2.0
IDENTITY_SECONDS = 5.0  # between two looks whose brokers answer; before a change there is always one
TLS_GRACE = 1.0  # a certificate does not get better by waiting
_POLL = 0.05
_BATCH = 200


class Admin:
    """Administrative calls to one cluster, through librdkafka.

    librdkafka keeps the secrets that it was opened with: after a failure it is opened anew if they have changed since.

    Args:
        cluster: where and how to connect; secrets are resolved here.
        timeout: seconds that one call may take, retries of transient errors included.

    Raises:
        ConfigError: librdkafka refuses the settings, or a secret cannot be resolved.
        ClusterUnreachable: from any call, when no broker answers in time or the login is refused.
    """

    def __init__(self, cluster: ClusterSettings, timeout: float = REQUEST_TIMEOUT) -> None:
        self.cluster = cluster
        self._timeout = timeout
        self._opened: Session | None = Session(cluster)
        self._contacted = False
        self._identity = Identity(cluster)
        self._identified = self._answered = float("-inf")

    @property
    def _session(self) -> Session:
        return self._opened or self._reopen()

    def _reopen(self, servers: Sequence[str] = ()) -> Session:
        try:
            self._opened = Session(self.cluster, servers)
        except ConfigError as error:  # they could be used before
            raise ClusterUnreachable(self.cluster.alias, error.message, hint=error.hint) from error
        return self._opened

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._opened = None
        self._contacted = False
        self._identified = float("-inf")

    def cluster_id(self) -> str:
        """The id the cluster gave itself when it was formatted."""
        return self.describe().cluster_id

    def describe(self) -> ClusterInfo:
        """Identity and brokers."""
        result = self._describe(False)
        brokers = {node.id: f"{node.host}:{node.port}" for node in result.nodes}
        return ClusterInfo(result.cluster_id or "", brokers, result.controller.id if result.controller else -1)

    def cluster_operations(self) -> frozenset[str]:
        """What this principal may do on the cluster, e.g. ``CREATE`` (ACL operation names; KIP-430)."""
        return frozenset(operation.name for operation in self._describe(True).authorized_operations or ())

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicInfo]:
        """Topics by name: all that this principal may describe, or those of ``names`` that exist.

        Raises:
            BrokerError: a topic of ``names`` may not be described.
        """
        topics: dict[str, TopicInfo] = {}
        for name, answer in self.described(self._names() if names is None else names).items():
            if isinstance(answer, BrokerError):
                if names is not None and answer.code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise answer
                continue  # deleted, or access revoked, since it was listed
            topics[name] = answer
        return topics

    def described(self, names: Collection[str]) -> dict[str, TopicInfo | BrokerError]:
        """Each of some topics, or why it cannot be described."""
        answers = self._describe_topics(names, False)
        return {name: answer if isinstance(answer, BrokerError) else _topic_info(answer) for name, answer in answers.items()}

    def topic_operations(self, names: Collection[str]) -> dict[str, frozenset[str] | BrokerError]:
        """What this principal may do on each topic, e.g. ``READ``; an error for a topic that may not even be described."""
        return {
            name: answer if isinstance(answer, BrokerError) else frozenset(o.name for o in answer.authorized_operations or ())
            for name, answer in self._describe_topics(names, True).items()
        }

    def topic_configs(self, names: Collection[str]) -> dict[str, dict[str, ConfigValue] | BrokerError]:
        """Every setting in force of each topic; one topic without access does not hide the others."""
        configs: dict[str, dict[str, ConfigValue] | BrokerError] = {}
        for part in _batches(names):
            resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in part}
            configs |= self._configs(resources)
        return configs

    def broker_configs(self) -> dict[str, ConfigValue]:
        """Settings in force of one broker: the defaults of new topics, and which settings this version knows.

        Only the broker itself knows them; one that does not answer is skipped.

        Raises:
            BrokerError: the principal has no DESCRIBE_CONFIGS on the cluster.
        """
        brokers = [str(node) for node in sorted(self.describe().brokers)]
        silent = None
        for limit in (BROKER_TIMEOUT, self._timeout) if len(brokers) > 1 else (self._timeout,):
            for broker in brokers:
                try:
                    answer = self._configs({broker: ConfigResource(ResourceType.BROKER, broker)}, limit)[broker]
                except ClusterUnreachable as error:
                    silent = error
                    continue
                if isinstance(answer, BrokerError):
                    raise answer
                return answer
        raise silent or ClusterUnreachable(self.cluster.alias, f"{self.cluster.alias}: no broker is up")

    def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        """Create a topic, or with ``validate_only`` only ask whether the broker would.

        Raises:
            BrokerError: e.g. TOPIC_ALREADY_EXISTS, INVALID_CONFIG, TOPIC_AUTHORIZATION_FAILED.
        """
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(configs or {}))
        self._one(
            f"create topic {name}", lambda client, t: client.create_topics([topic], validate_only=validate_only, request_timeout=t)[name]
        )

    def create_topics(
        self, topics: Sequence[tuple[str, int, int, Mapping[str, str]]], *, validate_only: bool = False
    ) -> dict[str, BrokerError | None]:
        """Create topics in one request, or ask whether that would succeed; returns an error or None for each. Nothing is tried twice.

        Args:
            topics: name, partitions, replication factor and settings of each.
        """
        new = [NewTopic(name, num_partitions=count, replication_factor=copies, config=dict(own)) for name, count, copies, own in topics]

        def start(client: Any, timeout: float) -> dict[str, Future[None]]:
            return dict(client.create_topics(new, validate_only=validate_only, request_timeout=timeout))

        answers = self._changed(lambda name: f"create topic {name}", start)
        return {name: answer if isinstance(answer, BrokerError) else None for name, answer in answers.items()}

    def grow(self, name: str, partitions: int) -> None:
        """Raise the partition count of a topic to ``partitions``.

        Raises:
            BrokerError: e.g. INVALID_PARTITIONS when it has as many or more.
        """
        growth = [NewPartitions(name, partitions)]
        self._one(f"add partitions to {name}", lambda client, t: client.create_partitions(growth, request_timeout=t)[name])

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises BrokerError."""
        self._one(f"delete topic {name}", lambda client, t: client.delete_topics([name], request_timeout=t)[name])

    def delete_records(self, ends: Mapping[TopicPartition, int]) -> None:
        """Delete the records of partitions before these offsets, and no others. Raises BrokerError."""
        places = [Place(tp.topic, tp.partition, end) for tp, end in sorted(ends.items())]

        def start(client: Any, timeout: float) -> Mapping[Place, Future[Any]]:
            futures: Mapping[Place, Future[Any]] = client.delete_records(places, request_timeout=timeout, operation_timeout=timeout)
            return futures

        def attempt() -> None:
            for answer in self._changed(lambda place: f"delete records of {place.topic}[{place.partition}]", start).values():
                if isinstance(answer, BrokerError):
                    raise answer

        self._retrying()(attempt)

    def ask(
        self, what: Callable[[K], str], start: Callable[[Any, float], Mapping[K, Future[T]]], *, again: bool = False
    ) -> dict[K, T | BrokerError]:
        """Requests to librdkafka's client, started by ``start``; an answer or a broker's error for each.

        Args:
            what: what was asked for, for messages.
            start: gets the client and a time limit in seconds.
            again: they only read, so other brokers may be asked while one is silent.

        Raises:
            ClusterUnreachable: no broker answers.
        """
        return (self._read if again else self._changed)(what, start)

    def _describe(self, operations: bool) -> DescribeClusterResult:
        def start(client: Any, timeout: float) -> Future[DescribeClusterResult]:
            future: Future[DescribeClusterResult] = client.describe_cluster(
                include_authorized_operations=operations, request_timeout=timeout
            )
            return future

        for last in (False, True):
            found = self._one("describe the cluster", start, again=True)
            try:
                self._identity.check(f"cluster {self.cluster.alias}", found.cluster_id or "")
                self._identified = time.monotonic()
                return found
            except Stranger as stranger:
                servers = answering(replace(self.cluster, cluster_id=self._identity.cluster_id), PROBE_SECONDS)
                self.close()
                if last or not servers:
                    where = f"cluster {self.cluster.alias} at {','.join(self.cluster.bootstrap_servers)}"
                    raise WrongCluster(
                        self.cluster.alias, f"{where}: {stranger.message}", stranger.cluster_id, hint=stranger.hint
                    ) from stranger
                log.info("%s; asking again at %s", stranger.message, ",".join(servers))
                self._reopen(servers)
        raise AssertionError("unreachable")

    def _changed(self, what: Callable[[K], str], start: Callable[[Any, float], Mapping[K, Future[T]]]) -> dict[K, T | BrokerError]:
        """:meth:`_try` for requests that change the cluster: only once it is known that it is the right one."""
        self._describe(False)  # renews the session too, if need be: a change itself is never sent twice
        return self._try(what, start, None)

    def _read(self, what: Callable[[K], str], start: Callable[[Any, float], Mapping[K, Future[T]]]) -> dict[K, T | BrokerError]:
        """:meth:`_asked`, once it is known, and was not long ago, whose brokers answer."""
        if time.monotonic() - self._identified > IDENTITY_SECONDS:
            self._describe(False)
        return self._asked(what, start)

    def _names(self) -> list[str]:
        self._describe(False)  # notices a refused login, which list_topics cannot
        try:
            listed = self._session.client.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise self._session.translate(error.args[0], "list topics") from None
        try:
            self._identity.check(f"cluster {self.cluster.alias}", listed.cluster_id or "")
        except Stranger as stranger:  # between two questions: librdkafka chooses a broker for each
            self.close()
            raise ClusterUnreachable(self.cluster.alias, stranger.message, hint=stranger.hint) from stranger
        return sorted(listed.topics)

    def _describe_topics(self, names: Iterable[str], operations: bool) -> dict[str, TopicDescription | BrokerError]:
        described: dict[str, TopicDescription | BrokerError] = {}
        for part in _batches(names):
            topics = TopicCollection(part)

            def start(client: Any, timeout: float, topics: TopicCollection = topics) -> dict[str, Future[TopicDescription]]:
                futures = client.describe_topics(topics, include_authorized_operations=operations, request_timeout=timeout)
                return dict(futures)

            answers = self._read(lambda name: f"describe topic {name}", start)
            described |= answers
        return described

    def _configs(
        self, resources: dict[str, ConfigResource], limit: float | None = None
    ) -> dict[str, dict[str, ConfigValue] | BrokerError]:
        def start(client: Any, timeout: float) -> dict[str, Future[Any]]:
            futures = client.describe_configs(list(resources.values()), request_timeout=timeout)
            return {resource.name: future for resource, future in futures.items()}

        said = "read the settings of {}".format
        answers = self._read(said, start) if limit is None else self._many(said, start, limit)
        return {
            name: answer if isinstance(answer, BrokerError) else {key: _config_value(entry) for key, entry in answer.items()}
            for name, answer in answers.items()
        }

    def _one(self, what: str, start: Callable[[Any, float], Future[T]], *, again: bool = False) -> T:
        def attempt() -> T:
            ask = self._asked if again else self._changed  # only the question for the cluster itself is read so
            answer = ask(lambda _: what, lambda client, t: {what: start(client, t)})[what]
            if isinstance(answer, BrokerError):
                raise answer
            return answer

        return self._retrying()(attempt)

    def _retrying(self) -> Retrying:
        return Retrying(
            stop=stop_after_delay(self._timeout),
            wait=wait_random_exponential(multiplier=0.1, max=2.0),
            retry=retry_if_exception(lambda error: isinstance(error, BrokerError) and error.retryable),
            reraise=True,
        )

    def _asked(self, what: Callable[[K], str], start: Callable[[Any, float], Mapping[K, Future[T]]]) -> dict[K, T | BrokerError]:
        """:meth:`_many` for read-only requests, which may be repeated: other brokers are asked while the chosen one is silent."""
        most = self._timeout if self._contacted else min(self._timeout, FIRST_CONTACT_TIMEOUT)
        if not self._contacted and len(self.cluster.bootstrap_servers) == 1:
            return self._many(what, start, most)
        for share in TRY_SECONDS:
            try:
                return self._many(what, start, share * most)
            except ClusterUnreachable as error:
                if not self._others_may_answer():
                    raise
                servers = answering(self.cluster, min(PROBE_SECONDS, share * most))
                if not servers:
                    raise
                log.info("cluster %s: %s; asking again at %s", self.cluster.alias, error.message, ",".join(servers))
                # What lies between may have dropped connections that were idle.
                idle = self._contacted and time.monotonic() - self._answered > IDLE_SECONDS + most
                if idle or len(servers) < len(self.cluster.bootstrap_servers):  # else it may only be slow: keep the open connections
                    self._reopen(servers)
        return self._many(what, start, most if self._contacted else (1 - sum(TRY_SECONDS)) * most)

    def _others_may_answer(self) -> bool:
        """Whether one broker was silent, as opposed to a refused login, a bad certificate, or all brokers down."""
        cause = self._session.cause
        return not self._session.refused and self._session.down_since is None and (cause is None or cause.code() != KafkaError._SSL)

    def _many(
        self, what: Callable[[K], str], start: Callable[[Any, float], Mapping[K, Future[T]]], limit: float | None = None
    ) -> dict[K, T | BrokerError]:
        """:meth:`_try`, and once more over a new session where the secrets have changed since this one was opened."""
        try:
            return self._try(what, start, limit)
        except ClusterUnreachable:
            if not self._session.outdated:
                raise
        self._reopen()
        return self._try(what, start, limit)

    def _try(
        self, what: Callable[[K], str], start: Callable[[Any, float], Mapping[K, Future[T]]], limit: float | None
    ) -> dict[K, T | BrokerError]:
        """Run requests, one answer or broker error for each; connection errors are raised."""
        self._session.forget()
        limit = min(limit or self._timeout, self._timeout if self._contacted else FIRST_CONTACT_TIMEOUT)
        futures = start(self._session.client, limit)
        self._await(futures.values(), limit)
        answers: dict[K, T | BrokerError] = {}
        for name, future in futures.items():
            error = future.exception()
            if error is None:
                answers[name] = future.result()
                continue
            translated = self._translate(error, what(name))
            if not isinstance(translated, BrokerError):
                raise translated from None
            answers[name] = translated
        self._contacted = True
        self._answered = time.monotonic()
        return answers

    def _await(self, futures: Collection[Future[Any]], limit: float) -> None:
        deadline = time.monotonic() + limit + 1.0  # librdkafka's own timeout fires first, with the better message
        known = self._contacted
        while not all(future.done() for future in futures):
            self._session.client.poll(_POLL)
            down = self._session.down_since
            grace = TLS_GRACE if self._session.cause and self._session.cause.code() == KafkaError._SSL else REFUSED_GRACE
            if down and not known and not (known := bool(answering(self.cluster, PROBE_SECONDS))):
                grace = 0.0  # nobody waits for a cluster that has never answered
            if self._session.refused or time.monotonic() > deadline or (down and time.monotonic() - down > grace):
                raise self._session.unreachable()

    def _translate(self, error: BaseException, what: str) -> MirrorError:
        if isinstance(error, KafkaException):
            return self._session.translate(error.args[0], what)
        raise error


def _batches(names: Iterable[str]) -> Iterable[list[str]]:
    ordered = sorted(names)
    return (ordered[start : start + _BATCH] for start in range(0, len(ordered), _BATCH))


def _topic_info(topic: TopicDescription) -> TopicInfo:
    return TopicInfo(
        name=topic.name,
        partitions=len(topic.partitions),
        topic_id=_topic_id(topic.topic_id),
        internal=topic.is_internal,
        replication_factor=min((len(p.replicas) for p in topic.partitions), default=0),
        leaderless=tuple(p.id for p in topic.partitions if p.leader is None or p.leader.id < 0),
    )


def _topic_id(uuid: Any) -> str:
    high, low = uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
    if not (high or low):
        return ""
    return base64.urlsafe_b64encode(struct.pack(">qq", high, low)).decode().rstrip("=")


def _config_value(entry: Any) -> ConfigValue:
    return ConfigValue(entry.value, _source_name(entry.source), entry.is_sensitive, entry.is_read_only)


def _source_name(source: Any) -> str:
    return str(ConfigSource(source).name)
