"""One embedded Kafka cluster: its brokers, its folder, start and stop."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mirror_pipeline.errors import BrokerError, ClusterUnreachable
from mirror_pipeline.execution.jars import ensure_jars
from mirror_pipeline.local.embedded.broker import STOP_SECONDS, LocalBroker, StartFailed
from mirror_pipeline.local.embedded.ports import HOST, free_port, is_free, is_listening
from mirror_pipeline.local.embedded.settings import BROKER, ClusterSpec, kafka_uuid, server_properties

CLUSTER_READY_SECONDS = 120.0  # 5 s on an idle machine; many brokers on two cores take longer
PORT_ATTEMPTS = 3  # how often a start may lose the race for its ports
# What a broker says whose port, or whose controller's port, a cluster started beside it has taken.
_PORT_LOST = ("already in use", "INCONSISTENT_CLUSTER_ID")
_CLUSTER_POLL_SECONDS = 0.1


class LocalCluster:
    """One embedded cluster; created by :func:`start_clusters`, listed by :func:`cluster_status`."""

    def __init__(self, folder: Path) -> None:
        state = json.loads((folder / "cluster.json").read_text())
        self.folder = folder
        self.spec = ClusterSpec.from_json(state["spec"])
        self.cluster_id: str = state["cluster_id"]
        self.ports: list[dict[str, int]] = state["ports"]  # per broker, by listener
        self.brokers = tuple(
            LocalBroker(folder / f"broker-{node}", node, self.spec.version, self.spec.heap, self.spec.jvm_options)
            for node in range(1, self.spec.brokers + 1)
        )

    @classmethod
    def create(cls, folder: Path, spec: ClusterSpec) -> LocalCluster:
        """A new cluster in an empty folder, not started."""
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder, spec, kafka_uuid(), [])
        return cls(folder)

    def __repr__(self) -> str:
        return f"LocalCluster({self.name!r}, {self.bootstrap_servers!r}, {self.state})"

    @property
    def name(self) -> str:
        """Its name in the directory."""
        return self.folder.name

    @property
    def directory(self) -> Path:
        """The folder of this cluster: settings, logs, data."""
        return self.folder

    @property
    def version(self) -> str:
        """Kafka's version."""
        return self.spec.version

    @property
    def bootstrap_servers(self) -> str:
        """``127.0.0.1:PORT`` of every broker's plain listener, comma separated."""
        return self.listener(BROKER)

    def listener(self, name: str) -> str:
        """``127.0.0.1:PORT`` of every broker for a listener by its name, comma separated."""
        return ",".join(f"{HOST}:{ports[name]}" for ports in self.ports)

    @property
    def pid(self) -> int | None:
        """Process id of the first broker, None when it does not run."""
        return self.brokers[0].pid

    @property
    def alive(self) -> bool:
        """True when every broker's process exists (a paused one does)."""
        return all(broker.alive for broker in self.brokers)

    @property
    def state(self) -> str:
        """``running``, ``stopped``, or ``partly running``."""
        up = [broker.alive for broker in self.brokers]
        return "running" if all(up) else "partly running" if any(up) else "stopped"

    def to_json(self) -> dict[str, Any]:
        """One element of ``clusters start|status --json``'s ``clusters``."""
        return {
            "name": self.name,
            "bootstrap_servers": self.bootstrap_servers,
            "version": self.version,
            "state": self.state,
            "brokers": len(self.brokers),
            "pids": [broker.pid for broker in self.brokers],
            "directory": str(self.folder),
        }

    def start(self, cancelled: threading.Event | None = None) -> None:
        """Start the brokers that do not run and wait until the cluster answers; data and ports are kept.

        Raises:
            StartFailed: with the cause from the broker's log; no broker that was started is left running.
        """
        jars = ensure_jars(f"kafka-{self.version}")
        for attempt in range(1, PORT_ATTEMPTS + 1):
            stopped = [broker for broker in self.brokers if not broker.alive]
            if len(stopped) == len(self.brokers):
                self._choose_ports(fresh=attempt > 1)
            try:
                self._start(stopped, jars, cancelled or threading.Event())
            except BaseException as error:
                _end(stopped, grace=0)
                if attempt < PORT_ATTEMPTS and isinstance(error, StartFailed) and any(text in error.message for text in _PORT_LOST):
                    continue
                raise
            return

    def _start(self, stopped: Sequence[LocalBroker], jars: Path, cancelled: threading.Event) -> None:
        for broker in stopped:
            broker.write_settings(server_properties(self.spec, broker.node, self.ports, broker.data))
        self._format(stopped, jars)
        for broker in stopped:
            broker.launch(jars)
        self.wait_ready(cancelled=cancelled)

    def _format(self, brokers: Sequence[LocalBroker], jars: Path) -> None:
        first, *others = brokers
        first.format(jars, self.cluster_id, self.spec.storage_args)
        for broker in others:
            broker.format_like(first)

    def _choose_ports(self, *, fresh: bool) -> None:
        names = self.spec.listener_names
        chosen = [{} if fresh else dict(ports) for ports in self.ports] or [{} for _ in self.brokers]
        used = {port for ports in chosen for port in ports.values()}
        for ports in chosen:
            for name in names:
                if name not in ports or not is_free(ports[name]):
                    ports[name] = free_port(used)
                    used.add(ports[name])
        self.ports = chosen
        write_state(self.folder, self.spec, self.cluster_id, chosen)

    def wait_ready(self, timeout: float = CLUSTER_READY_SECONDS, *, cancelled: threading.Event | None = None) -> None:
        """Return once every broker listens and names them all.

        Raises:
            StartFailed: a broker ended, or is not ready within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        pause = cancelled or threading.Event()
        while not (self._listening() and self._answers(deadline)):
            for broker in self.brokers:
                if not broker.alive:
                    raise StartFailed(f"Kafka {self.version} {self.name} did not start: {broker.failure()}", hint=f"log: {broker.log}")
            if time.monotonic() > deadline:
                log = self.brokers[0].log
                raise StartFailed(f"Kafka {self.version} {self.name} is not ready after {timeout:.0f} s", hint=f"log: {log}")
            if pause.wait(_CLUSTER_POLL_SECONDS):
                raise StartFailed(f"the start of {self.name} was cancelled")

    def _listening(self) -> bool:
        return all(is_listening(ports[BROKER]) for ports in self.ports)

    def _answers(self, deadline: float) -> bool:
        """Whether each broker names them all: one that does not makes clients drop the others, with what they were asked."""
        from mirror_pipeline.config import ClusterSettings
        from mirror_pipeline.kafka.client import WireClient

        for address in self.bootstrap_servers.split(","):
            timeout = max(1.0, min(10.0, deadline - time.monotonic()))
            try:
                with WireClient(ClusterSettings(self.name, (address,)), timeout=timeout) as client:
                    if len(client.metadata([]).brokers) < len(self.brokers):
                        return False
            except (BrokerError, ClusterUnreachable):
                return False
        return True

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop every broker: SIGTERM, and SIGKILL after ``timeout`` seconds. The data is kept."""
        _end(self.brokers, grace=timeout)

    def kill(self, number: int = signal.SIGKILL, *, node: int | None = None) -> None:
        """Send a signal to every broker, or to broker ``node`` alone; SIGKILL returns when they have ended."""
        chosen = [broker for broker in self.brokers if node in (None, broker.node)]
        for broker in chosen:
            broker.signal(number)
        if number == signal.SIGKILL:
            _end(chosen, grace=0)

    def pause(self, *, node: int | None = None) -> None:
        """SIGSTOP: connections stay open and no broker answers."""
        self.kill(signal.SIGSTOP, node=node)

    def resume(self, *, node: int | None = None) -> None:
        """SIGCONT after :meth:`pause`."""
        self.kill(signal.SIGCONT, node=node)


def _end(brokers: Sequence[LocalBroker], grace: float) -> None:
    deadline = time.monotonic() + grace
    for broker in brokers:
        if grace > 0:
            broker.terminate()
    for broker in brokers:
        broker.end(deadline)


def write_state(folder: Path, spec: ClusterSpec, cluster_id: str, ports: Sequence[Mapping[str, int]]) -> None:
    """Write the cluster's file atomically."""
    fresh = folder / "cluster.json.new"
    fresh.write_text(json.dumps({"cluster_id": cluster_id, "spec": spec.to_json(), "ports": list(ports)}, indent=1) + "\n")
    fresh.replace(folder / "cluster.json")
