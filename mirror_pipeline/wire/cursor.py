"""Reads the few field types of Produce and Fetch answers, classic and compact (KIP-482), without copying bytes."""

from __future__ import annotations

from struct import Struct
from typing import Any

INT16, INT32 = Struct(">h"), Struct(">i")


def varint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """A position in a response body; reading past the end raises struct.error or IndexError."""

    __slots__ = ("body", "compact", "position")

    def __init__(self, body: memoryview, *, compact: bool = False) -> None:
        self.body, self.compact, self.position = body, compact, 0

    def int16(self) -> int:
        """A signed 16-bit number."""
        return int(self.numbers(INT16)[0])

    def int32(self) -> int:
        """A signed 32-bit number."""
        return int(self.numbers(INT32)[0])

    def numbers(self, layout: Struct) -> tuple[Any, ...]:
        """The numbers of a fixed layout, in one step."""
        values = layout.unpack_from(self.body, self.position)
        self.position += layout.size
        return values

    def count(self) -> int:
        """The length of an array, null is 0."""
        return max(self.varint() - 1 if self.compact else self.int32(), 0)

    def string(self) -> str | None:
        """A nullable string."""
        size = self.varint() - 1 if self.compact else self.int16()
        return None if size < 0 else str(self._bytes(size), "utf-8")

    def records(self) -> memoryview:
        """A view of a nullable records field, null is empty."""
        size = self.varint() - 1 if self.compact else self.int32()
        return self._bytes(max(size, 0))

    def tags(self) -> None:
        """Skip a section of tagged fields, if the version has one."""
        if self.compact:
            for _ in range(self.varint()):
                self.varint()
                self._bytes(self.varint())

    def varint(self) -> int:
        """An unsigned varint."""
        value, shift = 0, 0
        while True:
            byte = self.body[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _bytes(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.body):
            raise IndexError("the response is shorter than it says")
        part = self.body[self.position : end]
        self.position = end
        return part
