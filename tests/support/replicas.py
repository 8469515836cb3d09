"""How many replicas a test's topic gets unless it says so."""

from __future__ import annotations

MOST = 3


def replicas_for(bootstrap: str) -> int:
    """Three, of which a write needs two (the embedded clusters' ``min.insync.replicas``); one on fewer than three brokers."""
    return MOST if len(bootstrap.split(",")) >= MOST else 1
