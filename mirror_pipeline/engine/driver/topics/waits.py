"""Topics that wait for brokers: why, and when each is tried again. Nothing else waits with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from mirror_pipeline.engine.driver.context import LaneContext, backoff
from mirror_pipeline.engine.driver.topics.policies import PASSING
from mirror_pipeline.engine.tasks.read.messages import PATIENT_ROUND_TRIPS
from mirror_pipeline.errors import BrokerError, MirrorError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import lookup

log = logging.getLogger(__name__)

# Topics due within this time are tried together: each try asks both clusters several questions, whatever the number of topics.
ASKED_TOGETHER_SECONDS = 0.5
# How long a leader may take to answer a question about many topics.
TOPIC_ANSWER_SECONDS = 3.0


def passes(error: MirrorError) -> bool:
    """Whether a broker refuses for now, as those of a new topic do until it has leaders."""
    return isinstance(error, BrokerError) and (error.retryable or lookup(error.code).action in PASSING)


def patience(client: WireClient) -> float:
    """Seconds for a leader's answer, which is asked for once: a topic without it waits, and the others go on."""
    return max(TOPIC_ANSWER_SECONDS, PATIENT_ROUND_TRIPS * client.round_trip)


class Waits:
    """The waiting topics of one run, each with a back-off of its own."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._state = context.state
        self._since: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._at: dict[str, float] = {}

    def due(self, names: Iterable[str]) -> list[str]:
        """The topics to try now."""
        now = time.monotonic()
        times = {name: self._at.get(name, 0.0) for name in names}
        due = min(times.values(), default=now + 1) <= now
        return [name for name, at in times.items() if at <= now + ASKED_TOGETHER_SECONDS] if due else []

    def put_off(self, name: str, why: str, *, most: float) -> bool:
        """Try a topic again later; False once a ``once`` run has waited for it for more than ``most`` seconds."""
        now = time.monotonic()
        since = self._since.setdefault(name, now)
        if self._context.once and now - since > most:
            return False
        tries = self._tries[name] = self._tries.get(name, 0) + 1
        self._at[name] = now + backoff(tries)
        with self._state.lock:
            run = self._state.topics.get(name)
            known = self._state.unready.get(name) if run is None or run.target_checked else run.waits
            if run is not None and not run.target_checked:
                run.waits = why
            else:
                self._state.unready[name] = why
        if known != why:
            log.info("topic_waits topic=%s: %s", name, why)
        return True

    def over(self, name: str) -> None:
        """A topic waits no more: it is ready, or halted."""
        for known in (self._since, self._tries, self._at):
            known.pop(name, None)
