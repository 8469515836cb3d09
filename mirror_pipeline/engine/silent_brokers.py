"""Brokers that do not answer: asked again in the background, so that nobody waits for them who has other work.

A broker whose process hangs or whose network is gone keeps its leadership for a while, or for good, and every question to it
costs its whole time limit. So one question that takes too long puts it off; its partitions are left out until it answers a
probe. A broker that is only slow (a cold disk) answers the probe at once: it gets twice the time then, and so makes progress.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError, MirrorError
from mirror_pipeline.kafka.client import WireClient

log = logging.getLogger(__name__)

# A pause of the collector in a broker that is well takes less, and nobody's records should wait much longer for others'.
SILENT_SECONDS = 1.5
# Over a long way a question, and even more an opening with TLS and SASL, takes its round trips.
PATIENT_ROUND_TRIPS = 10
FIRST_PROBE_SECONDS, RAREST_PROBE_SECONDS = 0.2, 2.0
PROBE_SECONDS = 5.0


class SilentBrokers:
    """Which brokers of a cluster do not answer now, and how long each is waited for.

    Args:
        answers: returns once a broker answers, raises MirrorError when it does not; called in threads of its own.
        most: seconds that are never exceeded, the request timeout.
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
        """Node ids of those that are silent, and how that showed."""
        with self._lock:
            return dict(self._silent)

    def patience(self) -> dict[int, float]:
        """Seconds to wait for brokers that were slow; ``SILENT_SECONDS`` for all others."""
        with self._lock:
            return dict(self._patience)

    def longest(self) -> float:
        """Seconds to wait where a question goes to all of them."""
        with self._lock:
            return max([SILENT_SECONDS, *(seconds for node, seconds in self._patience.items() if node not in self._silent)])

    def lost(self, node: int, why: str) -> None:
        """This one let a question time out: it is asked nothing until it has answered a probe, and then has twice the time."""
        with self._lock:
            if node in self._silent or self._over.is_set():
                return
            self._silent[node] = why
            self._patience[node] = min(self._most, 2 * self._patience.get(node, SILENT_SECONDS))
        log.warning("broker_silent node=%d: %s", node, why)
        self._watch(node)

    def heard(self, node: int, seconds: float) -> None:
        """The slowest of its answers took so long."""
        with self._lock:
            if node in self._patience:
                wanted = min(self._most, 2 * seconds)
                if wanted > SILENT_SECONDS:
                    self._patience[node] = wanted
                else:
                    del self._patience[node]

    def end(self) -> None:
        """Probe no more."""
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
                    return  # it answers; what it refuses shows where it is asked for records
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
    """Asks a broker, over a connection that is opened for it."""

    def ask(node: int) -> None:
        with WireClient(cluster, timeout=PROBE_SECONDS) as client:
            client.metadata(())
            client.connection(node, within=PROBE_SECONDS)

    return ask
