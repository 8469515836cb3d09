"""Records and batches for the tests of verification."""

from __future__ import annotations

from collections.abc import Sequence

from mirror_pipeline.kafka.records.batch import OpenRecord, headers, seal, tail_of
from mirror_pipeline.verify.pieces import Piece

END = 1 << 40


def opened(offset: int, value: bytes | None = b"v", key: bytes | None = b"k", timestamp: int = 0) -> OpenRecord:
    """A record at an offset."""
    return OpenRecord(offset, timestamp or 1_700_000_000_000 + offset, tail_of(key, value))


def pieces(records: Sequence[OpenRecord], *, low: int = 0, high: int = END) -> list[Piece]:
    """A log that holds these records at their own offsets, each in a batch of its own."""
    made = []
    for record in records:
        batch = memoryview(seal([record], codec=0))
        made += [Piece(header, batch, low, high) for _, header in headers(batch)]
    return made
