"""How many replicas a test's topic gets: three in some, one in others, so that both kinds are met everywhere."""

from __future__ import annotations

import re
import zlib

MOST = 3
_RANDOM_TAIL = re.compile(r"[0-9a-f]{8,}$")


def replicas_for(bootstrap: str, topic: str) -> int:
    """Three replicas or one, by the topic's name without a random end; one on a cluster of fewer than three brokers.

    A topic of three needs two of them for a write, as the embedded clusters' ``min.insync.replicas`` says.
    """
    if len(bootstrap.split(",")) < MOST:
        return 1
    stem = _RANDOM_TAIL.sub("", topic)
    return MOST if zlib.crc32(stem.encode()) % 2 else 1
