"""Edge cases of a whole log: transactions, compaction holes, a log start above 0."""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.local.shapes.ground import ADMIN_SECONDS, FOREVER_MS, Ground, SeededTopic
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.log_walk import READ_UNCOMMITTED, read_log

TRANSACTION_SECONDS = 60.0
ROUNDS = 30
# The cleaner looks for work every 15 s by default (log.cleaner.backoff.ms); several rounds must fit.
COMPACTION_SECONDS = 120.0
SETTLED_SECONDS = 1.5
LOG_POLL_SECONDS = 0.3
KEYS = 120


class _Writer:
    """A transactional producer that counts what it commits."""

    def __init__(self, ground: Ground, topic: str, name: str) -> None:
        self.ground, self.topic, self.name = ground, topic, name
        self.producer: Producer = ground.producer(transactional_id=f"{topic}-{name}-{uuid4().hex[:8]}", compression_type="lz4")
        self.producer.init_transactions(TRANSACTION_SECONDS)
        self.records = self.bytes = 0
        self._open = (0, 0)

    def begin(self) -> None:
        """Open a transaction."""
        self.producer.begin_transaction()
        self._open = (0, 0)

    def write(self, number: int, records: int) -> None:
        """Write records into all three partitions and wait until they are in the log, committed or not."""
        count, size = self._open
        for index in range(records):
            value = self.ground.value(f"{self.topic}/{self.name}/{number}", index % 3, count, 90)
            self.producer.produce(self.topic, value, self.name.encode(), index % 3)
            count, size = count + 1, size + len(value) + len(self.name)
        self.ground.flush(self.producer)
        self._open = (count, size)

    def end(self, *, commit: bool) -> None:
        """Commit, or abort although everything was written."""
        if commit:
            self.producer.commit_transaction(TRANSACTION_SECONDS)
            self.records, self.bytes = self.records + self._open[0], self.bytes + self._open[1]
        else:
            self.producer.abort_transaction(TRANSACTION_SECONDS)


def transactions(ground: Ground) -> SeededTopic:
    """Two producers whose transactions overlap on the same partitions, some aborted, plain records between, an abort last."""
    topic = ground.create("transactions", 3)
    one, two = _Writer(ground, topic, "one"), _Writer(ground, topic, "two")
    plain = ground.producer()
    records = size = 0
    for number in range(ROUNDS):
        one.begin()
        one.write(number, 6)
        two.begin()
        two.write(number, 4)
        value = ground.value(topic, number % 3, number, 60)
        plain.produce(topic, value, None, number % 3)
        ground.flush(plain)
        records, size = records + 1, size + len(value)
        one.write(number, 3)
        one.end(commit=number % 3 != 0)
        two.write(number, 2)
        two.end(commit=number % 4 != 1 and number != ROUNDS - 1)
    total = records + one.records + two.records
    return SeededTopic(topic, 3, total, size + one.bytes + two.bytes, "overlapping transactions, some aborted, one at the end", live=True)


def trimmed(ground: Ground) -> SeededTopic:
    """DeleteRecords: one log starts inside a batch, one has lost all records and continues at its end."""
    topic = ground.create("trimmed", 2)
    producer = ground.producer(compression_type="zstd")
    size = 0
    for index in range(400):
        value = ground.value(topic, index % 2, index, 100)
        producer.produce(topic, value, None, index % 2)
        size += len(value) if index % 2 == 0 and index // 2 >= 73 else 0
    ground.flush(producer)
    cuts = [ClientPartition(topic, 0, 73), ClientPartition(topic, 1, 200)]
    for answer in ground.admin.delete_records(cuts, operation_timeout=ADMIN_SECONDS).values():
        answer.result(ADMIN_SECONDS)
    return SeededTopic(topic, 2, 127, size, "the first records were deleted (log start above 0)")


@dataclass(frozen=True, slots=True)
class Compacting:
    """A compacted topic that waits for the broker's cleaner."""

    ground: Ground
    topic: str
    partitions: int

    def finish(self) -> SeededTopic:
        """Wait until every partition has holes and is stable, then prevent further compaction.

        Otherwise the source would continue to shrink while it is compared with the target.

        Raises:
            ProblemFound: The broker did not compact within two minutes.
        """
        deadline = time.monotonic() + COMPACTION_SECONDS
        seen, since, frozen = self._contents(), time.monotonic(), False
        while time.monotonic() < deadline:
            time.sleep(LOG_POLL_SECONDS)
            now = self._contents()
            if now != seen:
                seen, since = now, time.monotonic()
            if not all(holes for _, _, holes in now) or time.monotonic() - since < SETTLED_SECONDS:
                continue
            if frozen:
                records, size = sum(r for r, _, _ in now), sum(b for _, b, _ in now)
                return SeededTopic(self.topic, self.partitions, records, size, "compacted: offsets are missing, batches have holes")
            self._freeze()
            frozen, since = True, time.monotonic()
        raise ProblemFound(f"{self.topic} was not compacted within {COMPACTION_SECONDS:.0f} s", hint="is log.cleaner.enable true?")

    def _contents(self) -> list[tuple[int, int, int]]:
        """Records, bytes of keys and values, and missing offsets of each partition, read raw."""
        contents = []
        tps = [TopicPartition(self.topic, p) for p in range(self.partitions)]
        for tp, (start, end) in log_range(self.ground.wire, tps, isolation=READ_UNCOMMITTED).items():
            records = [r for piece in read_log(self.ground.wire, tp, start, end, isolation=READ_UNCOMMITTED) for r in piece.records()]
            contents.append((len(records), sum(len(r.key or b"") + len(r.value or b"") for r in records), end - start - len(records)))
        return contents

    def _freeze(self) -> None:
        entry = ConfigEntry("min.compaction.lag.ms", FOREVER_MS, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        for answer in self.ground.admin.incremental_alter_configs([resource]).values():
            answer.result(ADMIN_SECONDS)


def start_compacted(ground: Ground) -> Compacting:
    """Write a compacted topic with many small segments; the broker's cleaner then works on it in the background.

    Segments roll by record time (``segment.ms``), so every round, dated ten seconds after the previous one, starts a
    new segment. One idempotent producer writes a single round whose keys are all overwritten later: the cleaner
    keeps its last batch, empty, to preserve the sequence number (KIP-98).
    """
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "1000",
        "segment.jitter.ms": "0",
        "segment.bytes": str(1 << 20),
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
        "delete.retention.ms": "86400000",
    }
    partitions = 2
    topic = ground.create("compacted", partitions, config)
    began = int(time.time() * 1000) - 3_600_000
    ordinary = ground.producer(compression_type="lz4")
    overwritten = ground.producer(enable_idempotence=True)
    for number in range(12):
        producer = overwritten if number == 3 else ordinary
        for index in range(KEYS * partitions):
            if number > 4 and (index * 31 + number * 17) % 5 < 3:
                continue  # a later round leaves some records of an earlier one: holes inside batches
            deleted = number > 4 and (index + number) % 23 == 0
            value = None if deleted else ground.value(f"{topic}/{number}", index % partitions, index, 120)
            producer.produce(topic, value, b"key-%d" % (index // partitions), index % partitions, timestamp=began + number * 10_000 + index)
        ground.flush(producer)
    return Compacting(ground, topic, partitions)
