"""Read one partition's log raw, as consumers of either isolation level see it. Independent of the engine."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import unpack_from

from mirror_pipeline.errors import BrokerError, ProblemFound, WireError
from mirror_pipeline.kafka.client import Connection, WireClient
from mirror_pipeline.kafka.codes import THROTTLING_QUOTA_EXCEEDED, broker_error
from mirror_pipeline.kafka.fetch import THROTTLE_PATIENCE, FetchedPartition, held_back, receive_fetch, send_fetch, throttled_error
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.kafka.records.batch import HEADER_BYTES, BatchHeader, check, decode, headers
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.pieces import Piece

WALK_FETCH_BYTES = 4 << 20
LEAST_WALK_BYTES = 64 << 10
WALK_WAIT_MS = 200
# How long one fetch may keep failing while leaders move or a broker restarts.
WALK_RETRY_SECONDS = 30.0
WALK_PAUSE_SECONDS = 0.2
OFFSET_OUT_OF_RANGE = 1
READ_COMMITTED = 1
READ_UNCOMMITTED = 0
# Requests repeated after an answer without data below the end; then the rest is a hole that compaction left.
EMPTY_WALK_ANSWERS = 3
Deleted = Callable[[int], None]


@dataclass(slots=True)
class WalkedAnswer:
    """One fetch answer: whole batches as (position, header) in ``records``, and the broker's list of aborted transactions."""

    records: memoryview
    batches: list[tuple[int, BatchHeader]]
    aborted: Aborted

    @property
    def plain(self) -> bool:
        """Whether it has no transactional batch and no marker."""
        return not any(header.attributes & 0x30 for _, header in self.batches)


class LogWalk:
    """Fetches ``[position, end)`` of one partition in order; the next request is in flight while an answer is processed.

    Args:
        client: of the cluster; one walk at a time on a connection.
        tp: the partition.
        start: first offset wanted; the first batch may begin before it.
        end: where to stop.
        isolation: 1 leaves out what is not committed, and the answers name aborted transactions.
        line: number of the connection to use.
        deleted: called with the new log start when records of this walk were deleted; without it that is an error.
        size: bytes of one answer.
    """

    def __init__(
        self,
        client: WireClient,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: int,
        line: int = 0,
        deleted: Deleted | None = None,
        size: int = WALK_FETCH_BYTES,
    ) -> None:
        self.position, self.end = start, end
        self.floor = start  # offsets below are deleted, although a batch that holds them may still arrive whole
        self._client, self._tp, self._isolation, self._line, self._deleted = client, tp, isolation, line, deleted
        self._size = size
        self._asked: Connection | None = None
        self._empty = 0
        self._bytes_per_offset = 0.0

    def ask(self) -> None:
        """Send the next request if anything is left to fetch; errors are raised when the answer is read."""
        if self._asked is None and self.position < self.end and self._empty < EMPTY_WALK_ANSWERS:
            try:
                self._send()
            except WireError:
                self._client.forget(self._tp)

    def _send(self) -> Connection:
        size = self._size
        if self._bytes_per_offset:  # near the end: no more than needed
            size = min(size, max(LEAST_WALK_BYTES, int((self.end - self.position) * self._bytes_per_offset * 1.1)))
        connection = self._client.connection(self._client.leader(self._tp), self._line)
        wants = {self._tp: (self.position, size)}
        send_fetch(connection, wants, max_wait_ms=WALK_WAIT_MS, min_bytes=1, max_bytes=size, isolation=self._isolation)
        self._asked = connection
        return connection

    def read(self) -> WalkedAnswer | None:
        """The next answer, None at the end.

        Raises:
            ProblemFound: Records were deleted while they were read, and ``deleted`` was not given.
            BrokerError: The broker refuses, or did so for 30 s.
        """
        while self.position < self.end and self._empty < EMPTY_WALK_ANSWERS:
            data = self._receive()
            if data is None:
                continue
            before = self.position
            batches = list(headers(data.records))
            if batches:
                last = batches[-1][1]
                self.position = max(before, last.next_offset)
                covered = max(1, last.next_offset - batches[0][1].base_offset)
                self._bytes_per_offset = (batches[-1][0] + last.size) / covered
            self._empty = self._empty + 1 if self.position == before else 0
            self.ask()
            if batches:
                return WalkedAnswer(data.records, batches, Aborted(data.aborted if self._isolation == READ_COMMITTED else []))
        self.close()
        return None

    def close(self) -> None:
        """End the walk; the connection of an unanswered request is closed."""
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    def _receive(self) -> FetchedPartition | None:
        """The next answer; None when the position has changed. A request that a client quota holds back is repeated."""
        deadline, patience = time.monotonic() + WALK_RETRY_SECONDS, time.monotonic() + THROTTLE_PATIENCE
        while True:
            error, throttled = self._attempt(), False
            if not isinstance(error, WireError):
                return error
            if isinstance(error, BrokerError) and error.code == THROTTLING_QUOTA_EXCEEDED:
                throttled, deadline = True, time.monotonic() + WALK_RETRY_SECONDS  # it answers, so it is not down
            if time.monotonic() > (patience if throttled else deadline) or not error.retryable:
                raise error
            if not throttled:
                self._client.forget(self._tp)
                time.sleep(WALK_PAUSE_SECONDS)

    def _attempt(self) -> FetchedPartition | WireError | None:
        try:
            connection = self._asked or self._send()
            self._asked = None
            answers = receive_fetch(connection)
            if held_back(connection, answers, (self._tp,)):
                return throttled_error(connection)
            answer = answers[self._tp]
            if answer.error == OFFSET_OUT_OF_RANGE:
                self._out_of_range()
                return None
            return broker_error(answer.error, f"fetch of {self._tp} at offset {self.position}") if answer.error else answer
        except WireError as lost:
            return lost

    def _out_of_range(self) -> None:
        start, end = log_range(self._client, [self._tp], isolation=self._isolation)[self._tp]
        if self._deleted is None:
            raise ProblemFound(f"{self._tp}: offset {self.position} was deleted while the log was read")
        if start > self.position:
            self.position = self.floor = start
            self._deleted(start)
        else:  # the log was truncated: nothing more to read
            self.end = min(self.end, end, self.position)


def read_log(
    client: WireClient,
    tp: TopicPartition,
    start: int,
    end: int,
    *,
    isolation: int,
    line: int = 0,
    deleted: Deleted | None = None,
    timeless: bool = False,
    size: int = WALK_FETCH_BYTES,
) -> Iterator[Piece]:
    """Every batch with data in ``[start, end)``, checked by CRC, in order; control batches left out.

    With ``isolation`` 1 records of aborted transactions are left out too, found by the broker's list of aborted
    transactions and the abort markers (KIP-98). With ``timeless`` all records have time 0, for a target that sets timestamps itself.

    Raises:
        ProblemFound: Records were deleted while they were read, and ``deleted`` was not given.
        BrokerError: The broker refuses, or did so for 30 s.
        CorruptBatch: A checksum or a length is wrong.
    """
    walk = LogWalk(client, tp, start, end, isolation=isolation, line=line, deleted=deleted, size=size)
    low = start
    try:
        while (answer := walk.read()) is not None:
            low = max(low, walk.floor)
            for at, header in answer.batches:
                check(answer.records, at, header)
                batch = answer.records[at : at + header.size]
                if not answer.aborted.hides(header, batch) and header.records and header.next_offset > low and header.base_offset < end:
                    yield Piece(header, batch, low, end, timeless)
                low = max(low, header.next_offset)
    finally:
        walk.close()


class Aborted:
    """Which batches of one fetch answer belong to aborted transactions."""

    def __init__(self, listed: list[tuple[int, int]]) -> None:
        self._waiting = [(first, producer) for producer, first in listed]
        heapq.heapify(self._waiting)
        self._open: set[int] = set()

    def hides(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether a consumer does not see the batch: it is a marker, or part of an aborted transaction."""
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
