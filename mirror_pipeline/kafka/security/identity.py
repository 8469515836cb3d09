"""Whose broker answers: the cluster that a client talks to, by its id, and since when its connections are in doubt."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mirror_pipeline.errors import Stranger, UsageError

if TYPE_CHECKING:
    from mirror_pipeline.config import ClusterSettings

# By bootstrap servers: when a request last timed out. For all clients of the process: what drops one idle connection drops the others.
_timeouts: dict[tuple[str, ...], float] = {}


class Identity:
    """The cluster that a client's connections must lead to: the one its settings name, else the first that answers."""

    def __init__(self, cluster: ClusterSettings) -> None:
        self.cluster_id = cluster.cluster_id
        self._alias = cluster.alias
        self._servers = cluster.bootstrap_servers

    def check(self, peer: str, cluster_id: str) -> None:
        """Compare the id that a broker gives; brokers without one are not told apart. Raises Stranger."""
        if not cluster_id:
            return
        self.cluster_id = self.cluster_id or cluster_id
        if cluster_id != self.cluster_id:
            message = f"{peer}: a broker of another cluster answers: {cluster_id}, not {self._alias} ({self.cluster_id})"
            raise Stranger(message, cluster_id, hint=f"compare bootstrap_servers and the brokers' advertised addresses of {self._alias}")

    @property
    def doubted(self) -> float:
        """When (monotonic seconds) a request to this cluster last timed out; connections that were last used before may be dead too."""
        return _timeouts.get(self._servers, 0.0)

    def doubt(self) -> None:
        """A request has timed out."""
        _timeouts[self._servers] = time.monotonic()


def refuse_one_cluster(source: ClusterSettings, target: ClusterSettings) -> None:
    """Raise UsageError where both are known to be one cluster, whatever their addresses are."""
    if source.cluster_id and source.cluster_id == target.cluster_id:
        raise UsageError(
            f"clusters {source.alias} and {target.alias} are one cluster (id {source.cluster_id}): its topics would be copied into itself",
            hint="correct bootstrap_servers of one of them",
        )
