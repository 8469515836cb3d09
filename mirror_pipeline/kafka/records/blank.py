"""Batches of blank records (empty key, no value), which take offsets and hardly any bytes: a million fit into 0.8 MB."""

from __future__ import annotations

from functools import lru_cache

from mirror_pipeline.kafka.records.content import tail_of
from mirror_pipeline.kafka.records.header import HEADER_BYTES, BatchHeader, restamp
from mirror_pipeline.kafka.records.records import OpenRecord, only_header, seal
from mirror_pipeline.model import Stamp

_ZSTD = 4


def blank_batch(records: int, stamp: Stamp, sequence: int, *, at_ms: int) -> tuple[bytes, memoryview]:
    """A batch of blank records for a produce request: its head, and the rest, which is the same for every batch of that many.

    Args:
        records: how many, at least one.
        stamp: the producer that it carries.
        sequence: of its first record, modulo 2^31.
        at_ms: the time of all records, milliseconds since the epoch. Brokers remember a producer by it.
    """
    header, batch = _sealed(records)
    return restamp(header._replace(base_timestamp=at_ms, max_timestamp=at_ms), batch, stamp, sequence), batch[HEADER_BYTES:]


@lru_cache(maxsize=4)
def _sealed(records: int) -> tuple[BatchHeader, memoryview]:
    batch = memoryview(seal([OpenRecord(0, 0, tail_of(b"", None))] * records, codec=_ZSTD))
    return only_header(batch), batch
