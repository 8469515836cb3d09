"""Prepares topics for a lane: their identity on both sides, the position of their copy, what is staged already.

``update`` needs the source alone, ``finish`` needs the target as well. While the target is unreachable, topics that the ledger knows
continue to be staged, and new ones wait. Both clusters are asked once: a topic that is not ready is tried again later, by itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.state import TopicRun
from mirror_pipeline.engine.driver.topics.begin import TopicStarter
from mirror_pipeline.engine.driver.topics.deletion import forget_deleted
from mirror_pipeline.engine.driver.topics.first_seen import FirstSeen
from mirror_pipeline.engine.driver.topics.generations import follows
from mirror_pipeline.engine.driver.topics.join import resumed_runs
from mirror_pipeline.engine.driver.topics.policies import RulesLook, SourcePolicy, apply_policy, source_policies
from mirror_pipeline.engine.driver.topics.successors import Successors
from mirror_pipeline.engine.driver.topics.target import TargetSide
from mirror_pipeline.engine.driver.topics.waits import Waits, passes
from mirror_pipeline.errors import (
    BrokerError,
    BufferUnusable,
    ClusterUnreachable,
    ConnectionLost,
    LaneBusy,
    LaneLost,
    MirrorError,
    TopicHalted,
    WrongCluster,
)
from mirror_pipeline.halts import (
    ACCEPTABLE,
    GONE,
    LEFT_ALONE,
    PAUSED,
    Halt,
    gone,
    not_begun,
    other_cluster,
    other_target_cluster,
    recreated,
    refused_topic,
    renamed,
    source_missing,
)
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import ClusterMetadata, TopicMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.kafka.needs import SOURCE_NEEDS, require_topic_ids
from mirror_pipeline.kafka.security.identity import refuse_one_cluster
from mirror_pipeline.model import Decision, DecisionKind, Incarnation, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic

log = logging.getLogger(__name__)

ASTRAY_SECONDS = 15.0
"""Until a target whose every address leads to another cluster is asked again."""
DECISIONS_SECONDS = 3.0
"""While a topic is halted: between two looks whether an operator has accepted that."""


class Preparation:
    """Brings topics into the lane's state. Used by one thread at a time: the run's own until the others start, then :class:`Preparing`."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._state = context.state
        engine = context.mirror.engine
        self._source = WireClient(context.source, timeout=engine.request_timeout)
        self._source_admin = Admin(context.source)
        self._targets = TargetSide(context)
        self._first_seen = FirstSeen(context.store)
        self._waits = Waits(context)
        self._starter = TopicStarter(context, self._source, self._source_admin, self._targets, self._first_seen, self._waits)
        self.rules = RulesLook(self._state, self._source_admin, self._targets.admin)
        self._wanted: dict[str, LaneTopic] = {}
        self._successors = Successors(context, self._source, self._source_admin, self._targets, self._starter, self._wanted)
        self._astray_until = self._decisions_at = 0.0
        self._accepted: set[Decision] = set()
        self._source_met = False
        self._refused: set[str] = set()

    def close(self) -> None:
        """Close the connections."""
        self._source.close()
        self._targets.close()

    def start(self, topics: Collection[LaneTopic]) -> None:
        """Prepare the first topics.

        Raises:
            ClusterUnreachable: the source does not answer, or the target does not and no topic is known yet.
        """
        with suppress(WrongCluster):  # it halts what was copied
            self._source.require(SOURCE_NEEDS)
        self.update(topics)
        try:
            self.finish()
        except (ClusterUnreachable, ConnectionLost) as error:
            if topics and not self._state.topics:
                raise
            self._state.target_lost(error.message)

    def rediscover(self, discover: Callable[[], list[LaneTopic]]) -> None:
        """Take in topics and partitions that appeared since; after an error the next call tries again.

        Raises:
            BufferUnusable: the ledger cannot be read.
            LaneLost: another run has taken the lane over.
        """
        try:
            self.update(discover())
        except (BufferUnusable, LaneLost):
            raise
        except MirrorError as error:  # also NothingSelected: all topics are gone, and may come back
            self._state.searched(error.message)
        else:
            self._state.searched()

    def look_at_targets(self) -> None:
        """Let target topics be checked that others have deleted or made anew: a topic that sends nothing does not learn of it.

        Raises:
            ClusterUnreachable: the target does not answer.
        """
        known = self._context.ledger.incarnations()
        with self._state.lock:
            idle = [name for name, run in self._state.topics.items() if run.is_idle and name in known]
        found = self._targets.changed([known[name] for name in idle])
        with self._state.lock:
            for name in idle:
                run = self._state.topics[name]
                if isinstance(found.get(name), Halt) and run.is_idle:
                    run.target_checked = False

    def decided(self) -> bool:
        """Whether an operator has accepted what halts a topic, after the last call or before it halted: the topic may go on.

        Raises:
            BufferUnusable: decisions cannot be read.
        """
        if time.monotonic() < self._decisions_at:
            return False
        self._decisions_at = time.monotonic() + DECISIONS_SECONDS
        with self._state.lock:
            halts = {run.incarnation: run.halted.code for run in self._state.topics.values() if run.halted is not None}
        kinds = {incarnation: ACCEPTABLE[code] for incarnation, code in halts.items() if code in ACCEPTABLE}
        if not kinds:
            return False
        self._context.permits.read()
        accepted = {each for each in self._context.permits.decisions if kinds.get(each.incarnation) is each.kind}
        fresh = accepted - self._accepted
        self._accepted |= fresh
        return bool(fresh)

    def update(self, topics: Collection[LaneTopic]) -> None:
        """Look up ``topics`` on the source; known ones may be staged from here on, new and grown ones wait for the target."""
        self._wanted |= {topic.topic: topic for topic in topics}
        if not topics and not self._state.topics:
            return
        try:
            metadata = self._source.metadata([topic.topic for topic in topics])
        except WrongCluster as error:
            if self._source_met:
                raise
            self._halt_astray(topics, error)
            return
        self._meet_source(metadata)
        self._context.permits.read()
        self._forget_opened()
        known = self._context.ledger.incarnations()
        require_topic_ids(self._context.source.alias, metadata.topics.values())
        metadata = self._seen_twice(metadata, known)
        forget_deleted(self._state, metadata, known)
        fresh = [t for t in topics if t.topic not in self._state.topics and t.topic not in self._state.refused]
        runs = resumed_runs(self._context, {t.topic: known[t.topic] for t in fresh if t.topic in known}, self._wanted)
        if self._context.mirror.start != "earliest":
            self._first_seen.look(self._source, topics, metadata, known)
        policies = source_policies({*runs, *self._state.topics}, self._source_admin)
        self.rules.resume_resolved()
        with self._state.lock:  # together: nothing is read of a topic, or sent, before it was looked at
            self._resume_resolved()
            self._state.topics.update(runs)
            for name, policy in policies.items():
                apply_policy(self._state.topics[name], policy, fresh=name in runs)
            self._forget_vanished(topics)
            turned_away = {*self._turned_away(topics), *self._refuse_names(topics)}
            for topic in topics:
                if topic.topic not in turned_away:
                    self._look(topic, metadata, known.get(topic.topic), fresh=topic in fresh)

    def _forget_vanished(self, topics: Collection[LaneTopic]) -> None:
        """Topics that had not begun, and are not there any more, wait for nothing; with the state locked."""
        for name in self._state.unready.keys() - {topic.topic for topic in topics} - self._state.topics.keys():
            del self._state.unready[name]

    def _refuse_names(self, topics: Collection[LaneTopic]) -> set[str]:
        """Halt topics that cannot be copied under their names, and let go of those that can now, or are gone; with the state locked."""
        refusals = {topic.topic: topic.refusal for topic in topics if topic.refusal is not None}
        for name in self._refused - refusals.keys():
            self._state.refused.pop(name, None)
        self._refused = set(refusals)
        for name, halt in refusals.items():
            self._state.unready.pop(name, None)
            self._state.halt(name, halt)
        return self._refused

    def _meet_source(self, metadata: ClusterMetadata) -> None:
        """From the first contact on only this cluster is the source, also for the read tasks. Raises UsageError if it is the target."""
        if not self._source_met:
            self._lift("other_cluster")
        self._source_met = True
        if not self._context.source.cluster_id:
            self._context.source = replace(self._context.source, cluster_id=metadata.cluster_id)
            refuse_one_cluster(self._context.source, self._context.target)

    def _lift(self, code: str) -> None:
        """The right cluster answers again: halts for another one are over."""
        with self._state.lock:
            for run in self._state.topics.values():
                if run.halted is not None and run.halted.code == code:
                    run.halted, run.sendable, run.target_checked = None, True, False
            for name in [name for name, halt in self._state.refused.items() if halt.code == code]:
                del self._state.refused[name]

    def _halt_astray(self, topics: Collection[LaneTopic], error: WrongCluster) -> None:
        """At a start every address of the source leads to another cluster; in the middle of a run the source counts as unreachable."""
        source, known = self._context.source, self._context.ledger.incarnations()
        runs = resumed_runs(self._context, {t.topic: known[t.topic] for t in topics if t.topic in known}, self._wanted)
        with self._state.lock:
            self._state.topics.update(runs)
            turned_away = self._turned_away(topics)
            for topic in topics:
                if topic.topic not in turned_away:
                    self._state.halt(topic.topic, other_cluster(topic.topic, source.alias, source.cluster_id, error.cluster_id))

    def _turned_away(self, topics: Collection[LaneTopic]) -> Collection[str]:
        """Halt topics that were promoted, or are copied the other way; with the state locked."""
        halts = self._context.permits.turned_away([topic.topic for topic in topics])
        for name, halt in halts.items():
            self._state.unready.pop(name, None)
            self._state.halt(name, halt, sendable=halt.code == PAUSED)
        return halts

    def _forget_opened(self) -> None:
        """Topics that `mirror failback` has opened are taken in like new ones; those that were resumed go on where they are."""
        with self._state.lock:
            away = {name: run.halted for name, run in self._state.topics.items()} | dict(self._state.refused)
            closed = {name: halt.code for name, halt in away.items() if halt is not None and halt.code in LEFT_ALONE}
            for name in closed.keys() - self._context.permits.turned_away(closed).keys():
                self._state.refused.pop(name, None)
                if name in self._state.topics and closed[name] == PAUSED:
                    self._state.topics[name].halted = None
                else:
                    self._state.topics.pop(name, None)

    def resume(self, topics: Collection[LaneTopic]) -> bool:
        """Resume topics from the ledger alone, without the source: only what is staged of them will be sent.

        Returns:
            Whether anything is staged.
        """
        self._wanted |= {topic.topic: topic for topic in topics}
        self._context.permits.read()
        known = self._context.ledger.incarnations()
        runs = resumed_runs(self._context, {t.topic: known[t.topic] for t in topics if t.topic in known}, self._wanted)
        with self._state.lock:
            for name, run in runs.items():
                self._state.topics[name] = run
                for part in run.partitions.values():  # with nothing staged the ledger knows all that was sent
                    part.writing.outcome_unknown = bool(part.pending)
                if run.target_topic != self._wanted[name].target_topic:
                    self._state.halt(name, renamed(name, run.target_topic, self._wanted[name].target_topic))
            self._turned_away(topics)
            self._refuse_names(topics)
            return any(part.pending for part in self._state.sendable())

    def _seen_twice(self, metadata: ClusterMetadata, known: Mapping[str, Incarnation]) -> ClusterMetadata:
        """Look again at topics that seem to be gone or recreated: one broker's metadata may be out of date."""
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
        """Whether this run already knows that the topic is gone or recreated."""
        with self._state.lock:
            run = self._state.topics.get(name)
            halt = self._state.refused.get(name) or (run.halted if run is not None else None)
        return name in self._successors.waiting or (halt is not None and halt.code in ("recreated", *GONE))

    def finish(self) -> None:
        """Do what needs the target, as far as it is due: create and check topics, begin new generations, get the producer id.

        Raises:
            ClusterUnreachable, ConnectionLost: the target does not answer, or not for now.
        """
        if time.monotonic() < self._astray_until:
            return
        try:
            self._finish()
        except BrokerError as error:
            if not passes(error):
                raise
            raise ConnectionLost(error.message, hint=error.hint) from error

    def _finish(self) -> None:
        with self._state.lock:
            unchecked = {run.topic: run for run in self._state.unchecked()}
            due = [unchecked[name] for name in self._waits.due(unchecked)]
        if self._context.state.stamp is None:
            try:
                self._context.state.stamp = self._targets.stamp()
            except WrongCluster as error:
                if self._targets.cluster_id:
                    raise
                self._halt_there(list(unchecked.values()), error)
                return
            self._lift("other_target_cluster")
        if due:
            self._check(due)
        self._begin_due()

    def _halt_there(self, runs: Sequence[TopicRun], error: WrongCluster) -> None:
        """At a start every address of the target leads to another cluster; in the middle of a run the target counts as unreachable."""
        target = self._context.target
        self._astray_until = time.monotonic() + ASTRAY_SECONDS
        with self._state.lock:
            for run in runs:
                self._apply_target_check(run, other_target_cluster(run.topic, target.alias, target.cluster_id, error.cluster_id))

    def _begin_due(self) -> None:
        """Begin topics and next generations; a source that does not answer must not keep staged spans from the target."""
        drained = self._successors.ready()
        with self._state.lock:
            if self._state.source_lost is not None:
                return
            later = {*self._successors.waiting, *(run.topic for run in self._state.unchecked())}
            waiting = [self._wanted[name] for name in self._waits.due(name for name in self._state.unready if name not in later)]
            succeeding = self._waits.due(drained)
        if not waiting and not succeeding:
            return
        try:
            self._starter.begin(waiting)
            self._successors.begin(succeeding)
        except LaneBusy as error:
            self._put_off(waiting, f"another mirror is starting topics: {error.message}", error)
        except ClusterUnreachable as error:
            if error.cluster != self._context.source.alias:
                raise
            self._put_off(waiting, f"waits for the source: {error.message}", error)

    def _put_off(self, topics: Sequence[LaneTopic], why: str, error: MirrorError) -> None:
        for topic in topics:
            if not self._waits.put_off(topic.topic, why, most=self._context.mirror.engine.source_wait):
                with self._state.lock:
                    self._state.unready.pop(topic.topic, None)
                    self._state.halt(topic.topic, not_begun(topic.topic, error))

    def _resume_resolved(self) -> None:
        """Resume topics whose missing offsets an operator has accepted since, leave out those whose loss was; with the state locked."""
        for run in list(self._state.topics.values()):
            halt = run.halted
            if halt is not None and halt.code in GONE:
                run.left_out = bool(self._context.permits.accepted(DecisionKind.SOURCE_GONE, run.incarnation))
                continue
            if halt is not None and ACCEPTABLE.get(halt.code) is DecisionKind.TARGET:
                if self._context.permits.accepted(DecisionKind.TARGET, run.incarnation):
                    run.resume()  # the target's check starts it over, or says what is wrong with it now
                continue
            if halt is None or halt.partition is None or halt.span is None:
                continue
            start, end = halt.span
            approved = self._context.permits.approved(run.incarnation, TopicPartition(run.topic, halt.partition))
            if any(low <= start and end <= high for low, high in approved):
                run.halted = None

    def _look(self, topic: LaneTopic, metadata: ClusterMetadata, known: Incarnation | None, *, fresh: bool) -> None:
        """Compare one topic with the source's metadata and halt it where they disagree; with the state locked."""
        found = metadata.topics.get(topic.topic)
        name, alias = topic.topic, self._context.source.alias
        if known is not None and known.source_cluster_id != metadata.cluster_id:  # a ledger of topics of several clusters
            self._state.halt(name, other_cluster(name, alias, known.source_cluster_id, metadata.cluster_id))
            return
        if found is None or found.error:
            reason = broker_error(found.error, name) if found is not None else None
            if known is not None and reason is not None and reason.code == UNKNOWN_TOPIC_OR_PARTITION:
                self._state.halt(name, gone(name, alias, self._context.mirror.topics.on_source_delete), sendable=True)
            elif known is None and reason is not None and reason.retryable:
                self._state.unready.setdefault(name, str(reason))
            elif known is not None and fresh and reason is not None and not reason.retryable:
                self._state.halt(name, refused_topic(name, reason), sendable=True)
            elif fresh and not (reason is not None and reason.retryable):
                self._state.halt(name, not_begun(name, reason) if reason is not None else source_missing(name), sendable=True)
            return
        self._is_back(name)
        if known is None:
            self._state.unready.setdefault(name, "waits for the target cluster")
            return
        if follows(self._context, known, found.topic_id):
            self._successors.drain(name)
        elif known.topic_id != found.topic_id:
            self._state.halt(name, recreated(name, known.incarnation, found.topic_id), sendable=True)
        elif known.target_topic != topic.target_topic:
            self._state.halt(name, renamed(name, known.target_topic, topic.target_topic))
        elif len(found.partitions) > len(known.starts) and topic.ranges is None:
            self._state.unready.setdefault(name, f"grew to {len(found.partitions)} partitions, waits for the target cluster")

    def _is_back(self, name: str) -> None:
        """A topic that was gone exists again, recreated or not, or its cluster is back; with the state locked."""
        run = self._state.topics.get(name)
        if run is not None and run.halted is not None and run.halted.code == "other_cluster":
            run.resume()
        elif run is not None and run.halted is not None and run.halted.code in GONE:
            run.halted, run.left_out = None, False

    def _check(self, runs: list[TopicRun]) -> None:
        """Check that the target topic of every resumed topic is still the one the copy went to."""
        known = self._context.ledger.incarnations()
        found = self._targets.changed([known[run.topic] for run in runs if run.topic in known])
        halts = {topic: halt for topic, halt in found.items() if isinstance(halt, Halt)}
        runs = [run for run in runs if run.topic in known and not (run.topic in halts and self._targets.settled(run, known[run.topic]))]
        rules = self._rules(runs)
        for run in runs:
            halt, error = halts.get(run.topic), found.get(run.topic)
            try:
                if isinstance(error, BrokerError):
                    raise error
                if run.topic in rules and run.halted is None and self._successors.start_over(known[run.topic]):
                    continue
            except TopicHalted as halted:
                halt = halted.halt
            except BrokerError as refusal:
                if self._starter.waits(run.topic, refusal):
                    continue
                halt = refused_topic(run.topic, refusal)
            self._waits.over(run.topic)
            with self._state.lock:
                self._apply_target_check(run, halt)
                if run.topic in rules:
                    run.max_batch_bytes, policy = rules[run.topic]
                    apply_policy(run, policy)

    def _rules(self, runs: Sequence[TopicRun]) -> dict[str, tuple[int, SourcePolicy]]:
        """The topics' settings; none in a run that does not ask the source, or while it does not answer: the last known ones count."""
        if self._context.drain:
            return {}
        try:
            return self._targets.rules([(run.topic, run.target_topic) for run in runs], self._source_admin)
        except ClusterUnreachable as error:
            if error.cluster != self._context.source.alias:
                raise
            log.info("the settings of the source's topics are unknown: %s", error.message)
            return {}

    def _apply_target_check(self, run: TopicRun, halt: Halt | None) -> None:
        """Take over the check of a target topic; its halt also stops staged spans; with the state locked."""
        run.target_checked, run.waits = True, ""
        self._state.lock.notify_all()
        if halt is not None:
            run.halted = None  # of two halts the target's counts: it stops staged spans as well
            self._state.halt(run.topic, halt)


def _is_another(found: TopicMetadata, known: Incarnation) -> bool:
    """Whether the source's topic is not the one that was copied: deleted or recreated."""
    return found.error == UNKNOWN_TOPIC_OR_PARTITION or (not found.error and found.topic_id != known.topic_id)
