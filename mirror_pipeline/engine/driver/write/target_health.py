"""Whether the target answers: which of its brokers are silent, and for how long nothing has come from any of them, or for one partition."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from mirror_pipeline.engine.driver.context import LaneContext, Patience, backoff
from mirror_pipeline.engine.driver.silent_brokers import SilentBrokers, prober
from mirror_pipeline.errors import ClusterUnreachable, ConnectionLost
from mirror_pipeline.kafka.client import WireClient

log = logging.getLogger(__name__)


class TargetHealth:
    """Separates trouble with single brokers, whose partitions wait alone, from the loss of the whole target."""

    def __init__(self, context: LaneContext, client: WireClient) -> None:
        self._context = context
        self._state = context.state
        self._client = client
        self._patience = Patience(context.mirror.engine.target_wait)
        self._failures = 0
        self.silent = SilentBrokers(prober(context.target), most=context.mirror.engine.request_timeout)

    def close(self) -> None:
        """Stop probing silent brokers; a run that leaves partitions because nobody answers for them ends with the target down."""
        self.silent.end()
        with self._state.lock:
            unreached = next((part for part in self._state.left() if not part.writing.reached), None)
            if unreached is not None:
                self._state.target_lost(unreached.writing.left)

    def answered(self) -> None:
        """At least one partition's leader has answered."""
        self._patience.found()
        with self._state.lock:
            if self._state.target_down:
                for part in self._state.sendable():
                    part.writing.waits_since = None
            self._state.target_back()

    def acknowledged(self) -> None:
        """The target has taken records."""
        self._failures = 0
        self.answered()

    def idle(self) -> None:
        """No partition waits for the target."""
        self._patience.found()

    def give_up(self) -> None:
        """Leave out of a ``once`` run the partitions of which a target that answers takes nothing for too long; with the state locked."""
        if not self._context.once or self._state.target_down:
            return
        before = time.monotonic() - self._context.mirror.engine.target_wait
        for part in self._state.sendable():
            if part.writing.waits_since is not None and part.writing.waits_since < before:
                log.warning("%s is left for the next run: %s", part.target, part.writing.error)
                self._state.leave(part)

    def lost(self, error: ConnectionLost | ClusterUnreachable) -> None:
        """Wait before the next try, with all outcomes unknown. Raises ClusterUnreachable after too long a loss for a ``once`` run."""
        self._failures += 1
        with self._state.lock:
            self._state.target_lost(error.message)
            for part in self._state.sendable():
                part.writing.outcome_unknown = True
        self._patience.lost(
            ClusterUnreachable(self._context.target.alias, error.message, hint=error.hint),
            forever=not self._context.once,
        )
        self._context.stop.wait(backoff(self._failures))

    def avoid_silent(self) -> None:
        """Brokers that let a question time out get no further request until they have answered a probe."""
        for node, why in self._client.take_silent().items():
            self.silent.lost(node, why)
        self._client.avoid(list(self.silent.now))

    def others_well(self, silent: Collection[int | None]) -> bool:
        """Whether partitions led by other brokers than the ``silent`` ones are known to be well (None: they have no leader)."""
        with self._state.lock:
            well = [part.target for part in self._state.sendable() if not part.writing.outcome_unknown]
        return any(self._client.known_leader(target) not in silent for target in well)
