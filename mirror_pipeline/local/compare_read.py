"""Reading one partition's log raw, as consumers of either isolation level see it. Knows nothing of the engine."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator
from struct import unpack_from

from mirror_pipeline.errors import ConnectionLost, ProblemFound, WireError
from mirror_pipeline.local.compare_align import Piece
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.wire.batch import HEADER_BYTES, BatchHeader, check, decode, headers
from mirror_pipeline.wire.client import WireClient
from mirror_pipeline.wire.codes import broker_error
from mirror_pipeline.wire.fetch import FetchedPartition, fetch

FETCH_BYTES = 4 << 20
FETCH_WAIT_MS = 200
# How long one fetch may go on failing while leaders move or a broker restarts.
RETRY_SECONDS = 30.0
RETRY_PAUSE_SECONDS = 0.2
OFFSET_OUT_OF_RANGE = 1
READ_COMMITTED = 1
READ_UNCOMMITTED = 0
EARLIEST = -2
LATEST = -1
# An answer without data below the end: asked again so often, then the rest is a hole that compaction left.
EMPTY_ANSWERS = 3


def log_range(client: WireClient, partitions: list[TopicPartition], *, isolation: int) -> dict[TopicPartition, tuple[int, int]]:
    """First offset and end of each partition; the end is the last stable offset when ``isolation`` is 1.

    Raises:
        BrokerError: The broker refuses to tell.
    """
    starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST), isolation=isolation)
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST), isolation=isolation)
    for tp in partitions:
        for answer in (starts[tp], ends[tp]):
            if answer.error:
                raise broker_error(answer.error, f"offsets of {tp}")
    return {tp: (starts[tp].offset, ends[tp].offset) for tp in partitions}


def read_log(client: WireClient, tp: TopicPartition, start: int, end: int, *, isolation: int) -> Iterator[Piece]:
    """Every batch with data in ``[start, end)``, checked by CRC, in order; control batches left out.

    With ``isolation`` 1 records of aborted transactions are left out too, told from the broker's list of aborted
    transactions and the abort markers (KIP-98).

    Raises:
        ProblemFound: Records were deleted while they were read.
        BrokerError: The broker refuses, or did so for 30 s.
        CorruptBatch: A checksum or a length is wrong.
    """
    position = start
    empty = 0
    while position < end and empty < EMPTY_ANSWERS:
        answer = _fetch(client, tp, position, isolation)
        aborted = _Aborted(answer.aborted if isolation == READ_COMMITTED else [])
        before = position
        for at, header in headers(answer.records):
            check(answer.records, at, header)
            batch = answer.records[at : at + header.size]
            if not aborted.hides(header, batch) and header.records and header.next_offset > position and header.base_offset < end:
                yield Piece(header, batch, position, end)
            position = max(position, header.next_offset)
        empty = empty + 1 if position == before else 0


class _Aborted:
    """Which batches of one fetch answer belong to aborted transactions."""

    def __init__(self, listed: list[tuple[int, int]]) -> None:
        self._waiting = [(first, producer) for producer, first in listed]
        heapq.heapify(self._waiting)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether the batch is no data for a consumer: a marker, or part of an aborted transaction."""
        while self._waiting and self._waiting[0][0] <= header.last_offset:
            self._open.add(heapq.heappop(self._waiting)[1])
        if header.is_control:
            if is_abort_marker(batch):
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def is_abort_marker(batch: memoryview) -> bool:
    """Whether a control batch ends a transaction by abort: its key is version and type, type 0 is abort (KIP-98)."""
    if len(batch) <= HEADER_BYTES:
        return False
    key = decode(batch)[0].key
    return key is not None and len(key) >= 4 and unpack_from(">h", key, 2)[0] == 0


def _fetch(client: WireClient, tp: TopicPartition, position: int, isolation: int) -> FetchedPartition:
    deadline = time.monotonic() + RETRY_SECONDS
    wants = {tp: (position, FETCH_BYTES)}
    while True:
        error: WireError
        try:
            connection = client.connection(client.leader(tp))
            answer = fetch(connection, wants, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES, isolation=isolation)[tp]
            if not answer.error:
                return answer
            if answer.error == OFFSET_OUT_OF_RANGE:
                raise ProblemFound(f"{tp}: offset {position} was deleted while the log was read")
            error = broker_error(answer.error, f"fetch of {tp} at offset {position}")
        except ConnectionLost as lost:
            error = lost
        if time.monotonic() > deadline or not error.retryable:
            raise error
        client.forget(tp)
        time.sleep(RETRY_PAUSE_SECONDS)
