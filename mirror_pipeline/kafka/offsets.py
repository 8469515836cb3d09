"""Offsets of many partitions in one request."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME, ClusterMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import LEADER_NOT_AVAILABLE, broker_error
from mirror_pipeline.model import TopicPartition


def offsets_at(
    client: WireClient, parts: Iterable[TopicPartition], at: int, *, isolation: int = 1, within: float | None = None
) -> dict[TopicPartition, int]:
    """:meth:`WireClient.list_offsets` for one time and all of ``parts``.

    Raises:
        BrokerError: a partition's leader refuses.
    """
    offsets: dict[TopicPartition, int] = {}
    for tp, offset in offsets_or_errors(client, parts, at, isolation=isolation, within=within).items():
        if isinstance(offset, BrokerError):
            raise offset
        offsets[tp] = offset
    return offsets


def offsets_or_errors(
    client: WireClient, parts: Iterable[TopicPartition], at: int, *, isolation: int = 1, within: float | None = None
) -> dict[TopicPartition, int | BrokerError]:
    """The same with an error in place of a refused offset."""
    times = dict.fromkeys(parts, at)
    limit = {} if within is None else {"within": within}
    answers = client.list_offsets(times, isolation=isolation, **limit) if times else {}
    return {tp: broker_error(answer.error, str(tp)) if answer.error else answer.offset for tp, answer in answers.items()}


def led(metadata: ClusterMetadata, parts: Iterable[TopicPartition]) -> tuple[list[TopicPartition], dict[TopicPartition, BrokerError]]:
    """Those of some partitions that have a leader, and an error for each that has none: whoever asks those waits for seconds in vain."""
    asked: list[TopicPartition] = []
    unled: dict[TopicPartition, BrokerError] = {}
    for tp in parts:
        part = metadata.topics[tp.topic].partitions.get(tp.partition)
        if part is not None and part.leader < 0:
            unled[tp] = broker_error(part.error or LEADER_NOT_AVAILABLE, str(tp))
        else:
            asked.append(tp)
    return asked, unled


def log_range(
    client: WireClient, parts: Collection[TopicPartition], *, isolation: int, within: float | None = None
) -> dict[TopicPartition, tuple[int, int]]:
    """First offset and end of each partition; the end is the last stable offset when ``isolation`` is 1.

    Raises:
        BrokerError: a partition's leader refuses.
    """
    starts, ends = (offsets_at(client, parts, at, isolation=isolation, within=within) for at in (EARLIEST_TIME, LATEST_TIME))
    return {tp: (starts[tp], ends[tp]) for tp in parts}


def log_ranges(
    client: WireClient, parts: Collection[TopicPartition], *, isolation: int
) -> dict[TopicPartition, tuple[int, int] | BrokerError]:
    """The same with an error in place of a refused range."""
    ranges: dict[TopicPartition, tuple[int, int] | BrokerError] = {}
    starts = offsets_or_errors(client, parts, EARLIEST_TIME, isolation=isolation)
    answered = [tp for tp, start in starts.items() if not isinstance(start, BrokerError)]  # asking the others again waits in vain
    ends = offsets_or_errors(client, answered, LATEST_TIME, isolation=isolation)
    for tp, start in starts.items():
        if isinstance(start, BrokerError):
            ranges[tp] = start
        else:
            end = ends[tp]
            ranges[tp] = end if isinstance(end, BrokerError) else (start, end)
    return ranges
