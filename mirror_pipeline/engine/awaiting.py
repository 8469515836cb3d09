"""Waiting for the source: fetches that the brokers hold open until something new is there, instead of a clock."""

from __future__ import annotations

import select
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


class SourceWatch:
    """One open question to each source broker; a question that is not answered yet stays open from one wait to the next.

    Args:
        client: the source; used by the same thread only.
    """

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._open: dict[int, Connection] = {}

    def wait(self, at: Mapping[TopicPartition, int], *, seconds: float) -> dict[TopicPartition, FetchedPartition]:
        """Wait until one of the partitions holds committed records at or behind its offset, at most about ``seconds``.

        Args:
            at: next offset to read, by partition; nothing was there when it was read last.
            seconds: how long a broker may hold the question open.

        Returns:
            What the brokers that have answered said, with the last stable offsets. It may be about offsets of an earlier wait.

        Raises:
            ConnectionLost: a broker's connection broke.
            ClusterUnreachable: no broker answers.
        """
        self._ask(at, seconds)
        if not self._open:
            return {}
        ready, _, _ = select.select(list(self._open.values()), [], [], seconds + GRACE_SECONDS)
        news: dict[TopicPartition, FetchedPartition] = {}
        for leader, line in list(self._open.items()):
            if line in ready:
                del self._open[leader]
                news |= receive_fetch(line)
        return news

    def _ask(self, at: Mapping[TopicPartition, int], seconds: float) -> None:
        by_leader: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        for source, offset in at.items():
            try:
                by_leader.setdefault(self._client.leader(source), {})[source] = (offset, GLANCE_BYTES)
            except BrokerError:
                self._client.forget(source)
        self._open = {leader: line for leader, line in self._open.items() if not line.closed}
        for leader in by_leader.keys() - self._open.keys():
            line = self._client.connection(leader, WATCH_LANE)
            send_fetch(line, by_leader[leader], max_wait_ms=int(seconds * 1000), min_bytes=1, max_bytes=GLANCE_BYTES)
            self._open[leader] = line
