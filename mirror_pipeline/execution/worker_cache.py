"""What a Python worker keeps between tasks: connections to clusters.

Spark reuses its Python workers, so module level survives from micro-batch to micro-batch. A forked child
must not share its parent's sockets: the cache is bound to the process id.
"""

from __future__ import annotations

import os
import threading

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.longlink.connection_count import LineCount
from mirror_pipeline.engine.longlink.read_ahead import Reading
from mirror_pipeline.kafka.client import WireClient

_local = threading.local()


def client_of(cluster: ClusterSettings, *, timeout: float) -> WireClient:
    """The process's (and thread's) wire client for a cluster, made on first use."""
    pid = os.getpid()
    if getattr(_local, "pid", None) != pid:
        _local.pid, _local.clients = pid, {}
    clients: dict[ClusterSettings, WireClient] = _local.clients
    if cluster not in clients:
        clients[cluster] = WireClient(cluster, timeout=timeout)
    return clients[cluster]


def lines_of(cluster: ClusterSettings) -> LineCount:
    """What this process (and thread) has learned about the way to a cluster."""
    if not hasattr(_local, "lines"):
        _local.lines = {}
    learnt: dict[ClusterSettings, LineCount] = _local.lines
    return learnt.setdefault(cluster, LineCount())


def keep_reading(cluster: ClusterSettings, reading: Reading) -> None:
    """Leave to this thread's next task what is on its way from a cluster."""
    if not hasattr(_local, "readings"):
        _local.readings = {}
    _local.readings[cluster] = reading


def take_reading(cluster: ClusterSettings) -> Reading | None:
    """What this thread's last task has left on its way from a cluster; whoever takes it ends it, or keeps it again."""
    readings: dict[ClusterSettings, Reading] = getattr(_local, "readings", {})
    return readings.pop(cluster, None)


def close() -> None:
    """Close this thread's clients; for threads of the driver, which end while the process goes on."""
    for cluster in list(getattr(_local, "readings", {})):
        _end_reading(cluster)
    clients: dict[ClusterSettings, WireClient] = getattr(_local, "clients", {})
    for client in clients.values():
        client.close()
    clients.clear()


def forget(cluster: ClusterSettings) -> None:
    """Close and drop the client of a cluster, so that the next task starts from its bootstrap servers again."""
    _end_reading(cluster)
    clients: dict[ClusterSettings, WireClient] = getattr(_local, "clients", {})
    client = clients.pop(cluster, None)
    if client is not None:
        client.close()



def _end_reading(cluster: ClusterSettings) -> None:
    reading = take_reading(cluster)
    if reading is not None:
        reading.end()
