"""Proves that the end of a target partition is a copy with the source's offsets (``offsets: exact``); writes nothing."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from typing import TypeVar

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import ConnectionLost, CorruptBatch, ProblemFound
from mirror_pipeline.execution import worker_cache
from mirror_pipeline.kafka.client import Routes, WireClient
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.log_walk import READ_COMMITTED, read_log
from mirror_pipeline.verify.pieces import Contents, Piece, contents
from mirror_pipeline.verify.record_tasks import source_pieces
from mirror_pipeline.verify.rules import read_terms

T = TypeVar("T")

PROVEN_OFFSETS = 1_000
Sample = tuple[TopicPartition, TopicPartition, int, int]
# Samples that are compared at the same time, and bytes of the first request for one.
HANDS, COMPARE_FETCH_BYTES = 48, 96 * 1024
Logs = tuple[tuple[int, int], tuple[int, int]]
"""Start and end of the source's log, up to its last stable offset, and of the target's."""


def tails_differ(
    source: ClusterSettings, target: ClusterSettings, topics: tuple[str, str], logs: Mapping[int, Logs], *, timeout: float
) -> str:
    """Compare the last :data:`PROVEN_OFFSETS` offsets of target partitions with the same offsets of the source.

    Args:
        source, target: the clusters.
        topics: the topic on both sides.
        logs: the partitions to compare.
        timeout: seconds a broker may stay silent.

    Returns:
        Why the target is not proven to be a copy with the same offsets; "" if it is. Where the cleaner has removed records of one side,
        what both sides hold must be equal.

    Raises:
        BrokerError, ClusterUnreachable, ConnectionLost: a side cannot be read now.
    """
    terms = read_terms(source, target, dict([topics]))[topics[0]]
    for number, ((first, source_end), (kept, end)) in sorted(logs.items()):
        here, there = TopicPartition(topics[0], number), TopicPartition(topics[1], number)
        if end > source_end:
            return f"{there} ends at offset {end:,}, the source at {source_end:,}"
        low = max(first, kept, end - PROVEN_OFFSETS)
        if low >= end:
            return f"of the offsets below {end:,}, where {there} ends, {'the source' if first >= end else 'it'} holds none any more"
        try:
            ours = source_pieces(source, here, low, end, terms, timeout, strict=True)
            # After a failback the target has transactions of its own: it was the source.
            theirs = source_pieces(target, there, low, end, terms, timeout, strict=True)
            found = _first_difference(ours, theirs, thinned=terms.positional)
        except (CorruptBatch, ProblemFound) as error:
            return f"{there} cannot be compared: {error.message}"
        if found is not None:
            return f"{there} and the source differ at offset {found:,}"
    return ""


def samples_differ(
    known: ClusterSettings, copy: ClusterSettings, samples: Sequence[Sample], *, timeout: float
) -> dict[TopicPartition, str]:
    """Compare offset ranges of a cluster with the same ones of a copy, several at a time: each costs round trips.

    Args:
        known, copy: the clusters; the first is the source, or the target where that does not answer.
        samples: partition of both, first and last offset (exclusive).
        timeout: seconds a broker may stay silent.

    Returns:
        Why a partition of the copy is none, by its name there, for those that are not.

    Raises:
        BrokerError, ClusterUnreachable, ConnectionLost: a side cannot be read now.
    """
    left, found = deque(samples), dict[TopicPartition, str]()
    ways = _routes(known, [here for here, *_ in samples], timeout), _routes(copy, [there for _, there, *_ in samples], timeout)

    def hand(_: int) -> None:
        ours, theirs = (WireClient(side, timeout=timeout, known=True) for side in (known, copy))
        with ours, theirs:
            ours.follow(ways[0])
            theirs.follow(ways[1])
            while (sample := _popped(left)) is not None:
                if why := _differs(ours, theirs, sample):
                    found[sample[1]] = why

    with ThreadPoolExecutor(HANDS, thread_name_prefix="compare-copy") as pool:
        list(pool.map(hand, range(min(HANDS, len(samples)))))
    return found


def _routes(cluster: ClusterSettings, partitions: list[TopicPartition], timeout: float) -> Routes:
    client = worker_cache.client_of(cluster, timeout=timeout)
    client.leaders(partitions)
    return client.routes()


def _popped(left: deque[T]) -> T | None:
    try:
        return left.popleft()
    except IndexError:
        return None


def _differs(known: WireClient, copy: WireClient, sample: Sample) -> str:
    here, there, start, end = sample
    sides = [(known, here), (copy, there)]
    for client, tp in sides:
        node = client.leader(tp)
        with suppress(ConnectionLost):  # reading tries again, and says what is wrong
            client.keep(node, 0, client.take(node, 0) or client.opener(node)())  # wide windows, and no question before the first fetch
    try:
        logs = (read_log(client, tp, start, end, isolation=READ_COMMITTED, size=COMPARE_FETCH_BYTES) for client, tp in sides)
        at = _first_difference(*_unlike(*map(list, logs)), thinned=False)
    except (CorruptBatch, ProblemFound) as error:
        return f"{there} cannot be compared: {error.message}"
    return "" if at is None else f"{there} differs from {known.cluster.alias} at offset {at:,}"


def _first_difference(ours: Iterable[Piece], theirs: Iterable[Piece], *, thinned: bool) -> int | None:
    records = heapq.merge(_records(ours), _records(theirs), key=_offset)
    for offset, both in groupby(records, key=_offset):
        found = [each for _, each in both]
        if not (found[0] == found[1] if len(found) == 2 else thinned):
            return offset
    return None


def _unlike(ours: list[Piece], theirs: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Both without the batches that are the same bytes at the same place: those need not be decoded."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    alike = {n for n, (a, b) in pairs if a.header.base_offset == b.header.base_offset and a.same_bytes(b)}
    return [a for n, a in enumerate(ours) if n not in alike], [b for n, b in enumerate(theirs) if n not in alike]


def _offset(record: tuple[int, Contents]) -> int:
    return record[0]


def _records(pieces: Iterable[Piece]) -> Iterator[tuple[int, Contents]]:
    return ((record.offset, contents(record)) for piece in pieces for record in piece.opened())
