"""Waiting for the source: fetches that the brokers hold open until something new is there, instead of a clock."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.client import Connection, WireClient, readable
from mirror_pipeline.kafka.fetch import FetchedPartition, receive_fetch, send_fetch
from mirror_pipeline.model import TopicPartition

WATCH_LANE = 9_999
"""A connection of its own: an answer that is held open must not hold up other questions."""
GRACE_SECONDS = 1.0
GLANCE_BYTES = 1
"""The answer's records are not used: one batch comes at most, and only when there is news."""


class SourceWatch:
    """One open question to each source broker; a question that is not answered yet stays open from one wait to the next.

    A broker that cannot be asked is passed over: reading, and the looks at all ends, find out what is the matter with it.

    Args:
        client: the source; used by the same thread only.
    """

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._open: dict[int, Connection] = {}
        self._due: dict[int, float] = {}

    @property
    def asks(self) -> bool:
        """Whether any broker has an open question."""
        return bool(self._open)

    def wait(
        self, at: Mapping[TopicPartition, int], *, seconds: float, most: float | None = None, within: float = GRACE_SECONDS
    ) -> dict[TopicPartition, FetchedPartition]:
        """Wait until one of the partitions holds committed records at or after its offset, at most about ``seconds``.

        Args:
            at: next offset to read, by partition; nothing was there when it was read last.
            seconds: how long a broker may hold the question open.
            most: seconds to wait here, if that is less.
            within: seconds in which a connection must be open.

        Returns:
            What the brokers that have answered said, with the last stable offsets. It may be about offsets of an earlier wait.

        Raises:
            ClusterUnreachable: no broker answers.
        """
        self._ask(at, seconds, within)
        if not self._open:
            return {}
        longest = seconds + GRACE_SECONDS
        ready = readable(list(self._open.values()), longest if most is None else min(longest, most))
        news: dict[TopicPartition, FetchedPartition] = {}
        for leader, connection in list(self._open.items()):
            if connection in ready:
                del self._open[leader]
                try:
                    news |= receive_fetch(connection)
                except ConnectionLost:
                    self._forget(at, leader)
            elif time.monotonic() > self._due[leader]:  # something in between has dropped the connection without a word
                connection.give_up()
                del self._open[leader]
                self._forget(at, leader)
        return news

    def _ask(self, at: Mapping[TopicPartition, int], seconds: float, within: float) -> None:
        by_leader: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
        leaders, _ = self._client.leaders(at.keys(), patience=0)
        for source, leader in leaders.items():
            by_leader.setdefault(leader, {})[source] = (at[source], GLANCE_BYTES)
        self._open = {leader: connection for leader, connection in self._open.items() if not connection.closed}
        for leader in by_leader.keys() - self._open.keys():
            try:
                connection = self._client.connection(leader, WATCH_LANE, within=within)
                connection.limit(within)  # of an answer that has begun to come
                send_fetch(connection, by_leader[leader], max_wait_ms=int(seconds * 1000), min_bytes=1, max_bytes=GLANCE_BYTES)
            except ConnectionLost:
                self._forget(at, leader)
                continue
            self._open[leader] = connection
            self._due[leader] = time.monotonic() + seconds + max(within, connection.patience)

    def _forget(self, at: Mapping[TopicPartition, int], leader: int) -> None:
        for source in at:
            if self._client.known_leader(source) == leader:
                self._client.forget(source)
