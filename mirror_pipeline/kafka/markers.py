"""WriteTxnMarkers v1 (KIP-98): control markers that take an offset each and that no consumer sees.

The request behind ``abortTransaction`` of Kafka's admin client. A marker for a producer id without an open transaction changes nothing but
the log's end. A broker refuses one whose coordinator epoch is older than that of the producer's last marker in the partition
(``ProducerAppendInfo.checkCoordinatorEpoch``), which keeps out a process that was stopped and goes on later.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from struct import Struct

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.records.cursor import Cursor, uvarint
from mirror_pipeline.kafka.wire.connection import Connection
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.model import MarkerStamp, TopicPartition

MARKERS_VERSION = 1
_PRODUCER = Struct(">qh?")  # producer id, epoch 0, abort
_NUMBER = Struct(">i")
_LONG = Struct(">q")
_PARTITION = Struct(">ih")  # number, error


def write_markers(connection: Connection, counts: Mapping[TopicPartition, int], stamp: MarkerStamp) -> dict[TopicPartition, int]:
    """Append this many markers to each partition, in one request, and wait for the answer; no other request may be under way.

    Returns:
        An error code for each partition. Of several markers of one partition the broker reports one outcome: 0 does not say
        that all of them were appended, the end of the log does.

    Raises:
        ConnectionLost: how many were appended is unknown.
    """
    entries = []
    for number in range(max(counts.values())):
        topics: dict[str, list[int]] = {}
        for tp, count in counts.items():
            if number < count:
                topics.setdefault(tp.topic, []).append(tp.partition)
        entries.append(_entry(topics, stamp))
    connection.send(Api.WRITE_TXN_MARKERS, MARKERS_VERSION, [uvarint(len(entries) + 1) + b"".join(entries) + b"\0"])
    reply = connection.receive()
    try:
        answer = _parse(Cursor(reply.body))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        connection.close()
        raise ConnectionLost(f"{connection.peer}: malformed answer to WriteTxnMarkers") from error
    if missing := counts.keys() - answer.keys():
        raise ConnectionLost(f"{connection.peer}: no answer for the markers of {min(missing)}")
    return answer


def _entry(topics: Mapping[str, list[int]], stamp: MarkerStamp) -> bytes:
    """One marker in each of these partitions."""
    body = _PRODUCER.pack(stamp.producer_id, 0, False) + uvarint(len(topics) + 1)
    for topic, numbers in topics.items():
        name = topic.encode()
        body += uvarint(len(name) + 1) + name + uvarint(len(numbers) + 1) + b"".join(map(_NUMBER.pack, numbers)) + b"\0"
    return body + _NUMBER.pack(stamp.epoch) + b"\0"


def _parse(cursor: Cursor) -> dict[TopicPartition, int]:
    """Error codes; where a partition has several, one that is not 0."""
    found: dict[TopicPartition, int] = {}
    for _ in range(cursor.compact_count()):
        cursor.numbers(_LONG)
        for _ in range(cursor.compact_count()):
            topic = cursor.compact_string() or ""
            for _ in range(cursor.compact_count()):
                number, error = cursor.numbers(_PARTITION)
                cursor.skip_tags()
                tp = TopicPartition(topic, number)
                found[tp] = found.get(tp) or error
            cursor.skip_tags()
        cursor.skip_tags()
    return found
