"""Offsets of many partitions in one request."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.answers import EARLIEST, LATEST
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import broker_error
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


def log_range(client: WireClient, parts: Collection[TopicPartition], *, isolation: int) -> dict[TopicPartition, tuple[int, int]]:
    """First offset and end of each partition; the end is the last stable offset when ``isolation`` is 1.

    Raises:
        BrokerError: a partition's leader refuses.
    """
    starts, ends = (offsets_at(client, parts, at, isolation=isolation) for at in (EARLIEST, LATEST))
    return {tp: (starts[tp], ends[tp]) for tp in parts}
