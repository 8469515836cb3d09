"""Brokers that do not answer: probed in the background, so that partitions of other brokers do not wait for them.

A broker whose process hangs or whose network is down keeps its leadership for a while, or for good, and every request to it
costs a full timeout. So one request that times out marks the broker silent; its partitions are left out until it answers a
probe. A broker that is only slow (a cold disk) answers the probe at once and then gets twice the time, so it makes progress.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.read.messages import SILENT_SECONDS
from mirror_pipeline.errors import BrokerError, MirrorError
from mirror_pipeline.kafka.client import WireClient

log = logging.getLogger(__name__)

FIRST_PROBE_SECONDS, RAREST_PROBE_SECONDS = 0.2, 2.0
BROKER_PROBE_SECONDS = 5.0


class SilentBrokers:
    """Which brokers of a cluster do not answer now, and how long to wait for each.

    Args:
        answers: returns once a broker answers, raises MirrorError if it does not; called in separate threads.
        most: upper bound in seconds, the request timeout.
    """

    def __init__(self, answers: Callable[[int], None], *, most: float) -> None:
        self._answers = answers
        self._most = most
        self._lock = threading.Lock()
        self._silent: dict[int, str] = {}
        self._patience: dict[int, float] = {}
        self._over = threading.Event()

    @property
    def now(self) -> dict[int, str]:
        """Node ids of silent brokers, each with the error that showed it."""
        with self._lock:
            return dict(self._silent)

    def patience(self) -> dict[int, float]:
        """Seconds to wait for brokers that were slow; ``SILENT_SECONDS`` for all others."""
        with self._lock:
            return dict(self._patience)

    def longest(self) -> float:
        """Seconds to wait for a request that goes to all brokers."""
        with self._lock:
            return max([SILENT_SECONDS, *(seconds for node, seconds in self._patience.items() if node not in self._silent)])

    def lost(self, node: int, why: str) -> None:
        """A request to this broker timed out: it gets no further one until it has answered a probe, and then twice the time."""
        with self._lock:
            if node in self._silent or self._over.is_set():
                return
            self._silent[node] = why
            self._patience[node] = min(self._most, 2 * self._patience.get(node, SILENT_SECONDS))
        log.warning("broker_silent node=%d: %s", node, why)
        self._watch(node)

    def heard(self, node: int, seconds: float) -> None:
        """The broker's slowest answer took ``seconds``."""
        with self._lock:
            if node in self._patience:
                wanted = min(self._most, 2 * seconds)
                if wanted > SILENT_SECONDS:
                    self._patience[node] = wanted
                else:
                    del self._patience[node]

    def end(self) -> None:
        """Stop probing."""
        self._over.set()

    def _watch(self, node: int) -> None:
        threading.Thread(target=self._probe, args=(node,), name=f"probe-{node}", daemon=True).start()

    def _probe(self, node: int) -> None:
        pause = FIRST_PROBE_SECONDS
        try:
            while not self._over.wait(pause):
                try:
                    self._answers(node)
                except BrokerError:
                    return  # it answers; requests for records will show what it refuses
                except MirrorError as error:
                    log.debug("broker_silent node=%d: %s", node, error.message)
                    pause = min(2 * pause, RAREST_PROBE_SECONDS)
                else:
                    log.info("broker_answers node=%d", node)
                    return
        finally:
            with self._lock:
                self._silent.pop(node, None)


def prober(cluster: ClusterSettings) -> Callable[[int], None]:
    """A probe: asks a broker for metadata over a new connection."""

    def ask(node: int) -> None:
        with WireClient(cluster, timeout=BROKER_PROBE_SECONDS) as client:
            client.metadata(())
            client.connection(node, within=BROKER_PROBE_SECONDS)  # which asks whose broker answers

    return ask
