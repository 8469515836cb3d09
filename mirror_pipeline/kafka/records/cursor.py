"""Reads the few field types of Produce and Fetch answers, plain and compact ones, without copying bytes."""

from __future__ import annotations

from struct import Struct
from typing import Any

INT16, INT32 = Struct(">h"), Struct(">i")


def uvarint(value: int) -> bytes:
    """``value`` in as few bytes as it needs, seven bits each (KIP-482)."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Cursor:
    """A position in a response body; reading past the end raises struct.error or IndexError."""

    __slots__ = ("body", "position")

    def __init__(self, body: memoryview) -> None:
        self.body, self.position = body, 0

    def int16(self) -> int:
        """A signed 16-bit number."""
        return int(self.numbers(INT16)[0])

    def int32(self) -> int:
        """A signed 32-bit number."""
        return int(self.numbers(INT32)[0])

    def skip(self, expected: bytes) -> bool:
        """Step over these bytes if they come next."""
        end = self.position + len(expected)
        if self.body[self.position : end] != expected:
            return False
        self.position = end
        return True

    def numbers(self, layout: Struct) -> tuple[Any, ...]:
        """The numbers of a fixed layout, in one step."""
        values = layout.unpack_from(self.body, self.position)
        self.position += layout.size
        return values

    def count(self) -> int:
        """The length of an array, null is 0."""
        return max(self.int32(), 0)

    def string(self) -> str | None:
        """A nullable string."""
        size = self.int16()
        return None if size < 0 else str(self._bytes(size), "utf-8")

    def uvarint(self) -> int:
        """An unsigned number of as few bytes as it needs (KIP-482)."""
        value = shift = 0
        while True:
            byte = self.body[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def compact_count(self) -> int:
        """The length of a compact array, null is 0."""
        return max(self.uvarint() - 1, 0)

    def compact_string(self) -> str | None:
        """A nullable compact string."""
        size = self.uvarint() - 1
        return None if size < 0 else str(self._bytes(size), "utf-8")

    def compact_records(self) -> memoryview:
        """A view of a nullable compact records field, null is empty."""
        return self._bytes(max(self.uvarint() - 1, 0))

    def topic_id(self) -> bytes:
        """A topic id."""
        return bytes(self._bytes(16))

    def skip_tags(self) -> None:
        """Step over tagged fields: what brokers add for clients that know them."""
        for _ in range(self.uvarint()):
            self.uvarint()
            self._bytes(self.uvarint())

    def records(self) -> memoryview:
        """A view of a nullable records field, null is empty."""
        size = self.int32()
        return self._bytes(max(size, 0))

    def _bytes(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.body):
            raise IndexError("the response is shorter than it says")
        part = self.body[self.position : end]
        self.position = end
        return part
