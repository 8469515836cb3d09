"""A write task against the model of a target broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.write.messages import PartitionWork, WriteTask
from mirror_pipeline.engine.tasks.write.task import _acknowledge, _Link, _sequenced, _Slot
from mirror_pipeline.kafka.produce import ProduceAnswer
from mirror_pipeline.kafka.records.batch import OpenRecord, seal, tail_of
from mirror_pipeline.kafka.records.restamp import SequencedBatch
from mirror_pipeline.model import Position, SpanRef, Stamp, TopicPartition
from tests.model.cluster import ModelCluster, ModelConnection
from tests.model.processes import Clock

TARGET = TopicPartition("east.t", 0)
STAMP = Stamp(4711, 3)
FORGOTTEN, YOUNG = 1000, 2000


def batches(counts: Sequence[int], first: int = 0) -> list[bytes]:
    made = []
    for count in counts:
        made.append(seal([OpenRecord(first + n, 1000, tail_of(b"k", b"v%d" % (first + n))) for n in range(count)], codec=0))
        first += count
    return made


class Payloads:
    """Stands in for the buffer's reader: one span, these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.released: list[SpanRef] = []

    def stretches(self, span: SpanRef) -> Iterator[memoryview]:
        yield self.payload(span)

    def payload(self, span: SpanRef) -> memoryview:
        return memoryview(self._data)

    def release(self, spans: Iterable[SpanRef]) -> None:
        self.released += spans


def work_of(counts: Sequence[int], *, at: int = 0, ordinal: int = 0) -> PartitionWork:
    total = sum(counts)
    span = SpanRef("t", 0, "id", 0, 0, total, total, len(counts), 1, 0, 0, (), "p", 0)
    return PartitionWork(TARGET, (span,), Position(at, ordinal, ordinal))


def lane_of(counts: Sequence[int], **position: int) -> _Slot:
    work = work_of(counts, **position)
    return _Slot(work, _sequenced(work, Payloads(b"".join(batches(counts))), STAMP))  # type: ignore[arg-type]


def line_of(lane: _Slot) -> tuple[_Link, ModelConnection]:
    connection = ModelConnection(ModelCluster(Clock(), "west", "east.t", 1, "id"))
    return _Link(connection, [lane]), connection  # type: ignore[arg-type]


def task() -> WriteTask:
    return WriteTask(LaneStore("/nowhere"), ClusterSettings("west", ("b:1",)), STAMP, (), 5.0, 60.0, time.time(), 2**20)


def acknowledge(lane: _Slot, answer: ProduceAnswer | None, records: int, *, newest: int = YOUNG) -> None:
    _acknowledge(lane, answer, SequencedBatch(b"", memoryview(b""), records, newest, 0, 0), FORGOTTEN)
