"""Records of opened batches go into new batches that the target accepts; those that fit into none are reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirror_pipeline.kafka.records.records import OpenRecord, RecordTooLarge, seal_runs

MAX_SEALED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A record that no batch for the target can hold."""

    record: OpenRecord
    codec: int
    error: RecordTooLarge

    def sealed(self) -> bytes:
        """A batch of any size with this record alone."""
        return seal_runs([self.record], codec=self.codec, max_bytes=MAX_SEALED)[0]


def reseal(records: Sequence[OpenRecord], *, codec: int, max_bytes: int) -> Iterator[bytes | TooLarge]:
    """New batches of at most ``max_bytes``, in offset order; after a record that is too large each record gets its own."""
    try:
        batches = seal_runs(records, codec=codec, max_bytes=max_bytes)
    except RecordTooLarge:
        for record in records:
            try:
                yield seal_runs([record], codec=codec, max_bytes=max_bytes)[0]
            except RecordTooLarge as error:
                yield TooLarge(record, codec, error)
    else:
        yield from batches
