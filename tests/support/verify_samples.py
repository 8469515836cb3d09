"""Records and batches for the tests of verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirror_pipeline.kafka.records.batch import OpenRecord, headers, seal, tail_of
from mirror_pipeline.verify.align import align, find_digests
from mirror_pipeline.verify.classify import RecordFinding, classify, surplus
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


@dataclass(frozen=True, slots=True)
class Found:
    """What comparing two streams found; ``more``: the comparison ended at its limit."""

    records: int
    bytes: int
    differences: tuple[RecordFinding, ...]
    more: bool = False


def found_between(source: Sequence[Piece], target: Sequence[Piece], *, limit: int) -> Found:
    """Both passes over two streams, as the tasks and the driver of a comparison make them."""
    alignment = align(source, target, limit=limit)
    wanted = surplus(alignment.candidates)
    findings = classify(alignment.candidates, find_digests(source, wanted) if wanted else ())
    return Found(alignment.records, alignment.bytes, tuple(findings[:limit]), alignment.stopped or len(findings) > limit)
