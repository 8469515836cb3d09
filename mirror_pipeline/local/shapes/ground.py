"""Common tools of all shapes: topic creation, a client producer, and raw batches for records that no client can write."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ProblemFound, UsageError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, OpenRecord, seal, tail_of
from mirror_pipeline.model import TopicPartition

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
FOREVER_MS = "9223372036854775807"
# Old and unusual timestamps must neither be rejected nor make the broker delete the records.
OPEN_TIMES = {"retention.ms": "-1", "message.timestamp.before.max.ms": FOREVER_MS, "message.timestamp.after.max.ms": FOREVER_MS}
BROKERS_DEFAULT = -1  # replication factor: what default.replication.factor says
ADMIN_SECONDS = 30.0
FLUSH_SECONDS = 120.0
RETRY_SECONDS = 30.0
RETRY_PAUSE_SECONDS = 0.1
GROUND_POLL_SECONDS = 0.02
# A topic just created: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER; made again: UNKNOWN_TOPIC_ID
NO_LEADER_YET = (3, 5, 6, 100)

Header = tuple[bytes, bytes | None]
Raw = tuple[int, bytes | None, bytes | None, Sequence[Header]]


@dataclass(frozen=True, slots=True)
class SeededTopic:
    """A topic that was created and filled.

    ``records_committed`` counts what a read_committed consumer gets; ``bytes`` are those records' keys and values.
    ``live`` says whether further records may be written without changing its edge case.
    """

    name: str
    partitions: int
    records_committed: int
    bytes: int
    description: str
    live: bool = False


def local_settings(bootstrap: str, alias: str = "local") -> ClusterSettings:
    """Settings of a cluster without security, such as an embedded one."""
    return ClusterSettings(alias, tuple(bootstrap.split(",")))


def known_everywhere(cluster: ClusterSettings, topic: str, partitions: int) -> None:
    """Wait until each of the cluster's bootstrap servers names a leader for all partitions of a new topic.

    The controller acknowledges a topic some milliseconds before every broker knows it; until then a broker may report it as unknown.

    Raises:
        ProblemFound: a server does not within 30 seconds.
        ClusterUnreachable: a server does not answer.
    """
    deadline = time.monotonic() + RETRY_SECONDS
    for address in cluster.bootstrap_servers:
        while not _known(replace(cluster, bootstrap_servers=(address,)), topic, partitions):
            if time.monotonic() > deadline:
                raise ProblemFound(f"broker {address} does not name the leaders of topic {topic} within {RETRY_SECONDS:.0f} s")
            time.sleep(GROUND_POLL_SECONDS)


def _known(broker: ClusterSettings, topic: str, partitions: int) -> bool:
    """Ask exactly this broker: a new client knows no other."""
    with WireClient(broker) as client:
        known = client.metadata([topic]).topics[topic]
    return not known.error and len(known.partitions) == partitions and all(part.leader >= 0 for part in known.partitions.values())


def raw_batch(records: Iterable[Raw], *, codec: int = 0) -> bytes:
    """One batch of (timestamp, key, value, headers), with contents that no client library accepts."""
    return seal(
        [OpenRecord(i, at, tail_of(key, value, tuple(headers))) for i, (at, key, value, headers) in enumerate(records)], codec=codec
    )


@dataclass
class Ground:
    """One cluster being seeded. ``scale`` is the record count of a plain topic; ``seed`` determines all contents."""

    bootstrap: str
    prefix: str = ""
    scale: int = 20_000
    seed: int = 0
    failures: list[str] = field(default_factory=list)
    producers: list[Producer] = field(default_factory=list)

    @cached_property
    def admin(self) -> AdminClient:
        """Administration client."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    @cached_property
    def wire(self) -> WireClient:
        """Raw client."""
        return WireClient(local_settings(self.bootstrap))

    @cached_property
    def filler(self) -> bytes:
        """Text for values; it compresses about two to one."""
        return random.Random(self.seed).randbytes(64 << 10).hex().encode()  # noqa: S311 - contents, no secret

    def close(self) -> None:
        """Close the connections. An open producer would log errors when the broker stops."""
        for producer in self.producers:
            producer.close()
        if "wire" in self.__dict__:
            self.wire.close()

    def create(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> str:
        """Create a topic with unlimited retention, open timestamp bounds and the cluster's default replication factor.

        Returns its full name.

        Raises:
            UsageError: The topic exists.
            ClusterUnreachable: No broker answers.
        """
        full = self.prefix + name
        topic = NewTopic(full, num_partitions=partitions, replication_factor=BROKERS_DEFAULT, config={**OPEN_TIMES, **(config or {})})
        try:
            self.admin.create_topics([topic], operation_timeout=ADMIN_SECONDS)[full].result(ADMIN_SECONDS)
        except KafkaException as refused:
            error = refused.args[0]
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise UsageError(f"topic {full} exists already", hint="use another prefix, or a fresh cluster") from refused
            raise ClusterUnreachable(self.bootstrap, f"topic {full} could not be created: {error.str()}") from refused
        known_everywhere(local_settings(self.bootstrap), full, partitions)
        return full

    def value(self, topic: str, partition: int, index: int, size: int) -> bytes:
        """A value of ``size`` bytes that occurs nowhere else: partition and index are part of it."""
        head = f"{topic}/{partition}/{index}/".encode()
        start = (index * 7919) % (len(self.filler) // 2)
        body = self.filler[start : start + size - len(head)]
        while len(head) + len(body) < size:
            body += self.filler[: size - len(head) - len(body)]
        return head + body

    def producer(self, **settings: str | int | float | bool) -> Producer:
        """A client producer; failed deliveries are recorded in ``failures``."""
        base = {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "log_level": 0, "queue.buffering.max.messages": 1_000_000}
        overrides = {key.replace("_", "."): value for key, value in settings.items()}
        self.producers.append(Producer({**base, "on_delivery": self._delivered, **overrides}))
        return self.producers[-1]

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and len(self.failures) < 10:
            self.failures.append(f"{message.topic()}[{message.partition()}]: {error.str()}")

    def flush(self, producer: Producer) -> None:
        """Wait until everything is delivered.

        Raises:
            ProblemFound: A record was not delivered within two minutes.
        """
        left = producer.flush(FLUSH_SECONDS)
        if left or self.failures:
            raise ProblemFound(f"{left} records were not delivered to {self.bootstrap}: {'; '.join(self.failures) or 'time is up'}")

    def append(self, topic: str, partition: int, batch: bytes) -> int:
        """Append one raw batch unchanged; return its offset.

        Raises:
            BrokerError: The broker rejects it, or has no leader for it within 30 s.
            ConnectionLost: Whether it was appended is unknown.
        """
        tp = TopicPartition(topic, partition)
        parts = (batch[:HEADER_BYTES], memoryview(batch)[HEADER_BYTES:])
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                connection = self.wire.connection(self.wire.leader(tp))
                send_produce(connection, {tp: parts}, timeout_ms=int(ADMIN_SECONDS * 1000))
                answer = receive_produce(connection)[tp]
                if not answer.error:
                    return answer.base_offset
                raise broker_error(answer.error, f"raw batch to {tp}", answer.message)
            except BrokerError as error:
                if error.code not in NO_LEADER_YET or time.monotonic() > deadline:
                    raise
            self.wire.forget(tp)
            time.sleep(RETRY_PAUSE_SECONDS)
