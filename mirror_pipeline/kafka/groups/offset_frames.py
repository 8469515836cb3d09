"""The two messages about groups that hold a field for every partition, read and written without kafka-python's schemas.

A round over 1,000 groups of 10 partitions reads 20,000 committed offsets and writes 10,000: generic code takes most of its time.
Layouts are those of KIP-482: strings and arrays begin with their length plus one as an unsigned varint, 0 means null, and each
structure ends with its tagged fields, of which these versions have none. A broker that sends some all the same is read correctly.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from mirror_pipeline.kafka.records.cursor import Cursor, uvarint
from mirror_pipeline.model import TopicPartition

FETCH_VERSION, COMMIT_VERSION = 8, 8

# Partition, committed offset, leader epoch.
_COMMITTED = struct.Struct(">iqi")
# The same with what nearly always follows: length of the metadata plus one, error code, number of tagged fields.
_USUAL = struct.Struct(">iqiBhB")
# Generation and member of nobody in particular: -1, an empty string, no instance id.
_NO_MEMBER = b"\xff\xff\xff\xff\x01\x00"
_NO_TAGS = b"\0"
_NO_EPOCH = -1


class Commit(NamedTuple):
    """A committed offset, the next one to read, with the metadata string that the consumer left with it."""

    offset: int
    metadata: str = ""


Commits = dict[TopicPartition, Commit]


def commit_body(group: str, commits: Mapping[TopicPartition, Commit]) -> bytes:
    """An OffsetCommit request of version 8 for a group without members."""
    topics = [(name, list(own)) for name, own in groupby(sorted(commits), key=lambda tp: tp.topic)]
    parts = [_text(group), _NO_MEMBER, uvarint(len(topics) + 1)]
    for name, own in topics:
        parts += (_text(name), uvarint(len(own) + 1))
        for tp in own:
            offset, metadata = commits[tp]
            parts += (_COMMITTED.pack(tp.partition, offset, _NO_EPOCH), _text(metadata), _NO_TAGS)
        parts.append(_NO_TAGS)
    parts.append(_NO_TAGS)
    return b"".join(parts)


def commit_codes(body: memoryview) -> tuple[int, dict[TopicPartition, int]]:
    """Throttle time in milliseconds and the error code of each partition in an OffsetCommit response of version 8."""
    cursor = Cursor(body)
    throttle, codes = cursor.int32(), {}
    for _ in range(cursor.compact_count()):
        name = cursor.compact_string() or ""
        for _ in range(cursor.compact_count()):
            partition = cursor.int32()
            codes[TopicPartition(name, partition)] = cursor.int16()
            cursor.skip_tags()
        cursor.skip_tags()
    return throttle, codes


def fetched_offsets(body: memoryview) -> tuple[int, list[tuple[str, int, Commits]]]:
    """Throttle time in milliseconds, and (group, error code, commits) of each group in an OffsetFetch response of version 8.

    Partitions with an error and partitions without a commit are left out.
    """
    cursor = Cursor(body)
    throttle = cursor.int32()
    return throttle, list(_groups(cursor))


def _groups(cursor: Cursor) -> Iterator[tuple[str, int, Commits]]:
    for _ in range(cursor.compact_count()):
        name, commits = cursor.compact_string() or "", Commits()
        for _ in range(cursor.compact_count()):
            topic = cursor.compact_string() or ""
            for _ in range(cursor.compact_count()):
                partition, offset, metadata, error = _committed(cursor)
                if not error and offset >= 0:
                    commits[TopicPartition(topic, partition)] = Commit(offset, metadata)
            cursor.skip_tags()
        error = cursor.int16()
        cursor.skip_tags()
        yield name, error, commits


def _committed(cursor: Cursor) -> tuple[int, int, str, int]:
    """Partition, committed offset, metadata and error code of one partition."""
    at = cursor.position
    partition, offset, _, size, error, tags = cursor.numbers(_USUAL)
    if size <= 1 and not tags:
        return partition, offset, "", error
    cursor.position = at
    partition, offset, _ = cursor.numbers(_COMMITTED)
    metadata, error = cursor.compact_string() or "", cursor.int16()
    cursor.skip_tags()
    return partition, offset, metadata, error


def _text(value: str) -> bytes:
    encoded = value.encode()
    return uvarint(len(encoded) + 1) + encoded
