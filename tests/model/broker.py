"""A model broker, on the level of bytes: it speaks Produce v7 and Fetch v11 and keeps what Kafka keeps of a producer.

Sequence rules as in KIP-98 and Kafka's ``ProducerStateManager``: the last five batches of a producer and partition are
recognised, anything else that does not continue it is refused with 45, and a producer without state may begin anywhere.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from dataclasses import dataclass, field

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.records.batch import BatchHeader, check, headers
from mirror_pipeline.kafka.records.cursor import Cursor
from mirror_pipeline.model import TopicPartition

CORRUPT, INVALID_EPOCH, OUT_OF_ORDER, NOT_LEADER = 2, 47, 45, 6
REMEMBERED = 5
SEEN: Counter[str] = Counter()
"""What came to pass in a search, so that a test can tell an idle search from a sound engine."""
MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Stored:
    """One batch in a log."""

    base: int
    header: BatchHeader
    raw: bytes


@dataclass(slots=True)
class ProducerEntry:
    """What a partition remembers of a producer: epoch and (first, last sequence, base offset) of its last batches."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1]


class ModelPartition:
    """The log of one partition on its leader. ``replicated`` is the high watermark; only what lies below it is for ever."""

    def __init__(self) -> None:
        self.log: list[Stored] = []
        self.end = self.replicated = 0
        self.producers: dict[int, ProducerEntry] = {}
        self.aborted: list[tuple[int, int]] = []

    def append(self, batch: bytes) -> tuple[int, int]:
        """Error and base offset, as a leader answers a produce request."""
        try:
            at, header = next(iter(headers(batch)))
            check(batch, at, header)
        except (CorruptBatch, StopIteration):
            return CORRUPT, -1
        if header.size != len(batch) or header.base_offset != 0 or not header.dense or header.is_control or header.is_transactional:
            return CORRUPT, -1
        error, known = self._judge(header)
        if error or known >= 0:
            SEEN[str(error) if error else "duplicate recognised"] += 1
            return error, known
        SEEN["batch appended"] += 1
        base = self.keep(batch, header)
        entry = self.producers.setdefault(header.producer_id, ProducerEntry(header.producer_epoch))
        if entry.epoch != header.producer_epoch:
            entry.epoch, entry.batches = header.producer_epoch, deque(maxlen=REMEMBERED)
        entry.batches.append((header.base_sequence, (header.base_sequence + header.records - 1) & MASK, base))
        return 0, base

    def _judge(self, header: BatchHeader) -> tuple[int, int]:
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return 0, -1
        if header.producer_epoch < entry.epoch:
            return INVALID_EPOCH, -1
        if header.producer_epoch > entry.epoch:
            return (0 if header.base_sequence == 0 else OUT_OF_ORDER), -1
        last = (header.base_sequence + header.records - 1) & MASK
        for first, until, base in entry.batches:
            if (first, until) == (header.base_sequence, last):
                return 0, base
        return (0 if header.base_sequence == (entry.last_sequence + 1) & MASK else OUT_OF_ORDER), -1

    def keep(self, batch: bytes, header: BatchHeader) -> int:
        """Put a batch at the end of the log."""
        base = self.end
        self.log.append(Stored(base, header, struct.pack(">q", base) + batch[8:]))
        self.end = base + header.last_offset_delta + 1
        return base

    def records(self, below: int | None = None) -> int:
        """Number of records, all or those below an offset."""
        return sum(s.header.records for s in self.log if below is None or s.base < below)

    def fail_over(self) -> None:
        """A new leader that holds what was replicated, and nothing else."""
        self.log = [s for s in self.log if s.base < self.replicated]
        self.end = self.replicated
        for producer, entry in list(self.producers.items()):
            ours = [s for s in self.log if s.header.producer_id == producer][-REMEMBERED:]
            last = [(s.header.base_sequence, (s.header.base_sequence + s.header.records - 1) & MASK, s.base) for s in ours]
            entry.batches = deque(last, maxlen=REMEMBERED)
            if not last:
                del self.producers[producer]

    def read(self, offset: int, max_bytes: int, below: int | None = None) -> bytes:
        """Whole batches from the one that holds ``offset`` up to the high watermark, or to ``below``; at least one."""
        out, end = b"", self.replicated if below is None else below
        for stored in self.log:
            if stored.base + stored.header.last_offset_delta < offset or stored.base >= end:
                continue
            if out and len(out) + len(stored.raw) > max_bytes:
                break
            out += stored.raw
        return out


def parse_produce(body: bytes) -> dict[TopicPartition, bytes]:
    """The batches of a Produce v7 request."""
    cursor = Cursor(memoryview(body))
    cursor.string()
    acks, _ = cursor.int16(), cursor.int32()
    if acks != -1:
        raise AssertionError(f"acks={acks}: what is acknowledged could be lost")
    found: dict[TopicPartition, bytes] = {}
    for _ in range(cursor.count()):
        topic = cursor.string() or ""
        for _ in range(cursor.count()):
            tp = TopicPartition(topic, cursor.int32())
            if tp in found:
                raise AssertionError(f"{tp} twice in one request: the broker drops the first")
            found[tp] = bytes(cursor.records())
    return found


def produce_answer(results: dict[TopicPartition, tuple[int, int]]) -> bytes:
    """A Produce v7 response: error and base offset by partition."""
    out = struct.pack(">i", len(results))
    for tp, (error, base) in results.items():
        name = tp.topic.encode()
        out += struct.pack(f">h{len(name)}siihqqq", len(name), name, 1, tp.partition, error, base, -1, 0)
    return out + struct.pack(">i", 0)


def parse_fetch(body: bytes) -> dict[TopicPartition, tuple[int, int]]:
    """Offset and most bytes by partition of a Fetch v11 request."""
    cursor = Cursor(memoryview(body))
    cursor.numbers(struct.Struct(">iiiibii"))
    found: dict[TopicPartition, tuple[int, int]] = {}
    for _ in range(cursor.count()):
        topic = cursor.string() or ""
        for _ in range(cursor.count()):
            partition, _, offset, _, most = cursor.numbers(struct.Struct(">iiqqi"))
            found[TopicPartition(topic, partition)] = (offset, most)
    return found


def fetch_wait(body: bytes) -> float:
    """Seconds for which a Fetch v11 request may be held open."""
    return float(struct.unpack_from(">i", body, 4)[0]) / 1000


def fetch_answer(found: dict[TopicPartition, tuple[ModelPartition, int, bytes, int]]) -> bytes:
    """A Fetch v11 response: log, error, bytes and the high watermark as the broker knows it, by partition."""
    out = struct.pack(">ihii", 0, 0, 0, len(found))
    for tp, (log, error, data, told) in found.items():
        name = tp.topic.encode()
        out += struct.pack(f">h{len(name)}siihqqq", len(name), name, 1, tp.partition, error, told, told, 0)
        out += struct.pack(">i", len(log.aborted)) + b"".join(struct.pack(">qq", *entry) for entry in log.aborted)
        out += struct.pack(">ii", -1, len(data)) + data
    return out
