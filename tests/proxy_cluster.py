"""An embedded one-broker cluster with a second listener that is only reached through a proxy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror_pipeline.local.cluster import LocalCluster
from mirror_pipeline.local.embedded import write_state
from mirror_pipeline.local.ports import HOST, free_port
from mirror_pipeline.local.settings import BROKER, CONTROLLER, ClusterSpec, new_cluster_id
from tests.proxy import KafkaProxy

PROXY = "PROXY"


@dataclass(frozen=True, slots=True)
class ProxiedCluster:
    """The cluster, its proxy, and the address a client uses to go through the proxy."""

    cluster: LocalCluster
    proxy: KafkaProxy

    @property
    def direct(self) -> str:
        """Past the proxy."""
        return self.cluster.bootstrap_servers

    @property
    def via(self) -> str:
        """Through the proxy."""
        return f"{HOST}:{self.proxy.port}"


def proxied_cluster(folder: Path, *, seed: int, config: Mapping[str, str] | None = None, heap: str = "256m") -> ProxiedCluster:
    """Start it. The broker advertises the proxy's port on its listener ``PROXY``, so all traffic of that listener passes."""
    ports: dict[str, int] = {}
    for name in (BROKER, CONTROLLER, PROXY, "front"):
        ports[name] = free_port(set(ports.values()))
    front = ports.pop("front")
    advertised = f"{BROKER}://{HOST}:{ports[BROKER]},{PROXY}://{HOST}:{front}"
    spec = ClusterSpec(listeners={PROXY: "PLAINTEXT"}, heap=heap, config={**(config or {}), "advertised.listeners": advertised})
    folder.mkdir(parents=True)
    write_state(folder, spec, new_cluster_id(), [ports])
    cluster = LocalCluster(folder)
    cluster.start()
    if cluster.ports != [ports]:
        cluster.kill()
        raise AssertionError(f"another process took one of the ports {ports}")
    return ProxiedCluster(cluster, KafkaProxy(front, (HOST, ports[PROXY]), seed=seed))
