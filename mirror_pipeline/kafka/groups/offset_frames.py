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

from mirror_pipeline.model import TopicPartition

FETCH_VERSION, COMMIT_VERSION = 8, 8

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
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
    parts = [_text(group), _NO_MEMBER, _varint(len(topics) + 1)]
    for name, own in topics:
        parts += (_text(name), _varint(len(own) + 1))
        for tp in own:
            offset, metadata = commits[tp]
            parts += (_COMMITTED.pack(tp.partition, offset, _NO_EPOCH), _text(metadata), _NO_TAGS)
        parts.append(_NO_TAGS)
    parts.append(_NO_TAGS)
    return b"".join(parts)


def commit_codes(body: memoryview) -> tuple[int, dict[TopicPartition, int]]:
    """Throttle time in milliseconds and the error code of each partition in an OffsetCommit response of version 8."""
    cursor = _Cursor(bytes(body))
    throttle, codes = cursor.int32(), {}
    for _ in range(cursor.count()):
        name = cursor.text()
        for _ in range(cursor.count()):
            partition = cursor.int32()
            codes[TopicPartition(name, partition)] = cursor.int16()
            cursor.tags()
        cursor.tags()
    return throttle, codes


def fetched_offsets(body: memoryview) -> tuple[int, list[tuple[str, int, Commits]]]:
    """Throttle time in milliseconds, and (group, error code, commits) of each group in an OffsetFetch response of version 8.

    Partitions with an error and partitions without a commit are left out.
    """
    cursor = _Cursor(bytes(body))
    throttle = cursor.int32()
    return throttle, list(_groups(cursor))


def _groups(cursor: _Cursor) -> Iterator[tuple[str, int, Commits]]:
    for _ in range(cursor.count()):
        name, commits = cursor.text(), Commits()
        for _ in range(cursor.count()):
            topic = cursor.text()
            for _ in range(cursor.count()):
                partition, offset, metadata, error = cursor.committed()
                if not error and offset >= 0:
                    commits[TopicPartition(topic, partition)] = Commit(offset, metadata)
            cursor.tags()
        error = cursor.int16()
        cursor.tags()
        yield name, error, commits


class _Cursor:
    """Reads one response from its beginning to its end."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def int32(self) -> int:
        """A number of four bytes."""
        (value,) = _INT32.unpack_from(self._body, self._at)
        self._at += 4
        return int(value)

    def int16(self) -> int:
        """A number of two bytes."""
        (value,) = _INT16.unpack_from(self._body, self._at)
        self._at += 2
        return int(value)

    def varint(self) -> int:
        """An unsigned varint."""
        value = shift = 0
        while True:
            byte = self._body[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self) -> int:
        """The length of an array; 0 for null."""
        return max(0, self.varint() - 1)

    def text(self) -> str:
        """A string; "" for null."""
        size = self.count()
        self._at += size
        return self._body[self._at - size : self._at].decode()

    def committed(self) -> tuple[int, int, str, int]:
        """Partition, committed offset, metadata and error code of one partition."""
        partition, offset, _, size, error, tags = _USUAL.unpack_from(self._body, self._at)
        if size <= 1 and not tags:
            self._at += _USUAL.size
            return partition, offset, "", error
        partition, offset, _ = _COMMITTED.unpack_from(self._body, self._at)
        self._at += _COMMITTED.size
        metadata, error = self.text(), self.int16()
        self.tags()
        return partition, offset, metadata, error

    def tags(self) -> None:
        """Skip the tagged fields at the end of a structure."""
        for _ in range(self.varint()):
            self.varint()
            size = self.varint()
            self._at += size


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _varint(len(encoded) + 1) + encoded
