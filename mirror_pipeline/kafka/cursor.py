"""Reads the few field types of Produce and Fetch answers, without copying bytes."""

from __future__ import annotations

from struct import Struct
from typing import Any

INT16, INT32 = Struct(">h"), Struct(">i")


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
