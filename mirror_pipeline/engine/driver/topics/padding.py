"""Moves the end of an empty target log to where the copy begins (``offsets: exact``): blank records, deleted at once.

Markers for a log that begins at a billion would take hours. Here a million offsets take less than a megabyte. Sequences are offsets: so a
broker refuses or recognises what a process sends that was stopped and goes on later. Padding needs DeleteRecords, which compacted topics
do not take: theirs, and short stretches, get markers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping

from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.write.marker_epochs import marker_producer
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import Connection, WireClient
from mirror_pipeline.kafka.codes import LEADER_NOT_AVAILABLE, MESSAGE_TOO_LARGE, OUT_OF_ORDER_SEQUENCE, broker_error
from mirror_pipeline.kafka.fetch import fetch
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.kafka.records.blank import blank_batch
from mirror_pipeline.kafka.records.header import headers
from mirror_pipeline.model import Stamp, TopicPartition

log = logging.getLogger(__name__)

# Fewer offsets get markers: that takes seconds, and no further right.
WORTH_PADDING = 100_000
BATCH_RECORDS, LEAST_BATCH_RECORDS = 500_000, 1000
BATCHES_IN_FLIGHT = 4
# Deleted together, so that neither the log grows large nor a consumer has many of them to skip.
DELETED_TOGETHER = 10_000_000
# Other topics are prepared in between.
PIECE_SECONDS = 5.0
LOOK_BYTES = 4096


class StillPadding(Exception):
    """The logs do not reach the copy's first offsets yet; the text says how far they are."""


class Padding:
    """Pads a lane's target logs; used by the thread that prepares topics."""

    def __init__(self, context: LaneContext, client: WireClient, admin: Admin) -> None:
        self._context = context
        self._client = client
        self._admin = admin
        self._records = BATCH_RECORDS

    def _stamp(self) -> Stamp:
        """The markers' producer: a log's records have another one, whose sequences count them."""
        return Stamp(marker_producer(self._context, self._client).producer_id, 0)

    def padded(self, topic: str, bounds: Mapping[int, tuple[int, int]], starts: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """The bounds of the target's logs, those of padded partitions as they are now.

        Args:
            topic: the target topic.
            bounds: log start and end of its partitions.
            starts: where the copy of each new partition begins.

        Raises:
            StillPadding: it takes longer than some seconds; call again.
            BrokerError, ConnectionLost, ClusterUnreachable: the target refuses, or does not answer; what is padded stays so.
        """
        until = time.monotonic() + PIECE_SECONDS
        now, paddable = dict(bounds), True
        for number, start in starts.items():
            target, (first, end) = TopicPartition(topic, number), now[number]
            if first < end <= start and self._is_padding(target, first, end):  # of a run that was killed
                self._admin.delete_records({target: end})
                first = end
                now[number] = end, end
            if first < end or start - end < WORTH_PADDING or not paddable:
                continue
            paddable = self._may_delete(target, first)
            if paddable:
                end = self._pad(target, end, start, until)
                now[number] = end, end
                if end < start:
                    raise StillPadding(f"padding {target} up to the copy's first offset {start:,}: {end:,} offsets are there")
        return now

    def _is_padding(self, target: TopicPartition, first: int, end: int) -> bool:
        """Whether the log holds blank records of ours, and nothing else."""
        ours = self._stamp().producer_id
        connection = self._client.connection(self._client.leader(target))
        for at in (first, end - 1):
            answer = fetch(connection, {target: (at, LOOK_BYTES)}, max_wait_ms=0, min_bytes=0, max_bytes=LOOK_BYTES, patience=0.0)[target]
            if answer.error:
                raise broker_error(answer.error, str(target))
            found = next((header for _, header in headers(answer.records)), None)
            if found is None or found.is_control or found.producer_id != ours:
                return False
        return True

    def _may_delete(self, target: TopicPartition, first: int) -> bool:
        """Whether DeleteRecords is allowed there, tried where nothing is to delete."""
        try:
            self._admin.delete_records({target: first})
        except BrokerError as error:
            if error.retryable:
                raise
            log.info("padding_refused topic=%s: markers fill the offsets before the copy's first: %s", target.topic, error.message)
            return False
        return True

    def _pad(self, target: TopicPartition, end: int, start: int, until: float) -> int:
        """The new end of the log, whose records are deleted."""
        stamp = self._stamp()
        while end < start and time.monotonic() < until:
            end = self._send(target, stamp, end, min(start, end + DELETED_TOGETHER), until)
            crash_point("padding.before_delete")
            self._admin.delete_records({target: end})
        return end

    def _send(self, target: TopicPartition, stamp: Stamp, end: int, to: int, until: float) -> int:
        """Send batches up to ``to`` or until time is over, returns the end of the log."""
        connection = self._client.connection(self._client.leader(target))
        waiting: deque[int] = deque()
        sent = end
        while waiting or (sent < to and time.monotonic() < until):
            while sent < to and len(waiting) < BATCHES_IN_FLIGHT and time.monotonic() < until:
                count = min(self._records - sent % self._records, to - sent)
                self._send_one(connection, target, stamp, sent, count)
                waiting.append(count)
                sent += count
            answer, count = receive_produce(connection)[target], waiting.popleft()
            if answer.error:
                for _ in waiting:
                    receive_produce(connection)
                self._refused(target, answer.error)
                return end
            if answer.base_offset != end:
                raise broker_error(LEADER_NOT_AVAILABLE, str(target), f"blank records lie at offset {answer.base_offset}, not at {end}")
            end += count
        return end

    def _send_one(self, connection: Connection, target: TopicPartition, stamp: Stamp, at: int, count: int) -> None:
        self._context.hold.check()
        connection.wait_out_throttle()
        batch = blank_batch(count, stamp, at, at_ms=int(time.time() * 1000))
        crash_point("padding.before_send")
        send_produce(connection, {target: batch}, timeout_ms=int(self._client.timeout * 500), wait=0.0)

    def _refused(self, target: TopicPartition, code: int) -> None:
        """Go on with smaller batches where they are too large. Raises BrokerError."""
        self._client.forget(target)
        if code == MESSAGE_TOO_LARGE and self._records > LEAST_BATCH_RECORDS:
            self._records //= 10
            return
        if code == OUT_OF_ORDER_SEQUENCE:  # a late batch has arrived since the end of the log was read
            raise broker_error(LEADER_NOT_AVAILABLE, str(target), "the log has grown meanwhile")
        raise broker_error(code, str(target))
