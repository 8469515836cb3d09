"""Another producer that writes into a mirror's target topic while a test runs, and what a shared topic holds in the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Producer

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.offset_runs import runs_of
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.log_walk import read_log
from tests.support.mirrors import values

FOREIGN = "foreign-"


@dataclass
class OtherWriter:
    """Writes ``foreign-N``, one record after the other over the partitions, until it is told to stop."""

    bootstrap: str
    topic: str
    partitions: int = 2
    written: int = 0

    @contextmanager
    def writing(self, *, pause: float = 0.002) -> Iterator[None]:
        """Write while the block runs, a record every ``pause`` seconds."""
        stop = threading.Event()
        thread = threading.Thread(target=self._write, args=(stop, pause))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)

    def _write(self, stop: threading.Event, pause: float) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "enable.idempotence": True})
        while not stop.wait(pause):
            producer.produce(self.topic, f"{FOREIGN}{self.written}".encode(), b"k", self.written % self.partitions)
            producer.poll(0)
            self.written += 1
        assert producer.flush(60) == 0

    def transaction(self, count: int, *, commit: bool) -> None:
        """Write records into every partition in a transaction of its own; those of an aborted one count for nothing."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": f"{self.topic}-{commit}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number in range(count):
            producer.produce(self.topic, f"{FOREIGN}t-{number}".encode(), b"k", number % self.partitions)
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)

    def missing(self, mirror: Mirror) -> set[str]:
        """What it wrote and the topic does not hold."""
        held = {value for part in range(self.partitions) for value in values(mirror, self.topic, part)}
        return {f"{FOREIGN}{number}" for number in range(self.written)} - held


def ours(mirror: Mirror, topic: str, partition: int) -> list[str]:
    """The values of a target partition that no other writer wrote, in order."""
    return [value.rstrip(".") for value in values(mirror, topic, partition) if not value.startswith(FOREIGN)]


def by_offset(mirror: Mirror, topic: str, partition: int) -> dict[int, str]:
    """Every value of a target partition by its offset; markers of transactions have none."""
    place = TopicPartition(topic, partition)
    with WireClient(mirror.flow.target) as client:
        start, end = log_range(client, [place], isolation=0)[place]
        pieces = read_log(client, place, start, end, isolation=0)
        return {record.offset: (record.value or b"").decode().rstrip(".") for piece in pieces for record in piece.records()}


def assert_mapped(mirror: Mirror, source_topic: str, target_topic: str, sent: dict[int, list[str]]) -> None:
    """The ledger's offset map leads from each source offset, of a source without holes, to precisely its record."""
    for store in mirror.flow.lane_stores():
        Ledger(store).audit()
        for (topic, partition, _), runs in runs_of(Ledger(store).sends_table()).items():
            if topic == source_topic:
                held = by_offset(mirror, target_topic, partition)
                found = [held[runs.to_target(offset)] for offset in range(len(sent[partition]))]
                assert found == sent[partition]
