"""The next generation of a topic: begun once the staged records of the last one are sent, or at once in an emptied target topic."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.state import TopicRun
from mirror_pipeline.engine.driver.topics.begin import TopicStarter
from mirror_pipeline.engine.driver.topics.generations import drained, restarted, successor_of
from mirror_pipeline.engine.driver.topics.join import first_offsets
from mirror_pipeline.engine.driver.topics.target import TargetSide
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConnectionLost, MirrorError, TopicHalted
from mirror_pipeline.halts import not_begun
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.model import DecisionKind, Incarnation
from mirror_pipeline.topics.lanes import LaneTopic


class Successors:
    """Topics that drain, and the generations that replace them.

    Args:
        context: the lane.
        source: asked for the topics' first offsets.
        source_admin: the source, for settings.
        targets: creates and looks at target topics.
        starter: its waiting rule also holds here.
        wanted: the lane's topics by name, kept up to date by the caller.
    """

    def __init__(
        self, context: LaneContext, source: WireClient, source_admin: Admin, targets: TargetSide, starter: TopicStarter,
        wanted: Mapping[str, LaneTopic],
    ) -> None:  # fmt: skip
        self._context = context
        self._state = context.state
        self._source = source
        self._source_admin = source_admin
        self._targets = targets
        self._starter = starter
        self._wanted = wanted
        self.waiting: set[str] = set()

    def drain(self, name: str) -> None:
        """Let a topic send what is staged before its next generation begins; with the state locked."""
        self.waiting.add(name)
        self._state.unready[name] = "the topic's next generation begins once the staged records of the last one are sent"
        run = self._state.topics.get(name)
        if run is not None:
            run.draining, run.halted, run.sendable = True, None, True

    def ready(self) -> list[str]:
        """The topics whose last generation is drained and recorded."""
        recorded = self._context.ledger.positions() if self.waiting else {}
        with self._state.lock:
            runs = {name: run for name in sorted(self.waiting) if (run := self._state.topics.get(name)) is not None}
            return [name for name, run in runs.items() if drained(run, recorded)]

    def begin(self, names: Collection[str]) -> None:
        """Begin the next generation of drained topics. One that cannot begin halts, or waits; the others go on."""
        generations = self._context.ledger.incarnations() if names else {}
        for name in names:
            try:
                self._start(self._next_generation(self._wanted[name], generations[name], self._state.topics[name]))
            except (ClusterUnreachable, ConnectionLost):
                raise
            except (BrokerError, TopicHalted) as error:
                if self._starter.waits(name, error):
                    continue
                with self._state.lock:
                    self._state.unready.pop(name, None)
                    self._state.halt(name, not_begun(name, error))
            self.waiting.discard(name)

    def start_over(self, known: Incarnation) -> bool:
        """Copy a topic again from its first offset if an operator has accepted the target topic as it is now."""
        decided = self._context.permits.accepted(DecisionKind.TARGET, known.incarnation)
        found = self._targets.topic_id(known.target_topic) if decided else ""
        if not any(decision.subject == found for decision in decided):
            return False
        bounds = self._targets.bounds(known.target_topic)
        self._targets.refuse_filled(self._wanted[known.topic], bounds)
        again, ends = restarted(known, found), {number: end for number, (_, end) in bounds.items()}
        self._start(self._targets.continued(again, ends, self._context.ledger.generations().values()))
        return True

    def _next_generation(self, topic: LaneTopic, known: Incarnation, run: TopicRun) -> Incarnation:
        found = self._source.metadata([topic.topic]).topics[topic.topic]
        if found.error:
            raise broker_error(found.error, topic.topic)
        plans = self._targets.plans([topic], self._source_admin)
        if topic.topic not in plans:
            raise broker_error(UNKNOWN_TOPIC_OR_PARTITION, topic.topic)
        target = self._targets.ensure([topic], plans, self._source_admin)[topic.topic]
        if isinstance(target, MirrorError):
            raise target
        ends = {number: end for number, (_, end) in target[1].items()}
        starts = first_offsets(self._source, topic, sorted(found.partitions), "earliest")
        following = successor_of(self._context, known, run, found.topic_id, starts)
        earlier = self._context.ledger.generations().values()
        return self._targets.continued(following, ends, earlier, recorded=run.partitions)

    def _start(self, generation: Incarnation) -> None:
        """Record a topic's next generation and replace its run."""
        self._context.ledger.add_incarnations([generation])
        (run,) = self._starter.checked_runs([generation], {generation.topic: self._wanted[generation.topic].ranges})
        with self._state.lock:
            self._state.topics[generation.topic] = run
            self._state.unready.pop(generation.topic, None)
