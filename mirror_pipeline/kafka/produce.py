"""Produce v3 to v8, and v13 by topic id: batches go from where they lie to the socket, only their new 61-byte heads are built.

A broker takes exactly one v2 batch per partition and request, so a request is a mapping from partition to batch.
Requests may be pipelined; the broker works on one request of a connection at a time, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.records.cursor import Cursor, uvarint
from mirror_pipeline.kafka.wire.connection import Connection, Reply
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.kafka.wire.transport import Buffer
from mirror_pipeline.model import TopicPartition

ALL_REPLICAS = -1
_ACKS = Struct(">hi")
_INDEX_SIZE = Struct(">ii")
_COUNT = Struct(">i")
_NAME_SIZE = Struct(">h")
_NO_MESSAGE = b"\0\0\0\0\xff\xff"  # no refused records, no text
_PARTITION = Struct(">ihqqq")  # index, error, base offset, append time, log start
_OLD_PARTITION = Struct(">ihqq")
_PLAIN = Struct(">ihqqqih")  # a partition of v8: the same, then no refused records (0) and no text (-1)
_PLAIN_BY_ID = Struct(">ihqqqbh")  # a partition of v13: the same, then no refused records (1), no text and no tags (0, a byte each)
_INDEX = Struct(">i")
PRODUCE_BY_NAME, PRODUCE_BY_ID = 8, 13  # the last version by topic name that we speak, and the one by topic id
DETAILS_SHOWN = 3  # refused records named in one message


class ProduceAnswer(NamedTuple):
    """What the broker said about one batch; ``wire.codes.after_produce(error)`` says what to do.

    ``base_offset`` is the offset of its first record (-1 on error). When the broker recognised a duplicate it is the
    original one, and ``log_append_time`` is then the batch's largest timestamp; otherwise that is -1 on CreateTime
    topics. ``message`` is the broker's own text, if any.
    """

    error: int
    base_offset: int
    log_append_time: int
    log_start_offset: int
    message: str | None


def send_produce(
    connection: Connection, batches: Mapping[TopicPartition, tuple[Buffer, Buffer]], *, timeout_ms: int, wait: float | None = None
) -> int:
    """Send one batch per partition with acks=all and return the correlation id; do not wait for the answer.

    Args:
        connection: To the broker that leads all the partitions.
        batches: Head (61 bytes) and the rest of each batch; both are sent from where they lie and may be reused
            once this returns.
        timeout_ms: How long the broker may wait for its replicas before it answers 7 REQUEST_TIMED_OUT.
        wait: Seconds that are waited for the answer beyond the connection's own limit; all of ``timeout_ms`` if None.

    Raises:
        ConnectionLost: The connection broke or timed out: whether this and earlier requests were carried out is unknown.
    """
    version, ids = connection.version(Api.PRODUCE), connection.topics.by_name
    if version < PRODUCE_BY_ID or any(tp.topic not in ids for tp in batches):
        version = min(version, PRODUCE_BY_NAME)
    topics: dict[str, list[tuple[int, Buffer, Buffer]]] = {}
    for tp, (head, rest) in batches.items():
        topics.setdefault(tp.topic, []).append((tp.partition, head, rest))
    limit = timeout_ms / 1000 if wait is None else wait
    if version >= PRODUCE_BY_ID:
        return connection.send(Api.PRODUCE, version, _by_id(topics, ids, timeout_ms), wait=limit)
    gap = b"\xff\xff" + _ACKS.pack(ALL_REPLICAS, timeout_ms) + _COUNT.pack(len(topics))
    parts: list[Buffer] = []
    for topic, group in topics.items():
        name = topic.encode()
        gap += _NAME_SIZE.pack(len(name)) + name + _COUNT.pack(len(group))
        for partition, head, rest in group:
            parts += (gap + _INDEX_SIZE.pack(partition, len(head) + len(rest)), head, rest)
            gap = b""
    return connection.send(Api.PRODUCE, version, parts or [gap], wait=limit)


def _by_id(topics: Mapping[str, list[tuple[int, Buffer, Buffer]]], ids: Mapping[str, bytes], timeout_ms: int) -> list[Buffer]:
    """The body from v13 on. Tags of one field, of which there are none, travel with the next field: small parts cost a call each."""
    parts: list[Buffer] = []
    gap = b"\0" + _ACKS.pack(ALL_REPLICAS, timeout_ms) + uvarint(len(topics) + 1)
    for topic, group in topics.items():
        gap += ids[topic] + uvarint(len(group) + 1)
        for partition, head, rest in group:
            parts += (gap + _INDEX.pack(partition) + uvarint(len(head) + len(rest) + 1), head, rest)
            gap = b"\0"
        gap += b"\0"
    return [*parts, gap + b"\0"]


def receive_produce(connection: Connection) -> dict[TopicPartition, ProduceAnswer]:
    """Read the answer to the oldest unanswered ``send_produce`` on this connection.

    Raises:
        ConnectionLost: The connection broke or timed out: the outcome of every unanswered request is unknown.
    """
    reply = connection.receive()
    if reply.api != Api.PRODUCE:
        raise RuntimeError(f"the next answer on this connection is not a produce (request key {reply.api})")
    try:
        return _parse(connection, reply)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        connection.close()
        raise ConnectionLost(f"{connection.peer}: malformed produce answer") from error


def _parse(connection: Connection, reply: Reply) -> dict[TopicPartition, ProduceAnswer]:
    cursor = Cursor(reply.body)
    answer: dict[TopicPartition, ProduceAnswer] = {}
    if reply.version >= PRODUCE_BY_ID:
        _parse_by_id(cursor, connection.topics.names, answer)
        connection.throttled(cursor.int32())
        return answer
    for _ in range(cursor.count()):
        topic, count = cursor.string() or "", cursor.count()
        if reply.version >= 8 and _parse_plain(cursor, topic, count, answer, _PLAIN, 0, -1):
            continue
        for _ in range(count):
            partition, answered = _partition(cursor, reply.version)
            answer[TopicPartition(topic, partition)] = answered
    connection.throttled(cursor.int32())
    return answer


def _parse_by_id(cursor: Cursor, names: Mapping[bytes, str], answer: dict[TopicPartition, ProduceAnswer]) -> None:
    """Topics of a response from v13 on. One that was not asked for is as good as malformed."""
    for _ in range(cursor.compact_count()):
        topic_id, count = cursor.topic_id(), cursor.compact_count()
        if topic_id not in names:
            raise IndexError("a topic id that was not asked for")
        topic = names[topic_id]
        if not _parse_plain(cursor, topic, count, answer, _PLAIN_BY_ID, 1, 0):
            for _ in range(count):
                partition, error, base_offset, append_time, log_start = cursor.numbers(_PARTITION)
                message = _compact_message(cursor)
                cursor.skip_tags()
                answer[TopicPartition(topic, partition)] = ProduceAnswer(error, base_offset, append_time, log_start, message)
        cursor.skip_tags()


def _parse_plain(
    cursor: Cursor, topic: str, count: int, answer: dict[TopicPartition, ProduceAnswer], layout: Struct, none: int, null: int
) -> bool:
    """Read a topic's partitions in one go, as almost all answers allow: none with a text of the broker's. False leaves all as it was."""
    body = cursor.body[cursor.position : cursor.position + count * layout.size]
    if len(body) < count * layout.size:
        return False
    answers: dict[TopicPartition, ProduceAnswer] = {}
    make = tuple.__new__
    for partition, error, base_offset, append_time, log_start, refused, text in layout.iter_unpack(body):
        if refused != none or text != null:
            return False
        answers[make(TopicPartition, (topic, partition))] = make(ProduceAnswer, (error, base_offset, append_time, log_start, None))
    cursor.position += len(body)
    answer.update(answers)
    return True


def _partition(cursor: Cursor, version: int) -> tuple[int, ProduceAnswer]:
    if version >= 5:
        partition, error, base_offset, append_time, log_start = cursor.numbers(_PARTITION)
    else:
        (partition, error, base_offset, append_time), log_start = cursor.numbers(_OLD_PARTITION), -1
    message = _message(cursor) if version >= 8 and not cursor.skip(_NO_MESSAGE) else None
    return partition, ProduceAnswer(error, base_offset, append_time, log_start, message)


def _message(cursor: Cursor) -> str | None:
    refused = [(cursor.int32(), cursor.string()) for _ in range(cursor.count())]
    return _text(refused, cursor.string())


def _compact_message(cursor: Cursor) -> str | None:
    refused = []
    for _ in range(cursor.compact_count()):
        refused.append((cursor.int32(), cursor.compact_string()))
        cursor.skip_tags()
    return _text(refused, cursor.compact_string())


def _text(refused: list[tuple[int, str | None]], said: str | None) -> str | None:
    details = [f"record {index}: {text}" if text else f"record {index}" for index, text in refused[:DETAILS_SHOWN]]
    return "; ".join(filter(None, (said, *details))) or None
