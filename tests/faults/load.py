"""Steady live load on a source cluster: unique numbered records, each topic in its own thread."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TICK_SECONDS = 0.05
OUTSTANDING = 3000
"""Records on their way above which the load pauses: the source is down."""
FLUSH_SECONDS = 90.0
TRANSACTION_SECONDS = 0.3
ABORTED_SHARE = 0.3
ADMIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Stream:
    """One topic of the load. ``age`` makes its records that many seconds old; ``codec`` is Kafka's compression.type.

    ``replicas``: no more than the source has brokers. Of three, two have to be there for a write.
    """

    topic: str
    partitions: int = 3
    codec: str = "none"
    transactional: bool = False
    age: float = 0.0
    rate: float = 100.0
    configs: dict[str, str] = field(default_factory=dict)
    replicas: int = 3


DEFAULT_STREAMS = (
    Stream("load-plain"),
    Stream("load-zipped", codec="lz4", replicas=1),
    Stream("load-tx", partitions=2, transactional=True),
)
DAYS = 3 * 86400.0
OLD_STREAMS = (
    Stream("load-old", age=DAYS),
    Stream("load-old-zipped", codec="zstd", age=2 * DAYS, replicas=1),
    Stream("load-old-tx", partitions=2, transactional=True, age=DAYS),
)
"""Records this old make a forgetful target drop a producer's state at once."""


class Load:
    """Feeds the streams until stopped.

    ``acked`` and ``failed`` count records by (topic, partition); a record's value begins with ``topic/partition/number``,
    numbers ascend without holes, so acked values must be on the target.
    """

    def __init__(self, bootstrap: str, streams: tuple[Stream, ...] = DEFAULT_STREAMS, *, seed: int = 0) -> None:
        self.bootstrap = bootstrap
        self.streams = streams
        self.sent: Counter[tuple[str, int]] = Counter()
        self.acked: Counter[tuple[str, int]] = Counter()
        self.failed: Counter[tuple[str, int]] = Counter()
        self._seed = seed
        self._stop = threading.Event()
        self._pause = threading.Event()
        self._threads: list[threading.Thread] = []

    def create_topics(self) -> None:
        """Create the streams' topics."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        brokers = len(self.bootstrap.split(","))
        fresh = [
            NewTopic(s.topic, s.partitions, min(s.replicas, brokers), config={"retention.ms": "-1", **s.configs}) for s in self.streams
        ]
        for future in admin.create_topics(fresh).values():
            future.result(ADMIN_SECONDS)

    def start(self) -> None:
        """Start feeding."""
        for number, stream in enumerate(self.streams):
            work = self._transactions if stream.transactional else self._plain
            chance = random.Random(f"{self._seed}/{number}")
            thread = threading.Thread(target=work, args=(stream, chance), name=stream.topic, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop; all that was sent is acknowledged or has failed when this returns. The source must be up."""
        self._stop.set()
        for thread in self._threads:
            thread.join(FLUSH_SECONDS + 30)
            if thread.is_alive():
                raise AssertionError(f"the load of {thread.name} does not end")

    def pause(self) -> None:
        """No new records until :meth:`resume`."""
        self._pause.set()

    def resume(self) -> None:
        """After :meth:`pause`."""
        self._pause.clear()

    def _client(self, stream: Stream, **more: object) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 10, "compression.type": stream.codec,
                "delivery.timeout.ms": 600_000, "reconnect.backoff.max.ms": 500, "log_level": 0, **more,
            }
        )  # fmt: skip

    def _transactional(self, stream: Stream) -> Producer:
        times = {"transaction.timeout.ms": 60_000, "delivery.timeout.ms": 50_000}
        return self._client(stream, **{"transactional.id": f"load-{stream.topic}", **times})

    def _put(self, client: Producer, stream: Stream, chance: random.Random, delivered: Callable[..., None] | None) -> None:
        self._put_into(client, stream, chance.randrange(stream.partitions), chance, delivered)

    def _put_into(
        self, client: Producer, stream: Stream, partition: int, chance: random.Random, delivered: Callable[..., None] | None
    ) -> None:
        key = (stream.topic, partition)
        value = f"{stream.topic}/{partition}/{self.sent[key]} ".encode().ljust(chance.randrange(200, 2000), b"x")
        when: dict[str, Any] = {"timestamp": int((time.time() - stream.age) * 1000)} if stream.age else {}
        client.produce(stream.topic, value, f"k{self.sent[key] % 50}".encode(), partition, on_delivery=delivered, **when)
        self.sent[key] += 1

    def _plain(self, stream: Stream, chance: random.Random) -> None:
        client = self._client(stream)

        def delivered(error: object, message: object) -> None:
            key = (stream.topic, message.partition())  # type: ignore[attr-defined]
            (self.failed if error else self.acked)[key] += 1

        # A broker takes any first sequence of a producer it does not know: were several batches under way and the first refused, the
        # second would be taken, the first then be a "duplicate", and the producer would count records as acknowledged that no log holds.
        for partition in range(stream.partitions):
            self._put_into(client, stream, partition, chance, delivered)
        client.flush(FLUSH_SECONDS)
        due = 0.0
        while not self._stop.wait(TICK_SECONDS):
            client.poll(0)
            if self._pause.is_set() or len(client) > OUTSTANDING:
                continue
            due += stream.rate * TICK_SECONDS * chance.choice((0.2, 1.0, 1.8))
            while due >= 1:
                self._put(client, stream, chance, delivered)
                due -= 1
        client.flush(FLUSH_SECONDS)

    def _transactions(self, stream: Stream, chance: random.Random) -> None:
        """Transactions of about 0.3 s, three in ten aborted. What a lost commit meant is for the source's log to say."""
        client: Producer | None = None
        while not self._stop.is_set():
            if self._pause.is_set():
                self._stop.wait(TICK_SECONDS)
                continue
            try:
                if client is None:
                    fresh = self._transactional(stream)
                    fresh.init_transactions(10)
                    client = fresh
                self._one_transaction(client, stream, chance)
            except KafkaException:
                client = None  # a new one with the same id fences this one and ends its transaction
                self._stop.wait(0.2)
        self._settle(stream)

    def _one_transaction(self, client: Producer, stream: Stream, chance: random.Random) -> None:
        client.begin_transaction()
        for _ in range(int(TRANSACTION_SECONDS / TICK_SECONDS)):
            for _ in range(max(1, int(stream.rate * TICK_SECONDS))):
                self._put(client, stream, chance, None)
            client.poll(0)
            time.sleep(TICK_SECONDS)
        if chance.random() < ABORTED_SHARE:
            client.abort_transaction(20)
        else:
            client.commit_transaction(20)

    def _settle(self, stream: Stream) -> None:
        """End a transaction that is still open, so that the last stable offset reaches the log's end."""
        deadline = time.monotonic() + FLUSH_SECONDS
        while time.monotonic() < deadline:
            try:
                self._transactional(stream).init_transactions(10)
            except KafkaException:
                continue
            return
        raise AssertionError(f"the last transaction of {stream.topic} could not be ended")
