"""Getting topics ready for a lane: who they are on both sides, where their copy stands, what is staged already.

The source side can be prepared alone. While the target is away, topics the ledger knows go on being staged,
and new ones wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from mirror_pipeline.engine.context import LaneContext
from mirror_pipeline.engine.read import divergence
from mirror_pipeline.engine.read.divergence import recreated
from mirror_pipeline.engine.state import TopicRun
from mirror_pipeline.engine.topics.begin import TopicStarter
from mirror_pipeline.engine.topics.first_seen import FirstSeen
from mirror_pipeline.engine.topics.generations import drained, follows, restarted, successor_of
from mirror_pipeline.engine.topics.join import first_offsets, other_cluster, renamed, resumed_runs, source_gone
from mirror_pipeline.engine.topics.policies import RulesLook, apply_policy, source_policies
from mirror_pipeline.engine.topics.target import TargetSide
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConnectionLost, LaneBusy, MirrorError, TopicHalted
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import ClusterMetadata, TopicMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.kafka.needs import SOURCE_NEEDS, require_topic_ids
from mirror_pipeline.model import DecisionKind, Incarnation, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic

log = logging.getLogger(__name__)

BEGIN_AGAIN_SECONDS = 15.0
READY_AGAIN_SECONDS = 1.0
"""Before topics are begun again: of a source that did not answer, and whose brokers were not ready for them."""


class Preparation:
    """Brings topics into the lane's state. Called by the run's own thread and by the producing thread."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._state = context.state
        engine = context.mirror.engine
        self._source = WireClient(context.source, timeout=engine.request_timeout)
        self._source_admin = Admin(context.source)
        self._targets = TargetSide(context)
        self._first_seen = FirstSeen(context.store)
        self._starter = TopicStarter(context, self._source, self._source_admin, self._targets, self._first_seen)
        self.rules = RulesLook(self._state, self._source_admin, self._targets.admin)
        self._busy = threading.Lock()
        self._wanted: dict[str, LaneTopic] = {}
        self._successors: set[str] = set()
        self._begin_at = 0.0

    def close(self) -> None:
        """Close the connections."""
        self._source.close()
        self._targets.close()

    def start(self, topics: Collection[LaneTopic]) -> None:
        """Prepare the first topics.

        Raises:
            ClusterUnreachable: the source does not answer, or the target does not and no topic is known yet.
        """
        self._source.require(SOURCE_NEEDS)
        self.update(topics)
        try:
            self.finish()
        except (ClusterUnreachable, ConnectionLost) as error:
            if topics and not self._state.topics:
                raise
            self._state.target_lost(error.message)

    def rediscover(self, discover: Callable[[], list[LaneTopic]]) -> None:
        """Take in topics and partitions that appeared since; trouble with a cluster is left to the next time."""
        try:
            self.update(discover())
        except (ClusterUnreachable, ConnectionLost) as error:
            log.info("looking for new topics: %s", error.message)

    def update(self, topics: Collection[LaneTopic]) -> None:
        """Look at ``topics`` on the source; known ones may be staged from here on, new and grown ones wait for the target."""
        with self._busy:
            self._wanted |= {topic.topic: topic for topic in topics}
            if not topics and not self._state.topics:
                return
            metadata = self._source.metadata([topic.topic for topic in topics])
            self._context.read_decisions()
            known = self._context.ledger.incarnations()
            require_topic_ids(self._context.source.alias, metadata.topics.values())
            metadata = self._seen_twice(metadata, known)
            fresh = [t for t in topics if t.topic not in self._state.topics and t.topic not in self._state.refused]
            runs = resumed_runs(self._context, {t.topic: known[t.topic] for t in fresh if t.topic in known}, self._wanted)
            if self._context.mirror.start == "latest":
                self._first_seen.look(self._source, topics, metadata, known)
            policies = source_policies({*runs, *self._state.topics}, self._source_admin)
            self.rules.resume_resolved()
            with self._state.lock:  # together: nothing is read of a topic, or sent, before it was looked at
                self._resume_resolved()
                self._state.topics.update(runs)
                for name, policy in policies.items():
                    apply_policy(self._state.topics[name], policy, fresh=name in runs)
                for topic in topics:
                    self._look(topic, metadata, known.get(topic.topic), fresh=topic in fresh)

    def resume(self, topics: Collection[LaneTopic]) -> bool:
        """Take up topics that the ledger knows without asking the source: only what is staged of them will be sent.

        Returns:
            Whether anything is staged.
        """
        with self._busy:
            self._wanted |= {topic.topic: topic for topic in topics}
            self._context.read_decisions()
            known = self._context.ledger.incarnations()
            runs = resumed_runs(self._context, {t.topic: known[t.topic] for t in topics if t.topic in known}, self._wanted)
            with self._state.lock:
                for name, run in runs.items():
                    self._state.topics[name] = run
                    for part in run.partitions.values():  # with nothing staged the ledger knows all that was sent
                        part.outcome_unknown = bool(part.pending)
                    if run.target_topic != self._wanted[name].target_topic:
                        self._state.halt(name, renamed(name, run.target_topic, self._wanted[name].target_topic))
                return any(part.pending for part in self._state.sendable())

    def _seen_twice(self, metadata: ClusterMetadata, known: Mapping[str, Incarnation]) -> ClusterMetadata:
        """Topics that seem to be gone, or another, are looked at once more: one broker alone may tell what is not so any more."""
        other = [
            name for name, found in metadata.topics.items()
            if name in known and _is_another(found, known[name]) and not self._is_another(name)
        ]  # fmt: skip
        if not other:
            return metadata
        time.sleep(divergence.SECOND_LOOK_SECONDS)
        self._source.ask_elsewhere()
        return replace(metadata, topics=metadata.topics | self._source.metadata(other).topics)

    def _is_another(self, name: str) -> bool:
        """Whether this run has found that out already."""
        with self._state.lock:
            run = self._state.topics.get(name)
            halt = self._state.refused.get(name) or (run.halted if run is not None else None)
        return name in self._successors or (halt is not None and halt.code in ("recreated", "source_gone"))

    def finish(self) -> None:
        """Do what needs the target: create and check topics, begin new incarnations, get the producer id.

        Raises:
            ClusterUnreachable, ConnectionLost: the target does not answer, or not for now.
        """
        with self._state.lock:
            unchecked = any(self._is_unchecked(run) for run in self._state.topics.values())
        # A look at a source one of whose brokers is silent takes its time; what is staged of topics that are checked goes out meanwhile.
        if not self._busy.acquire(blocking=unchecked or self._context.stamp is None):
            return
        try:
            self._finish()
        except BrokerError as error:
            if not error.retryable:
                raise
            raise ConnectionLost(error.message, hint=error.hint) from error
        finally:
            self._busy.release()

    @staticmethod
    def _is_unchecked(run: TopicRun) -> bool:
        return not run.target_checked and (run.halted is None or run.sendable)

    def _finish(self) -> None:
        with self._state.lock:
            unchecked = [run for run in self._state.topics.values() if self._is_unchecked(run)]
            waiting = [self._wanted[name] for name in self._state.unready if name not in self._successors]
            beginning = (waiting or self._successors) and self._state.source_lost is None and time.monotonic() >= self._begin_at
        if unchecked or beginning or self._context.stamp is None:
            self._context.stamp = self._targets.stamp()
            self._check(unchecked)
            if beginning:
                self._begin(waiting)

    def _begin(self, waiting: Sequence[LaneTopic]) -> None:
        """Begin topics, and next lives; a source that does not answer must not keep what is staged from the target."""
        try:
            self._starter.begin(waiting)
            self._begin_successors()
            if self._starter.put_off:
                self._begin_at = time.monotonic() + READY_AGAIN_SECONDS
        except LaneBusy as error:
            log.info("new topics wait for another mirror that begins some: %s", error.message)
        except ClusterUnreachable as error:
            if error.cluster != self._context.source.alias:
                raise
            log.info("new topics wait for the source: %s", error.message)
            self._begin_at = time.monotonic() + BEGIN_AGAIN_SECONDS

    def _resume_resolved(self) -> None:
        """Topics go on whose missing offsets a person has accepted meanwhile, or leave; with the state locked."""
        for run in list(self._state.topics.values()):
            halt = run.halted
            if halt is not None and halt.code == "source_gone":
                run.left_out = bool(self._context.accepted(DecisionKind.SOURCE_GONE, run.incarnation))
                continue
            if halt is None or halt.partition is None or halt.span is None:
                continue
            start, end = halt.span
            approved = self._context.approved(run.incarnation, TopicPartition(run.topic, halt.partition))
            if any(low <= start and end <= high for low, high in approved):
                run.halted = None

    def _drain(self, name: str) -> None:
        """Let a topic send what is staged before its next life begins; with the state locked."""
        self._successors.add(name)
        self._state.unready[name] = "the next life of the topic begins when what is staged of the last one is sent"
        run = self._state.topics.get(name)
        if run is not None:
            run.draining, run.halted, run.sendable = True, None, True

    def _look(self, topic: LaneTopic, metadata: ClusterMetadata, known: Incarnation | None, *, fresh: bool) -> None:
        """Judge one topic by the source's metadata; with the state locked."""
        found = metadata.topics.get(topic.topic)
        name = topic.topic
        if found is None or found.error:
            reason = broker_error(found.error, name) if found is not None else None
            if known is not None and reason is not None and reason.code == UNKNOWN_TOPIC_OR_PARTITION:
                self._state.halt(name, source_gone(name, self._context.source.alias), sendable=True)
            elif fresh and not (reason is not None and reason.retryable):
                message = reason.message if reason else f"source topic {name} does not exist"
                self._state.halt(name, TopicHalted(name, message, hint=reason.hint if reason else ""), sendable=True)
            return
        self._is_back(name)
        if known is None:
            self._state.unready.setdefault(name, "waits for the target cluster")
            return
        if known.source_cluster_id != metadata.cluster_id:
            self._state.halt(name, other_cluster(name, self._context.source.alias, known.source_cluster_id, metadata.cluster_id))
        elif follows(self._context, known, found.topic_id):
            self._drain(name)
        elif known.topic_id != found.topic_id:
            self._state.halt(name, recreated(name, known.incarnation, found.topic_id), sendable=True)
        elif known.target_topic != topic.target_topic:
            self._state.halt(name, renamed(name, known.target_topic, topic.target_topic))
        elif len(found.partitions) > len(known.starts) and topic.ranges is None:
            self._state.unready.setdefault(name, f"grew to {len(found.partitions)} partitions, waits for the target cluster")

    def _is_back(self, name: str) -> None:
        """A topic that was gone exists again, as itself or as another one; with the state locked."""
        run = self._state.topics.get(name)
        if run is not None and run.halted is not None and run.halted.code == "source_gone":
            run.halted, run.left_out = None, False

    def _check(self, runs: list[TopicRun]) -> None:
        """Is the target topic of every resumed topic still the one the copy went to?"""
        known = self._context.ledger.incarnations()
        halts = self._targets.changed([known[run.topic] for run in runs])
        if self._context.drain:
            with self._state.lock:
                for run in runs:
                    self._apply_target_check(run, halts.get(run.topic))
            return
        rules = self._targets.rules([(run.topic, run.target_topic) for run in runs], self._source_admin)
        for run in runs:
            halt = halts.get(run.topic)
            try:
                if run.halted is None and self._start_over(known[run.topic]):
                    continue
            except TopicHalted as error:
                halt = error
            with self._state.lock:
                self._apply_target_check(run, halt)
                run.max_batch_bytes, policy = rules[run.topic]
                apply_policy(run, policy)

    def _apply_target_check(self, run: TopicRun, halt: TopicHalted | None) -> None:
        """Whether records may go to its target topic: what is wrong there keeps even staged ones; with the state locked."""
        run.target_checked = True
        if halt is not None:
            run.halted = None  # of two reasons this one stands in the way of what is staged
            self._state.halt(run.topic, halt)

    def _start_over(self, known: Incarnation) -> bool:
        """Copy a topic again from its first offset where a person has accepted the target topic as it is now."""
        decided = self._context.accepted(DecisionKind.TARGET, known.incarnation)
        found = self._targets.topic_id(known.target_topic) if decided else ""
        if not any(decision.subject == found for decision in decided):
            return False
        bounds = self._targets.bounds(known.target_topic)
        self._targets.refuse_filled(self._wanted[known.topic], bounds)
        self._start_successor(restarted(known, found, {number: end for number, (_, end) in bounds.items()}))
        return True

    def _begin_successors(self) -> None:
        """Begin the next life of topics whose last one is drained."""
        generations = self._context.ledger.incarnations() if self._successors else {}
        for name in sorted(self._successors):
            with self._state.lock:
                run = self._state.topics.get(name)
                ready = run is not None and drained(run)
            if run is None or not ready:
                continue
            try:
                self._start_successor(self._next_life(self._wanted[name], generations[name], run))
            except BrokerError as error:
                if not self._starter.waits(name, error):
                    raise
                continue
            self._successors.discard(name)

    def _next_life(self, topic: LaneTopic, known: Incarnation, run: TopicRun) -> Incarnation:
        found = self._source.metadata([topic.topic]).topics[topic.topic]
        if found.error:
            raise broker_error(found.error, topic.topic)
        target = self._targets.ensure([topic], self._targets.plans([topic], self._source_admin))[topic.topic]
        if isinstance(target, MirrorError):
            raise target
        ends = {number: end for number, (_, end) in target[1].items()}
        starts = first_offsets(self._source, topic, sorted(found.partitions), "earliest")
        return successor_of(self._context, known, run, found.topic_id, starts, ends)

    def _start_successor(self, generation: Incarnation) -> None:
        """Write the next life of a topic down and put it in the place of the last one."""
        self._context.ledger.add_incarnations([generation])
        (run,) = self._starter.checked_runs([generation], {generation.topic: self._wanted[generation.topic].ranges})
        with self._state.lock:
            self._state.topics[generation.topic] = run
            self._state.unready.pop(generation.topic, None)


def _is_another(found: TopicMetadata, known: Incarnation) -> bool:
    """Whether the source's topic is not the one that was copied: deleted, or made again."""
    return found.error == UNKNOWN_TOPIC_OR_PARTITION or (not found.error and found.topic_id != known.topic_id)
