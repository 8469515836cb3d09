"""Fetch v4 to v11, and v13 by topic id: record batches of many partitions as views into the response, nothing copied.

No fetch sessions (KIP-227): each request names its partitions, so any connection and any process may send it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from struct import Struct

from mirror_pipeline.errors import BrokerError, ConnectionLost
from mirror_pipeline.kafka.codes import THROTTLING_QUOTA_EXCEEDED, broker_error
from mirror_pipeline.kafka.records.cursor import Cursor, uvarint
from mirror_pipeline.kafka.wire.connection import Connection, Reply
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.model import TopicPartition

CONSUMER_REPLICA = -1  # replica id of a client
NO_SESSION = struct.pack(">ii", 0, -1)  # session id 0, epoch -1: a full fetch that opens no session
# Seconds that a fetch is repeated while a client quota withholds its responses. A broker counts over about ten seconds; a batch larger
# than the quota allows in that time never comes (Kafka sources, ``KafkaApis.handleFetchRequest``).
THROTTLE_PATIENCE = 120.0
# Bytes. A broker drops a response that would exceed the quota and throttles the client for as long as all of it takes: small responses
# use the quota better than large ones, which lose whole seconds.
LEAST_SHARE_BYTES = 64 * 1024
FIRST_SHARE = 1 << 20
_HEAD = Struct(">iiiib")
_PARTITION = Struct(">ihqqq")  # index, error, high watermark, last stable offset, log start
_OLD_PARTITION = Struct(">ihqq")
_ABORTED = Struct(">qq")
_ABORTED_TAGGED = Struct(">qqx")  # brokers give these no tags
_WANT_BY_ID = Struct(">iiqiqib")  # partition, leader epoch, offset, last fetched epoch, log start, most bytes, no tags
FETCH_BY_NAME, FETCH_BY_ID = 11, 13  # the last version by topic name that we speak, and the one by topic id
Wants = Mapping[TopicPartition, tuple[int, int]]


@dataclass(slots=True)
class FetchedPartition:
    """One partition of a fetch answer.

    ``records`` is a view of whole batches, the last one possibly cut short; the first may begin before the offset
    asked for. It stays valid for as long as it, or any slice of it, is held. ``aborted`` lists (producer id, first
    offset) of aborted transactions; with isolation 1 nothing at or past ``last_stable_offset`` is returned.
    """

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    records: memoryview


def fetch(
    connection: Connection,
    wants: Wants,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: int = 1,
    leader_epochs: Mapping[TopicPartition, int] | None = None,
    patience: float = THROTTLE_PATIENCE,
) -> dict[TopicPartition, FetchedPartition]:
    """Read batches from the leader at ``connection``; responses that a client quota withholds are requested again.

    Args:
        connection: To the broker that leads all the partitions.
        wants: Offset to start at and most bytes to take, per partition; a first batch larger than that still comes whole.
        max_wait_ms: How long the broker waits for ``min_bytes`` to be there.
        min_bytes: 1 answers as soon as there is anything.
        max_bytes: Most bytes of the whole answer, with the same exception for one batch.
        isolation: 1 stops at the last stable offset and lists aborted transactions, 0 reads all.
        leader_epochs: Epochs the caller believes in; the broker then answers 74 or 75 when they differ from its own (KIP-320).
        patience: Seconds to retry while a client quota withholds the response.

    Returns:
        An answer for every partition wanted.

    Raises:
        ConnectionLost: The connection broke or timed out, or the answer leaves out a partition.
        BrokerError: The broker refused the whole request (89 when it throttled for too long); errors of single partitions are
            in the answer.
    """
    deadline = time.monotonic() + patience
    while True:
        send_fetch(
            connection,
            wants,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation=isolation,
            leader_epochs=leader_epochs,
        )
        answers = receive_fetch(connection)
        if not held_back(connection, answers, wants):
            return answers
        if time.monotonic() + connection.muted > deadline:
            raise throttled_error(connection)


def held_back(connection: Connection, answers: Mapping[TopicPartition, FetchedPartition], partitions: Collection[TopicPartition]) -> bool:
    """Whether a client quota has withheld a response (KIP-219): request it again, the connection waits out the throttling by itself.

    A broker that throttles answers at once, without any partition. Every other answer names all that were asked.

    Raises:
        ConnectionLost: Partitions are missing, and the broker does not throttle.
    """
    missing = next((tp for tp in partitions if tp not in answers), None)
    if missing is None:
        return False
    if not answers and connection.throttle > 0:
        return True
    connection.close()
    message = f"{connection.peer}: the fetch response does not contain {missing}"
    raise ConnectionLost(message, hint="it is requested again; check the broker's log")


def throttled_error(connection: Connection) -> BrokerError:
    """The error for a broker whose client quota has withheld a response for too long."""
    error = broker_error(
        THROTTLING_QUOTA_EXCEEDED, f"{connection.peer}: fetch", "a client quota throttles the response"
    )
    error.hint = "raise consumer_byte_rate of this user: within ten seconds it must allow the largest batch"
    return error


def send_fetch(
    connection: Connection,
    wants: Wants,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: int = 1,
    leader_epochs: Mapping[TopicPartition, int] | None = None,
) -> int:
    """Send a fetch request as ``fetch`` does and return its correlation id; ``receive_fetch`` reads the answer."""
    version, ids = connection.version(Api.FETCH), connection.topics.by_name
    if version < FETCH_BY_ID or any(tp.topic not in ids for tp in wants):
        version = min(version, FETCH_BY_NAME)
    if connection.fetch_share is not None:
        max_bytes = min(max_bytes, connection.fetch_share)
    parts = [_HEAD.pack(CONSUMER_REPLICA, max_wait_ms, min_bytes, max_bytes, isolation)]
    if version >= 7:
        parts.append(NO_SESSION)
    ordered = sorted(wants)
    topics = [(topic, list(group)) for topic, group in groupby(ordered, key=lambda tp: tp.topic)]
    if version >= FETCH_BY_ID:
        _append_by_id(parts, ((ids[topic], group) for topic, group in topics), len(topics), wants, leader_epochs or {})
        return connection.send(Api.FETCH, version, (b"".join(parts),), wait=max_wait_ms / 1000)
    parts.append(struct.pack(">i", len(topics)))
    for topic, group in topics:
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si", len(name), name, len(group)))
        for tp in group:
            parts.append(_want(version, tp, wants[tp], leader_epochs.get(tp, -1) if leader_epochs else -1))
    if version >= 7:
        parts.append(b"\0\0\0\0")  # forgotten topics: none
    if version >= 11:
        parts.append(b"\0\0")  # rack: empty, so that the leader answers
    return connection.send(Api.FETCH, version, (b"".join(parts),), wait=max_wait_ms / 1000)


def _append_by_id(
    parts: list[bytes],
    topics: Iterable[tuple[bytes, list[TopicPartition]]],
    count: int,
    wants: Wants,
    leader_epochs: Mapping[TopicPartition, int],
) -> None:
    """The rest of a request from v13 on: topics, no forgotten ones, no rack, no tags."""
    parts.append(uvarint(count + 1))
    for topic_id, group in topics:
        parts.append(topic_id + uvarint(len(group) + 1))
        for tp in group:
            offset, max_bytes = wants[tp]
            parts.append(_WANT_BY_ID.pack(tp.partition, leader_epochs.get(tp, -1), offset, -1, -1, max_bytes, 0))
        parts.append(b"\0")
    parts.append(b"\1\1\0")


def receive_fetch(connection: Connection) -> dict[TopicPartition, FetchedPartition]:
    """Read the answer to the oldest unanswered ``send_fetch`` on this connection."""
    return _answered(connection, connection.receive())


def arrived_fetch(connection: Connection) -> dict[TopicPartition, FetchedPartition] | None:
    """As ``receive_fetch``, but None, without waiting, while the response is incomplete."""
    reply = connection.arrived()
    return None if reply is None else _answered(connection, reply)


def _answered(connection: Connection, reply: Reply) -> dict[TopicPartition, FetchedPartition]:
    if reply.api != Api.FETCH:
        raise RuntimeError(f"the next answer on this connection is not a fetch (request key {reply.api})")
    try:
        answers = _parse(connection, reply)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        connection.close()
        raise ConnectionLost(f"{connection.peer}: malformed fetch answer") from error
    if connection.fetch_share is not None or connection.throttle:
        _share(connection, bool(answers))
    return answers


def _share(connection: Connection, answered: bool) -> None:
    """Ask for less after a response that the quota withheld, and gradually for more again after others."""
    share = connection.fetch_share or FIRST_SHARE
    connection.fetch_share = share + share // 16 if answered else max(LEAST_SHARE_BYTES, share // 2)


def _want(version: int, tp: TopicPartition, want: tuple[int, int], leader_epoch: int) -> bytes:
    offset, max_bytes = want
    if version >= 9:
        return struct.pack(">iiqqi", tp.partition, leader_epoch, offset, -1, max_bytes)
    if version >= 5:
        return struct.pack(">iqqi", tp.partition, offset, -1, max_bytes)
    return struct.pack(">iqi", tp.partition, offset, max_bytes)


def _parse(connection: Connection, reply: Reply) -> dict[TopicPartition, FetchedPartition]:
    cursor = Cursor(reply.body)
    connection.throttled(cursor.int32())
    if reply.version >= 7:
        error, _session = cursor.int16(), cursor.int32()
        if error:
            raise broker_error(error, f"{connection.peer}: fetch")
    answer: dict[TopicPartition, FetchedPartition] = {}
    if reply.version >= FETCH_BY_ID:
        _parse_by_id(cursor, connection.topics.names, answer)
        return answer
    for _ in range(cursor.count()):
        topic = cursor.string() or ""
        for _ in range(cursor.count()):
            partition, fetched = _partition(cursor, reply.version)
            answer[TopicPartition(topic, partition)] = fetched
    return answer


def _parse_by_id(cursor: Cursor, names: Mapping[bytes, str], answer: dict[TopicPartition, FetchedPartition]) -> None:
    """Topics of a response from v13 on. One that was not asked for is as good as malformed."""
    for _ in range(cursor.compact_count()):
        topic_id = cursor.topic_id()
        if topic_id not in names:
            raise IndexError("a topic id that was not asked for")
        for _ in range(cursor.compact_count()):
            partition, error, high_watermark, stable, log_start = cursor.numbers(_PARTITION)
            aborted = [cursor.numbers(_ABORTED_TAGGED)[:2] for _ in range(cursor.compact_count())]
            cursor.int32()  # preferred read replica: none without a rack
            fetched = FetchedPartition(error, high_watermark, stable, log_start, aborted, cursor.compact_records())
            cursor.skip_tags()
            answer[TopicPartition(names[topic_id], partition)] = fetched
        cursor.skip_tags()


def _partition(cursor: Cursor, version: int) -> tuple[int, FetchedPartition]:
    if version >= 5:
        partition, error, high_watermark, stable, log_start = cursor.numbers(_PARTITION)
    else:
        (partition, error, high_watermark, stable), log_start = cursor.numbers(_OLD_PARTITION), -1
    aborted = [cursor.numbers(_ABORTED) for _ in range(cursor.count())]
    if version >= 11:
        cursor.int32()  # preferred read replica: none without a rack
    return partition, FetchedPartition(error, high_watermark, stable, log_start, aborted, cursor.records())
