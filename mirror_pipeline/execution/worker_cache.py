"""The clients that a thread keeps between tasks.

Spark reuses its Python workers, so the module survives from micro-batch to micro-batch. A forked child must not share its
parent's sockets: the cache is bound to the process id.
"""

from __future__ import annotations

import os
import threading

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.kafka.client import WireClient

_local = threading.local()


def client_of(cluster: ClusterSettings, *, timeout: float) -> WireClient:
    """The process's (and thread's) wire client for a cluster, made on first use.

    Tasks are made by a driver that has talked to the cluster, so it is a known one.
    """
    pid = os.getpid()
    if getattr(_local, "pid", None) != pid:
        _local.pid, _local.clients = pid, {}
    clients: dict[ClusterSettings, WireClient] = _local.clients
    if cluster not in clients:
        clients[cluster] = WireClient(cluster, timeout=timeout, known=True)
    return clients[cluster]


def close() -> None:
    """Close this thread's clients; for threads of the driver, which end before its process."""
    clients: dict[ClusterSettings, WireClient] = getattr(_local, "clients", {})
    for client in clients.values():
        client.close()
    clients.clear()


def forget(cluster: ClusterSettings) -> None:
    """Close and drop the client of a cluster, so that the next task starts from its bootstrap servers again."""
    clients: dict[ClusterSettings, WireClient] = getattr(_local, "clients", {})
    client = clients.pop(cluster, None)
    if client is not None:
        client.close()
