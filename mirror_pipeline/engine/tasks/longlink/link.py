"""What a reader keeps of the link to its source from one micro-batch to the next: the learnt connection count and read-ahead."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.longlink.connection_count import ConnectionCount
from mirror_pipeline.engine.tasks.longlink.read_ahead import ReadAhead
from mirror_pipeline.model import OffsetRange

_worker = threading.local()


class Link:
    """Owned by a read loop, and lent to each read task that runs in the loop's thread."""

    def __init__(self) -> None:
        self.connections = ConnectionCount()
        self._of_copies: dict[str, ConnectionCount] = {}
        self._read_ahead: ReadAhead | None = None

    def resume(self, ranges: Sequence[OffsetRange]) -> ReadAhead | None:
        """The read-ahead that the last task left, if it continues with these ranges; otherwise it ends."""
        read_ahead, self._read_ahead = self._read_ahead, None
        if read_ahead is not None and not read_ahead.continues(ranges):
            read_ahead.end()
            return None
        return read_ahead

    def count_of(self, alias: str) -> ConnectionCount:
        """The connection count of a copy of the source; of the source itself for ""."""
        return self._of_copies.setdefault(alias, ConnectionCount()) if alias else self.connections

    def keep(self, read_ahead: ReadAhead) -> None:
        """Leave read-ahead to the next task."""
        self._read_ahead = read_ahead

    def end(self) -> None:
        """End the read-ahead, which gives its connections back to the client."""
        read_ahead, self._read_ahead = self._read_ahead, None
        if read_ahead is not None:
            read_ahead.end()


# Spark reuses its Python workers, and the driver's read loop cannot lend them its link: without this, each task in a worker would
# begin with the first guess of the connection count. Read-ahead is not kept there: another worker may run the next task.
def worker_connections(cluster: ClusterSettings) -> ConnectionCount:
    """The connection count that this worker has learnt for a cluster."""
    if not hasattr(_worker, "learnt"):
        _worker.learnt = {}
    learnt: dict[ClusterSettings, ConnectionCount] = _worker.learnt
    return learnt.setdefault(cluster, ConnectionCount())
