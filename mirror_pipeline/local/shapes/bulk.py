"""Bulk of unique records at the speed of the broker, for performance tests: one prepared batch, patched and sent raw."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product

from crc32c import crc32c

from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, OpenRecord, seal, tail_of
from mirror_pipeline.kafka.records.compression import compress
from mirror_pipeline.kafka.records.header import CHECKED_FIELDS, HEAD, LOG_OVERHEAD
from mirror_pipeline.local.shapes.ground import CODECS, Ground
from mirror_pipeline.model import TopicPartition

# Requests under way at once: hides the round trip, and what a broker queues stays small.
PIPELINE = 4
PRODUCE_TIMEOUT_MS = 60_000
# A broker refuses requests over 100 MiB (socket.request.max.bytes).
REQUEST_BYTES = 16 << 20
# What a value begins with: partition and index, in digits of fixed width so that they can be replaced in place.
MARK = b"pppppp/iiiiiiiiiiiiii "
SMALLEST_RECORD = len(MARK)


def fill_bulk(
    bootstrap: str,
    topic: str,
    partitions: int,
    total_bytes: int,
    record_bytes: int = 1_000,
    batch_bytes: int = 16_384,
    codec: str = "none",
    *,
    create: bool = True,
    repeats: int = 1,
) -> int:
    """Fill a topic with values that are all different, at hundreds of MB/s where the broker takes them.

    Args:
        bootstrap: bootstrap servers of a cluster without security.
        topic: topic to fill.
        partitions: its partition count; all get the same number of batches.
        total_bytes: about this many bytes of values are written (uncompressed size).
        record_bytes: bytes of one value, at least 22; there are no keys.
        batch_bytes: about this many bytes of records in a batch, before compression.
        codec: none, gzip, snappy, lz4 or zstd.
        create: create the topic; False when it exists.
        repeats: how often a value's text is repeated inside it: with 1 only codecs that count characters (gzip, zstd) make
            it smaller, to a half; with 2 every codec does, by that factor more.

    Returns:
        Records written.

    Raises:
        BrokerError: The broker refuses a batch.
    """
    ground = Ground(bootstrap)
    with closing(ground):
        if create:
            ground.create(topic, partitions, {"max.message.bytes": str(max(1_048_588, batch_bytes * 2))})
        stencil = Stencil(max(record_bytes, SMALLEST_RECORD), max(1, batch_bytes // record_bytes), CODECS[codec], repeats)
        for partition in range(partitions):
            ground.append(topic, partition, stencil.batch(partition, 0))  # waits for the leader in a new topic
        rounds = max(1, round(total_bytes / (stencil.record_bytes * stencil.records * partitions)))
        _send(ground, topic, partitions, stencil, rounds)
    return stencil.records * rounds * partitions


class Stencil:
    """A batch of ``records`` equal in size, in which partition and index of each value are replaced in place."""

    def __init__(self, record_bytes: int, records: int, codec: int, repeats: int = 1) -> None:
        self.record_bytes, self.records, self.codec = record_bytes, records, codec
        filler = random.Random(0).randbytes(record_bytes * records // 2 + record_bytes).hex().encode()  # noqa: S311 - contents, no secret
        length = record_bytes - len(MARK)
        texts = (filler[i * record_bytes : i * record_bytes + -(-length // repeats)] for i in range(records))
        bodies = [(text * repeats)[:length] for text in texts]
        self._batch = bytearray(seal([OpenRecord(i, 0, tail_of(None, MARK + body)) for i, body in enumerate(bodies)], codec=0))
        self._places = list(self._find())

    def _find(self) -> Iterator[int]:
        place = self._batch.find(MARK, HEADER_BYTES)
        while place >= 0:
            yield place
            place = self._batch.find(MARK, place + self.record_bytes)

    def batch(self, partition: int, first_index: int) -> bytes:
        """The batch for records ``first_index ..`` of a partition."""
        batch, mark = self._batch, b"%06d/" % partition
        for index, place in enumerate(self._places, first_index):
            batch[place : place + 21] = mark + b"%014d" % index
        body = memoryview(batch)[HEADER_BYTES:] if not self.codec else memoryview(compress(self.codec, bytes(batch[HEADER_BYTES:])))
        now = int(time.time() * 1000)
        fields = CHECKED_FIELDS.pack(self.codec, self.records - 1, now, now, -1, -1, -1, self.records)
        head = HEAD.pack(0, HEADER_BYTES - LOG_OVERHEAD + len(body), -1, 2, crc32c(body, crc32c(fields))) + fields
        return b"".join((head, body))


def _send(ground: Ground, topic: str, partitions: int, stencil: Stencil, rounds: int) -> None:
    """Many partitions in every request, the next one prepared while brokers work; the first batch is there already."""
    leaders: dict[int, list[TopicPartition]] = {}
    for tp in (TopicPartition(topic, p) for p in range(partitions)):
        leaders.setdefault(ground.wire.leader(tp), []).append(tp)
    for node, owned in leaders.items():
        connection = ground.wire.connection(node)
        waiting = 0
        for number, some in product(range(1, rounds), _requests(owned, len(stencil.batch(0, 0)))):
            batches = {tp: stencil.batch(tp.partition, number * stencil.records) for tp in some}
            send_produce(
                connection,
                {tp: (b[:HEADER_BYTES], memoryview(b)[HEADER_BYTES:]) for tp, b in batches.items()},
                timeout_ms=PRODUCE_TIMEOUT_MS,
            )
            waiting += 1
            if waiting == PIPELINE:
                _receive(ground, node)
                waiting -= 1
        for _ in range(waiting):
            _receive(ground, node)


def _requests(owned: Sequence[TopicPartition], batch_bytes: int) -> list[Sequence[TopicPartition]]:
    """The partitions of a broker, one batch each, in requests of at most ``REQUEST_BYTES``."""
    each = max(1, REQUEST_BYTES // batch_bytes)
    return [owned[start : start + each] for start in range(0, len(owned), each)]


def _receive(ground: Ground, node: int) -> None:
    for tp, answer in receive_produce(ground.wire.connection(node)).items():
        if answer.error:
            raise broker_error(answer.error, f"raw batch to {tp}", answer.message)
