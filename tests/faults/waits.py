"""How long records wait between the source and the target, and whether the brokers of their partitions were healthy meanwhile.

Two consumers note when each record can be read on either side; what a record waits for on the source itself (replicas that do not
answer, a transaction) is no wait of the mirror's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from mirror_pipeline.local.embedded.start import LocalCluster

NAME_BYTES = 60
SAMPLE_SECONDS = 0.25
BEFORE_SECONDS, AFTER_SECONDS = 5.0, 1.0
"""A partition counts as healthy when its brokers were well, and its leaders the same, so long before the wait and after it: it may
take a moment to come back from trouble of its own, and leaders are known by samples only."""

Place = tuple[str, int]
"""Topic, by its name on the source, and partition."""


class Trouble(NamedTuple):
    """A broker that did not answer, or was down, in this time."""

    side: str
    node: int
    begin: float
    end: float


class Wait(NamedTuple):
    """A record that became readable on the source at ``since`` and on the target at ``until``."""

    place: Place
    since: float
    until: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.until - self.since


@dataclass(slots=True)
class Leaders:
    """Who led each partition of one side: samples, oldest first."""

    side: str
    samples: list[tuple[float, dict[Place, int]]] = field(default_factory=list)

    def of(self, place: Place, begin: float, end: float) -> set[int]:
        """Every leader in that time, by the last sample before it too; -1 where there was none."""
        found: set[int] = set()
        before = -1
        for at, leaders in self.samples:
            if at <= begin:
                before = leaders.get(place, -1)
            elif at <= end:
                found.add(leaders.get(place, -1))
        return found | {before}


def healthy(wait: Wait, leaders: Iterable[Leaders], troubles: Sequence[Trouble]) -> bool:
    """Whether on both sides one broker led the partition all the time, and was in no trouble."""
    begin, end = wait.since - BEFORE_SECONDS, wait.until + AFTER_SECONDS
    for side in leaders:
        led = side.of(wait.place, begin, end)
        if len(led) != 1 or -1 in led:
            return False
        if any(t.side == side.side and t.node in led and t.begin <= end and begin <= t.end for t in troubles):
            return False
    return True


def waits_of(source: Mapping[Place, Mapping[str, float]], target: Mapping[Place, Mapping[str, float]]) -> list[Wait]:
    """Every record that both sides have, the longest wait first."""
    found = [
        Wait(place, since, arrived[name])
        for place, names in source.items()
        for arrived in [target.get(place, {})]
        for name, since in names.items()
        if name in arrived
    ]
    return sorted(found, key=lambda wait: -wait.seconds)


class Arrivals:
    """Notes when each record of some topics can be read by a consumer, from the beginning on, in a thread of its own."""

    def __init__(self, bootstrap: str, topics: Mapping[str, int], prefix: str = "") -> None:
        self.seen: dict[Place, dict[str, float]] = {(name, n): {} for name, count in topics.items() for n in range(count)}
        self._prefix = prefix
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "arrivals", "enable.auto.commit": False, "log_level": 0,
                "isolation.level": "read_uncommitted", "fetch.wait.max.ms": 100, "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2000, "socket.timeout.ms": 10_000,
            }
        )  # fmt: skip
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"arrivals-{prefix}", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        self._consumer.assign([TopicPartition(self._prefix + name, n, OFFSET_BEGINNING) for name, n in self.seen])
        while not self._stop.is_set():
            for message in self._consumer.consume(500, timeout=0.05):
                if message.error() is None:
                    name = (message.value() or b"")[:NAME_BYTES].split(b" ", 1)[0].decode()
                    place = (message.topic() or "").removeprefix(self._prefix), message.partition() or 0
                    self.seen[place].setdefault(name, time.monotonic())
        self._consumer.close()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(30)


class LeaderWatch:
    """Samples the leaders of one side in a thread of its own."""

    def __init__(self, side: str, cluster: LocalCluster, topics: Iterable[str], prefix: str = "") -> None:
        self.leaders = Leaders(side)
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 500})
        self._topics, self._prefix = list(topics), prefix
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"leaders-{side}", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            try:
                found = self._admin.list_topics(timeout=1).topics
            except KafkaException:
                continue  # who is asked does not answer; the next sample asks another broker
            now = time.monotonic()
            topics = {name: found[self._prefix + name].partitions for name in self._topics if self._prefix + name in found}
            self.leaders.samples.append((now, {(name, n): p.leader for name, parts in topics.items() for n, p in parts.items()}))

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(30)
