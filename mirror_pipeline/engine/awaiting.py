"""Waiting for the source: a fetch that the brokers hold open until something new is there, instead of a clock."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.wire.client import WireClient
from mirror_pipeline.wire.connection import Connection
from mirror_pipeline.wire.fetch import FetchedPartition, receive_fetch, send_fetch

WATCH_LANE = 9_999
"""A connection of its own: an answer that is held open must not hold up other questions."""
GRACE_SECONDS = 1.0
GLANCE_BYTES = 1
"""The answer's records are not used: one batch comes at most, and only when there is news."""


def await_news(client: WireClient, at: Mapping[TopicPartition, int], *, seconds: float) -> dict[TopicPartition, FetchedPartition]:
    """Wait until one of the partitions holds committed records at or behind its offset, at most ``seconds``.

    Args:
        client: the source.
        at: next offset to read, by partition; nothing was there when it was read last.
        seconds: how long to wait.

    Returns:
        What the brokers that answered said, with the last stable offsets; the others' answers are dropped.

    Raises:
        ConnectionLost: a broker's connection broke.
        ClusterUnreachable: no broker answers.
    """
    by_leader: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
    for source, offset in at.items():
        try:
            by_leader.setdefault(client.leader(source), {})[source] = (offset, GLANCE_BYTES)
        except BrokerError:
            client.forget(source)
    open_lines: dict[int, Connection] = {}
    deadline = time.monotonic() + seconds
    try:
        for leader, wants in by_leader.items():
            line = client.connection(leader, WATCH_LANE)
            send_fetch(line, wants, max_wait_ms=int(seconds * 1000), min_bytes=1, max_bytes=GLANCE_BYTES)
            open_lines[leader] = line
        ready, _, _ = select.select(list(open_lines.values()), [], [], max(0.0, deadline - time.monotonic()) + GRACE_SECONDS)
        news: dict[TopicPartition, FetchedPartition] = {}
        for leader, line in list(open_lines.items()):
            if line in ready:
                news |= receive_fetch(line)
                del open_lines[leader]
        return news
    finally:
        for line in open_lines.values():
            line.close()  # its answer would come in between the next ones
