"""A model source: what producers wrote, transactions and compaction included, and which of it must arrive on the target."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from crc32c import crc32c

from mirror_pipeline.kafka.records.batch import OpenRecord, headers, seal, tail_of
from mirror_pipeline.model import TopicPartition
from tests.model.broker import ModelPartition
from tests.model.processes import Clock
from tests.model.several import SeveralBrokers


class Kind(StrEnum):
    """What comes next on a source partition."""

    ONE = "one record"
    THREE = "three records"
    COMMITTED = "a committed transaction"
    ABORTED = "an aborted transaction"
    COMPACTED = "offsets that compaction emptied, and a record"


class Expected(NamedTuple):
    """A record that must be on the target, at its place among the others."""

    offset: int
    timestamp: int
    tail: bytes


def _marked(batch: bytes, attributes: int, producer_id: int) -> bytes:
    changed = bytearray(batch)
    changed[21:23] = attributes.to_bytes(2, "big")
    changed[43:51] = producer_id.to_bytes(8, "big")
    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


class ModelSource(SeveralBrokers):
    """Two things per partition: the log, and ``expected``, the records a perfect copy holds.

    Unless its records are ``young`` the target forgets their producer whenever it likes.
    """

    def __init__(self, clock: Clock, alias: str, topic: str, partitions: int, topic_id: str) -> None:
        super().__init__(clock, alias, topic, partitions, topic_id)
        self.expected: dict[int, list[Expected]] = {n: [] for n in range(partitions)}
        self.young = False
        self._number = 0

    def add(self, partition: int, kind: Kind) -> None:
        log = self.logs[TopicPartition(self.topic, partition)]
        if kind is Kind.COMPACTED:
            log.end += 2  # never at the end of a log: the newest offset stays
            self._batch(partition, log, 1)
        elif kind in (Kind.ONE, Kind.THREE):
            self._batch(partition, log, 3 if kind is Kind.THREE else 1)
        else:
            self._transaction(partition, log, aborted=kind is Kind.ABORTED)
        log.replicated = log.end
        self.appended(TopicPartition(self.topic, partition))

    def _records(self, log: ModelPartition, count: int) -> list[OpenRecord]:
        made = []
        for _ in range(count):
            self._number += 1
            tail = tail_of(b"key", b"value-%d" % self._number, ((b"header", None), (b"header", b"")))
            at = int(self.clock.time() * 1000) if self.young else 1000
            made.append(OpenRecord(log.end + len(made), at + self._number, tail))
        return made

    def _keep(self, partition: int, log: ModelPartition, batch: bytes) -> None:
        epoch = len(self.epochs[TopicPartition(self.topic, partition)]) - 1
        batch = batch[:12] + epoch.to_bytes(4, "big") + batch[16:]
        log.keep(batch, next(header for _, header in headers(batch)))

    def _batch(
        self, partition: int, log: ModelPartition, count: int, attributes: int = 0, producer: int = -1, *, wanted: bool = True
    ) -> None:
        records = self._records(log, count)
        batch = seal(records, codec=0)
        self._keep(partition, log, _marked(batch, attributes, producer) if attributes else batch)
        if wanted:
            self.expected[partition] += [Expected(r.offset, r.timestamp, r.tail) for r in records]

    def _transaction(self, partition: int, log: ModelPartition, *, aborted: bool) -> None:
        producer = 70 + self._number
        if aborted:
            log.aborted.append((producer, log.end))
        self._batch(partition, log, 2, 0x10, producer, wanted=not aborted)
        key = b"\0\0\0\0" if aborted else b"\0\0\0\1"
        marker = seal([OpenRecord(log.end, 1000, tail_of(key, b"\0" * 6, ()))], codec=0)
        self._keep(partition, log, _marked(marker, 0x30, producer))
