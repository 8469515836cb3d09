"""An embedded cluster with a second listener that is only reached through proxies, one for each broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror_pipeline.local.embedded.cluster import write_state
from mirror_pipeline.local.embedded.ports import HOST, free_port
from mirror_pipeline.local.embedded.settings import ADVERTISED, BROKER, CONTROLLER, ClusterSpec, kafka_uuid
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.support.proxy import KafkaProxy, Rule, Rules

PROXY = "PROXY"


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies of a cluster, in the order of its brokers. A rule armed here is done to whichever broker is asked first."""

    each: tuple[KafkaProxy, ...]
    rules: Rules

    def arm(self, rule: Rule) -> Rule:
        """Let the rule wait for its exchange with any broker."""
        return self.rules.arm(rule)

    def disarm(self, rule: Rule) -> bool:
        """Take the rule back; False when it has fired."""
        return self.rules.disarm(rule)

    def cut_all(self) -> int:
        """End every connection; how many there were."""
        return sum(proxy.cut_all() for proxy in self.each)

    def silence_all(self) -> int:
        """Let every connection stay open and pass nothing on any more; how many there were."""
        return sum(proxy.silence_all() for proxy in self.each)

    def close(self) -> None:
        """Stop listening, end all connections."""
        for proxy in self.each:
            proxy.close()


@dataclass(frozen=True, slots=True)
class ProxiedCluster:
    """The cluster, its proxies, and the addresses a client uses to go through them."""

    cluster: LocalCluster
    proxy: Proxies

    @property
    def direct(self) -> str:
        """Past the proxies."""
        return self.cluster.bootstrap_servers

    @property
    def via(self) -> str:
        """Through the proxies."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxy.each)


def proxied_cluster(
    folder: Path, *, seed: int, config: Mapping[str, str] | None = None, heap: str = "256m", brokers: int = 3
) -> ProxiedCluster:
    """Start it. The brokers advertise the proxies' ports on their listener ``PROXY``, so all traffic of that listener passes."""
    used: set[int] = set()
    ports: list[dict[str, int]] = []
    for _ in range(brokers):
        own: dict[str, int] = {}
        for name in (BROKER, CONTROLLER, PROXY, PROXY + ADVERTISED):
            own[name] = free_port(used)
            used.add(own[name])
        ports.append(own)
    spec = ClusterSpec(brokers=brokers, listeners={PROXY: "PLAINTEXT"}, heap=heap, config=dict(config or {}))
    folder.mkdir(parents=True)
    write_state(folder, spec, kafka_uuid(), ports)
    cluster = LocalCluster(folder)
    cluster.start()
    if cluster.ports != ports:
        cluster.kill()
        raise AssertionError(f"another process took one of the ports {ports}")
    rules = Rules()
    proxies = [KafkaProxy(own[PROXY + ADVERTISED], (HOST, own[PROXY]), seed=seed + n, shared=rules) for n, own in enumerate(ports)]
    return ProxiedCluster(cluster, Proxies(tuple(proxies), rules))
