"""A few batches of each topic, to tell how large its records are and how many offsets hold none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.answers import EARLIEST_TIME
from mirror_pipeline.kafka.client import Connection
from mirror_pipeline.kafka.fetch import FetchedPartition, fetch
from mirror_pipeline.kafka.offsets import led
from mirror_pipeline.kafka.records.header import headers
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state.cluster_view import ClusterView
from mirror_pipeline.verify.log_walk import Aborted

SAMPLE_BYTES = 32 * 1024
PARTITIONS_AN_ANSWER = 64
# A batch larger than a sample comes only for the first partition of a request: each of those costs a request of its own.
ONE_BATCH_BYTES = 1 << 20
MOST_LOOKED_AT = 64 << 20
Looks = Mapping[TopicPartition, tuple[int, int]]


@dataclass(slots=True)
class LogSample:
    """What was looked at of a topic: offsets, those of them without a committed record, and the bytes of their batches."""

    offsets: int = 0
    holes: int = 0
    bytes: int = 0
    transactional: bool = False


def sampled(cluster: ClusterView, looks: Iterable[Looks]) -> dict[str, LogSample]:
    """By topic; partitions that cannot be read now, and what retention has deleted, are left out.

    Args:
        cluster: where to read.
        looks: from which offset on, and before which, to read a few batches of some partitions; each of them is one round of requests.

    Raises:
        ClusterUnreachable, ConnectionLost: the cluster does not answer.
    """
    found: dict[str, LogSample] = defaultdict(LogSample)
    for look in looks:
        parts, _ = led(cluster.metadata({tp.topic for tp in look}), look)
        starts = cluster.offsets(parts, EARLIEST_TIME)
        by_leader: dict[int, dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
        for tp in parts:
            start, (begin, end) = starts[tp], look[tp]
            if isinstance(start, int) and start < end:
                by_leader[cluster.client.leader(tp)][tp] = max(start, begin), end
        for leader, wanted in by_leader.items():
            _read(cluster.client.connection(leader), wanted, found)
    return found


def _read(connection: Connection, wanted: Looks, found: Mapping[str, LogSample]) -> None:
    left, read = [tp for tp, (begin, end) in wanted.items() if begin < end], 0
    while left and read < MOST_LOOKED_AT:
        asked = {tp: (wanted[tp][0], SAMPLE_BYTES) for tp in left[:PARTITIONS_AN_ANSWER]}
        limit = ONE_BATCH_BYTES + SAMPLE_BYTES * len(asked)
        answers = fetch(connection, asked, max_wait_ms=0, min_bytes=0, max_bytes=limit, patience=0.0)
        done = {tp for number, tp in enumerate(asked) if not number or answers[tp].error or len(answers[tp].records)}
        for tp in done:
            read += len(answers[tp].records)
            with suppress(CorruptBatch):  # reading it meets the same and says so
                _count(found[tp.topic], answers[tp], *wanted[tp])
        left = [tp for tp in left if tp not in done]


def _count(sample: LogSample, answer: FetchedPartition, start: int, end: int) -> None:
    aborted = Aborted(answer.aborted)
    for place, header in () if answer.error else headers(answer.records):
        span = min(header.next_offset, end) - start
        hidden = aborted.hides(header, answer.records[place : place + header.size])
        records = 0 if hidden else min(header.records if header.records > 0 else 1, span)
        sample.offsets += span
        sample.holes += span - records
        sample.bytes += header.size
        sample.transactional |= header.is_transactional
        start += span
