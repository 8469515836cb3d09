"""Waiting for several connections at once."""

from __future__ import annotations

import selectors
from collections.abc import Collection

from mirror_pipeline.kafka.wire.connection import Connection


def readable(connections: Collection[Connection], seconds: float) -> list[Connection]:
    """Those that have something to read or have ended, as soon as there is one; after ``seconds`` none.

    Any number of descriptors may be open (``select`` ends at 1,024), and none is taken (``epoll`` would need one).
    """
    at_once = [connection for connection in connections if connection.closed or connection.received]
    if at_once:
        return at_once
    with selectors.PollSelector() as selector:
        for connection in connections:
            selector.register(connection.fileno(), selectors.EVENT_READ, connection)
        return [key.data for key, _ in selector.select(max(0.0, seconds))]
