"""What a Python worker keeps between tasks: connections to clusters.

Spark reuses its Python workers, so module level survives from micro-batch to micro-batch. A forked child
must not share its parent's sockets: the cache is bound to the process id.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol, TypeVar

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.kafka.client import WireClient

_local = threading.local()
T = TypeVar("T")


class Ends(Protocol):
    """Work that continues between tasks, until it is ended."""

    def end(self) -> None:
        """Stop it and give back what it holds."""


def client_of(cluster: ClusterSettings, *, timeout: float) -> WireClient:
    """The process's (and thread's) wire client for a cluster, made on first use."""
    pid = os.getpid()
    if getattr(_local, "pid", None) != pid:
        _local.pid, _local.clients = pid, {}
    clients: dict[ClusterSettings, WireClient] = _local.clients
    if cluster not in clients:
        clients[cluster] = WireClient(cluster, timeout=timeout)
    return clients[cluster]


def remembered(cluster: ClusterSettings, kind: type[T]) -> T:
    """What this process (and thread) has learned about a cluster, made by ``kind()`` on first use."""
    if not hasattr(_local, "learned"):
        _local.learned = {}
    learned: dict[tuple[ClusterSettings, type], Any] = _local.learned
    cached: T = learned.setdefault((cluster, kind), kind())
    return cached


def keep(cluster: ClusterSettings, work: Ends) -> None:
    """Hand over read-ahead from a cluster to this thread's next task."""
    if not hasattr(_local, "kept"):
        _local.kept = {}
    _local.kept[cluster] = work


def take(cluster: ClusterSettings) -> Any:
    """The read-ahead that this thread's last task has left for a cluster, or None; the caller ends it or puts it back."""
    kept: dict[ClusterSettings, Ends] = getattr(_local, "kept", {})
    return kept.pop(cluster, None)


def close() -> None:
    """Close this thread's clients; for threads of the driver, which end before the process does."""
    for cluster in list(getattr(_local, "kept", {})):
        _end(cluster)
    clients: dict[ClusterSettings, WireClient] = getattr(_local, "clients", {})
    for client in clients.values():
        client.close()
    clients.clear()


def forget(cluster: ClusterSettings) -> None:
    """Close and drop the client of a cluster, so that the next task starts from its bootstrap servers again."""
    _end(cluster)
    clients: dict[ClusterSettings, WireClient] = getattr(_local, "clients", {})
    client = clients.pop(cluster, None)
    if client is not None:
        client.close()


def _end(cluster: ClusterSettings) -> None:
    work = take(cluster)
    if work is not None:
        work.end()
