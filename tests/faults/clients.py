"""Applications of a campaign that change clusters: a writer that knows what was acknowledged, a group that reads and commits."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place

READ_SECONDS = 60.0
FLUSH_SECONDS = 120.0
TICK_SECONDS = 0.01

Log = dict[int, list[tuple[int, str]]]
"""Offsets and values of a topic, by partition."""


@dataclass(slots=True)
class Writer:
    """Writes numbered values into a topic until it is halted; ``acked`` are (partition, offset, value) as the broker answered."""

    bootstrap: str
    topic: str
    partitions: int
    label: str
    acked: list[tuple[int, int, str]] = field(default_factory=list)
    failed: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _client: Producer | None = None

    def start(self) -> None:
        """Begin."""
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._client = Producer({**settings, "delivery.timeout.ms": 600_000, "reconnect.backoff.max.ms": 500})
        self._thread = threading.Thread(target=self._write, daemon=True, name=f"writer {self.label}")
        self._thread.start()

    def halt(self) -> None:
        """No new records; those under way stay so."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(30)

    def settle(self) -> None:
        """Halt, and wait until every record is acknowledged or has failed. The cluster must be up."""
        self.halt()
        if self._client is not None and self._client.flush(FLUSH_SECONDS):
            raise AssertionError(f"writer {self.label}: records were neither acknowledged nor refused within {FLUSH_SECONDS:.0f} s")

    def _write(self) -> None:
        assert self._client is not None
        number = 0
        while not self._stop.wait(TICK_SECONDS):
            value = f"{self.label}/{number}"
            self._client.produce(self.topic, f"{value} ".encode().ljust(200, b"x"), None, number % self.partitions, on_delivery=self._told)
            self._client.poll(0)
            number += 1

    def _told(self, error: object, message: Any) -> None:
        if error:
            self.failed += 1
        else:
            self.acked.append((message.partition(), message.offset(), message.value().split(b" ", 1)[0].decode()))


def log_end(bootstrap: str, topic: str, partitions: int) -> int:
    """Sum of a topic's end offsets; 0 while it is not there or has no leaders."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "account", "log_level": 0})
    try:
        return sum(client.get_watermark_offsets(Place(topic, number), timeout=10)[1] for number in range(partitions))
    except KafkaException:
        return 0
    finally:
        client.close()


def read_log(bootstrap: str, topic: str, partitions: int) -> Log:
    """A whole topic."""
    return _read(bootstrap, {Place(topic, number, OFFSET_BEGINNING) for number in range(partitions)}, "account", None, commit=False)[topic]


def read_as_group(
    bootstrap: str, group: str, topics: list[str], partitions: int, *, share: float = 1.0, chance: random.Random
) -> dict[str, Log]:
    """What a group reads from where it stands; commits after each batch. With ``share`` below 1 it stops somewhere before the end."""
    places = {Place(topic, number) for topic in topics for number in range(partitions)}
    most = None if share >= 1 else chance.randrange(20, 400)
    return _read(bootstrap, places, group, most, commit=True)


def _from_committed(client: Consumer, places: set[Place]) -> list[Place]:
    """Where the group stands; at the beginning where it has not committed. Retried while its coordinator is being chosen."""
    deadline = time.monotonic() + READ_SECONDS
    while True:
        try:
            stands = client.committed(list(places), timeout=10)
            return [Place(p.topic, p.partition, p.offset if p.offset >= 0 else OFFSET_BEGINNING) for p in stands]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _read(bootstrap: str, places: set[Place], group: str, most: int | None, *, commit: bool) -> dict[str, Log]:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "enable.partition.eof": True}
    client = Consumer({**settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed", "log_level": 0})
    found: dict[str, Log] = {}
    for place in places:
        found.setdefault(place.topic, {})[place.partition] = []
    try:
        client.assign(_from_committed(client, places) if commit else list(places))
        left, count, heard = {(p.topic, p.partition) for p in places}, 0, time.monotonic()
        while left and (most is None or count < most):
            batch = client.consume(200, timeout=0.2)
            heard = time.monotonic() if batch else heard
            if time.monotonic() - heard > READ_SECONDS:
                raise AssertionError(f"{group} cannot read {sorted(left)} to their ends on {bootstrap}")
            for message in batch:
                key, error = (message.topic() or "", message.partition() or 0), message.error()
                if error is None:
                    found[key[0]][key[1]].append((message.offset() or 0, (message.value() or b"").split(b" ", 1)[0].decode()))
                    left.add(key)
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(key)
            if commit and any(message.error() is None for message in batch):
                client.commit(asynchronous=False)
        return found
    finally:
        client.close()
