"""How many bytes wait in topics that nothing was read of yet."""

from __future__ import annotations

from collections.abc import Mapping

from mirror_pipeline.errors import BrokerError, CorruptBatch
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.fetch import fetch
from mirror_pipeline.kafka.records.header import headers
from mirror_pipeline.model import LEAST_BYTES_PER_OFFSET, TopicPartition

LOOK_BYTES = 64 * 1024
# Fewer offsets are not worth a look: only records of kilobytes would make much of them.
WORTH_A_LOOK = 1_000_000


def backlog_bytes(source: WireClient, bounds: Mapping[TopicPartition, tuple[int, int]]) -> float:
    """About how many bytes lie between the bounds: as many an offset as in the first batches of the partition with most offsets.

    Of few offsets, and where that partition cannot be read, it is what the smallest records take.

    Args:
        source: the cluster.
        bounds: first offset and exclusive end of each partition.

    Raises:
        ConnectionLost: the broker broke off.
    """
    offsets = sum(end - begin for begin, end in bounds.values())
    if offsets < WORTH_A_LOOK:
        return offsets * LEAST_BYTES_PER_OFFSET
    largest = max(bounds, key=lambda tp: bounds[tp][1] - bounds[tp][0])
    try:
        each = _bytes_per_offset(source, largest, bounds[largest][0])
    except (BrokerError, CorruptBatch):  # reading it meets the same and says so
        each = LEAST_BYTES_PER_OFFSET
    return offsets * each


def _bytes_per_offset(source: WireClient, tp: TopicPartition, begin: int) -> float:
    connection = source.connection(source.leader(tp))
    answer = fetch(connection, {tp: (begin, LOOK_BYTES)}, max_wait_ms=0, min_bytes=0, max_bytes=LOOK_BYTES, patience=0.0)[tp]
    found = [] if answer.error else [header for _, header in headers(answer.records)]
    if not found or found[-1].next_offset <= begin:
        return LEAST_BYTES_PER_OFFSET
    return sum(header.size for header in found) / (found[-1].next_offset - min(begin, found[0].base_offset))
