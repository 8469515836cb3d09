"""Produce v3 to v8: batches go from where they lie to the socket, only their new 61-byte heads are built.

A broker takes exactly one v2 batch per partition and request, so a request is a mapping from partition to batch.
Requests may be pipelined; the broker works on one request of a connection at a time, in order.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.connection import Connection, Reply
from mirror_pipeline.kafka.cursor import Cursor
from mirror_pipeline.kafka.messages import Api
from mirror_pipeline.kafka.transport import Buffer
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
    version = connection.version(Api.PRODUCE)
    topics: dict[str, list[tuple[int, Buffer, Buffer]]] = {}
    for tp, (head, rest) in batches.items():
        topics.setdefault(tp.topic, []).append((tp.partition, head, rest))
    gap = b"\xff\xff" + _ACKS.pack(ALL_REPLICAS, timeout_ms) + _COUNT.pack(len(topics))
    parts: list[Buffer] = []
    for topic, group in topics.items():
        name = topic.encode()
        gap += _NAME_SIZE.pack(len(name)) + name + _COUNT.pack(len(group))
        for partition, head, rest in group:
            parts += (gap + _INDEX_SIZE.pack(partition, len(head) + len(rest)), head, rest)
            gap = b""
    return connection.send(Api.PRODUCE, version, parts or [gap], wait=timeout_ms / 1000 if wait is None else wait)


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
    for _ in range(cursor.count()):
        topic, count = cursor.string() or "", cursor.count()
        if reply.version >= 8 and _parse_plain(cursor, topic, count, answer):
            continue
        for _ in range(count):
            partition, answered = _partition(cursor, reply.version)
            answer[TopicPartition(topic, partition)] = answered
    connection.throttled(cursor.int32())
    return answer


def _parse_plain(cursor: Cursor, topic: str, count: int, answer: dict[TopicPartition, ProduceAnswer]) -> bool:
    """Read a topic's partitions in one go, as almost all answers allow: none with a text of the broker's. False leaves all as it was."""
    body = cursor.body[cursor.position : cursor.position + count * _PLAIN.size]
    if len(body) < count * _PLAIN.size:
        return False
    answers: dict[TopicPartition, ProduceAnswer] = {}
    make = tuple.__new__
    for partition, error, base_offset, append_time, log_start, refused, text in _PLAIN.iter_unpack(body):
        if refused or text != -1:
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
    details: list[str] = []
    for _ in range(cursor.count()):
        index, text = cursor.int32(), cursor.string()
        details.append(f"record {index}: {text}" if text else f"record {index}")
    return "; ".join(filter(None, (cursor.string(), *details[:DETAILS_SHOWN]))) or None
