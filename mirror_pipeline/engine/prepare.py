"""Getting topics ready for a lane: who they are on both sides, where their copy stands, what is staged already.

The source side can be prepared alone. While the target is away, topics the ledger knows go on being staged,
and new ones wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime

from mirror_pipeline.clusters.admin import Admin
from mirror_pipeline.engine.context import LaneContext, LaneTopic
from mirror_pipeline.engine.staging import recreated
from mirror_pipeline.engine.state import PartitionState, TopicRun
from mirror_pipeline.engine.targets import TargetSide
from mirror_pipeline.errors import ClusterUnreachable, ConnectionLost, MirrorError, TopicHalted
from mirror_pipeline.model import Incarnation, Position, TopicPartition
from mirror_pipeline.topics.plan import TargetPlan
from mirror_pipeline.wire.answers import EARLIEST, LATEST, ClusterMetadata
from mirror_pipeline.wire.client import WireClient
from mirror_pipeline.wire.codes import broker_error

log = logging.getLogger(__name__)


class Preparation:
    """Brings topics into the lane's state. Called by the run's own thread and by the producing thread."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._state = context.state
        engine = context.mirror.engine
        self._source = WireClient(context.source, timeout=engine.request_timeout)
        self._source_admin = Admin(context.source)
        self._targets = TargetSide(context)
        self._busy = threading.Lock()
        self._wanted: dict[str, LaneTopic] = {}
        self._source_cluster_id = ""

    def close(self) -> None:
        """Close the connections."""
        self._source.close()
        self._targets.close()

    def start(self, topics: Collection[LaneTopic]) -> None:
        """Prepare the first topics.

        Raises:
            ClusterUnreachable: the source does not answer, or the target does not and no topic is known yet.
        """
        self.update(topics)
        try:
            self.finish()
        except (ClusterUnreachable, ConnectionLost) as problem:
            if not self._state.topics:
                raise
            self._state.target_lost(problem.message)

    def rediscover(self, discover: Callable[[], list[LaneTopic]]) -> None:
        """Take in topics and partitions that appeared since; trouble with a cluster is left to the next time."""
        try:
            self.update(discover())
        except (ClusterUnreachable, ConnectionLost) as problem:
            log.info("looking for new topics: %s", problem.message)

    def update(self, topics: Collection[LaneTopic]) -> None:
        """Look at ``topics`` on the source; known ones may be staged from here on, new and grown ones wait for the target."""
        with self._busy:
            self._wanted |= {topic.topic: topic for topic in topics}
            if not topics:
                return
            metadata = self._source.metadata([topic.topic for topic in topics])
            self._source_cluster_id = metadata.cluster_id
            known = self._context.ledger.incarnations()
            fresh = [t for t in topics if t.topic not in self._state.topics and t.topic not in self._state.refused]
            resumed = [topic for topic in fresh if topic.topic in known]
            with self._state.lock:
                for topic in topics:
                    self._look(topic, metadata, known.get(topic.topic))
                resumed = [t for t in resumed if t.topic not in self._state.refused]
            self._resume({topic.topic: known[topic.topic] for topic in resumed})

    def finish(self) -> bool:
        """Do what needs the target: create and check topics, begin new incarnations, get the producer id.

        Returns:
            Whether records may be sent.

        Raises:
            ClusterUnreachable, ConnectionLost: the target does not answer.
        """
        with self._busy:
            with self._state.lock:
                unchecked = [run for run in self._state.topics.values() if not run.target_checked and run.halted is None]
                waiting = [self._wanted[name] for name in self._state.unready]
            if unchecked or waiting or self._context.stamp is None:
                self._context.stamp = self._targets.stamp()
                self._check(unchecked)
                self._begin(waiting)
            return True

    def _look(self, topic: LaneTopic, metadata: ClusterMetadata, known: Incarnation | None) -> None:
        """Judge one topic by the source's metadata; with the state locked."""
        found = metadata.topics.get(topic.topic)
        name = topic.topic
        if found is None or found.error:
            reason = broker_error(found.error, name) if found is not None else None
            if name not in self._state.topics and not (reason is not None and reason.retryable):
                message = reason.message if reason else f"source topic {name} does not exist"
                self._state.halt(name, TopicHalted(name, message, hint=reason.hint if reason else ""))
            return
        if known is None:
            self._state.unready.setdefault(name, "waits for the target cluster")
            return
        if known.source_cluster_id != metadata.cluster_id:
            self._state.halt(name, _other_cluster(name, self._context.source.alias, known.source_cluster_id, metadata.cluster_id))
        elif known.incarnation != found.topic_id:
            self._state.halt(name, recreated(name, known.incarnation, found.topic_id), sendable=True)
        elif known.target_topic != topic.target_topic:
            self._state.halt(name, _renamed(name, known.target_topic, topic.target_topic))
        elif len(found.partitions) > len(known.starts) and topic.ranges is None:
            self._state.unready.setdefault(name, f"grew to {len(found.partitions)} partitions, waits for the target cluster")

    def _resume(self, known: dict[str, Incarnation]) -> None:
        """Put known topics where the ledger and the buffer say they stand."""
        if not known:
            return
        positions = self._context.ledger.positions()
        runs = {name: self._run_of(incarnation, positions) for name, incarnation in known.items()}
        floors = {p.source: p.position.source_next for run in runs.values() for p in run.partitions.values()}
        for span in self._context.spans.pending(floors):
            run = runs.get(span.topic)
            if run is None or span.incarnation != run.incarnation or span.partition not in run.partitions:
                continue
            part = run.partitions[span.partition]
            part.pending.append(span)
            part.staged = max(part.staged, span.end)
            part.learned(span.end - span.start, span.bytes)
        with self._state.lock:
            for name, run in runs.items():
                if name not in self._state.refused:
                    self._state.topics.setdefault(name, run)

    def _run_of(self, incarnation: Incarnation, positions: dict[TopicPartition, Position]) -> TopicRun:
        wanted = self._wanted[incarnation.topic]
        run = TopicRun(incarnation.topic, incarnation.target_topic, incarnation.incarnation)
        for number, start in incarnation.starts.items():
            source = TopicPartition(incarnation.topic, number)
            position = positions.get(source) or Position(start, incarnation.target_starts[number], 0)
            run.partitions[number] = PartitionState(
                source, TopicPartition(incarnation.target_topic, number), incarnation.incarnation, position,
                position.source_next, hard_end=wanted.ranges[number][1] if wanted.ranges else None,
            )  # fmt: skip
        return run

    def _check(self, runs: list[TopicRun]) -> None:
        """Is the target topic of every resumed topic still the one the copy went to?"""
        known = self._context.ledger.incarnations()
        terms = self._targets.terms([(run.topic, run.target_topic) for run in runs], self._source_admin)
        for run in runs:
            halt = self._targets.same(known[run.topic])
            with self._state.lock:
                if halt is not None:
                    self._state.halt(run.topic, halt)
                run.max_batch_bytes, run.compacted = terms[run.topic]
                run.target_checked = True

    def _begin(self, topics: list[LaneTopic]) -> None:
        """Create or grow target topics and write down where the copy begins."""
        plans = self._targets.plans(topics, self._source_admin) if topics else {}
        for topic in topics:
            try:
                if topic.topic not in plans:
                    raise TopicHalted(topic.topic, f"source topic {topic.topic} does not exist any more")
                self._begin_one(topic, plans[topic.topic])
            except (ClusterUnreachable, ConnectionLost):
                raise
            except MirrorError as problem:
                with self._state.lock:
                    self._state.unready.pop(topic.topic, None)
                    self._state.halt(topic.topic, TopicHalted(topic.topic, problem.message, hint=problem.hint))

    def _begin_one(self, topic: LaneTopic, plan: TargetPlan) -> None:
        ledger = self._context.ledger
        metadata = self._source.metadata([topic.topic])
        found = metadata.topics[topic.topic]
        if found.error:
            raise broker_error(found.error, topic.topic)
        known = ledger.incarnations().get(topic.topic)
        partitions = sorted(topic.ranges) if topic.ranges else sorted(found.partitions)
        target_id, ends = self._targets.ensure(topic, plan)
        if known is None:
            self._targets.refuse_filled(topic)
        new = [number for number in partitions if known is None or number not in known.starts]
        starts = self._starts(topic, new, grown=known is not None)
        incarnation = Incarnation(
            topic=topic.topic,
            incarnation=found.topic_id,
            source_cluster_id=metadata.cluster_id,
            target_cluster_id=self._targets.cluster_id,
            target_topic=topic.target_topic,
            target_topic_id=target_id,
            starts=(known.starts if known else {}) | starts,
            target_starts=(known.target_starts if known else {}) | {number: ends[number] for number in new},
            at=int(time.time() * 1000),
        )
        ledger.add_incarnation(incarnation)
        fresh = self._run_of(incarnation, ledger.positions())
        fresh.max_batch_bytes, fresh.compacted = self._targets.terms([(topic.topic, topic.target_topic)], self._source_admin)[topic.topic]
        fresh.target_checked = True
        with self._state.lock:
            run = self._state.topics.setdefault(topic.topic, fresh)
            for number in new:
                run.partitions.setdefault(number, fresh.partitions[number])
            self._state.unready.pop(topic.topic, None)
        self._first_ends(run, new)

    def _first_ends(self, run: TopicRun, partitions: list[int]) -> None:
        """A ``once`` run reads up to the ends seen when the topic joined."""
        sources = {TopicPartition(run.topic, number): LATEST for number in partitions}
        answers = self._source.list_offsets(sources, isolation=1) if sources else {}
        with self._state.lock:
            for source, answer in answers.items():
                if not answer.error:
                    run.partitions[source.partition].end = answer.offset

    def _starts(self, topic: LaneTopic, partitions: list[int], *, grown: bool) -> dict[int, int]:
        """First source offset to copy. Partitions that appeared later are copied from their beginning."""
        if topic.ranges is not None:
            return {number: topic.ranges[number][0] for number in partitions}
        start = self._context.mirror.start
        at = EARLIEST if grown or start == "earliest" else LATEST if start == "latest" else _milliseconds(start)
        wanted = [TopicPartition(topic.topic, number) for number in partitions]
        answers = self._source.list_offsets(dict.fromkeys(wanted, at), isolation=1)
        missing = {tp: LATEST for tp, a in answers.items() if not a.error and a.offset < 0}
        answers |= self._source.list_offsets(missing, isolation=1) if missing else {}
        for tp, answer in answers.items():
            if answer.error:
                raise broker_error(answer.error, str(tp))
        return {tp.partition: answer.offset for tp, answer in answers.items()}


def _milliseconds(start: str | datetime) -> int:
    if isinstance(start, str):
        raise ValueError(start)
    return int(start.timestamp() * 1000)


def _other_cluster(topic: str, alias: str, known: str, found: str) -> TopicHalted:
    return TopicHalted(
        topic,
        f"cluster {alias} is another cluster than before: its id is {found}, {topic} was copied from {known}",
        hint="check bootstrap_servers; a new cluster needs a new mirror name",
    )


def _renamed(topic: str, known: str, found: str) -> TopicHalted:
    return TopicHalted(
        topic,
        f"{topic} has been mirrored to {known} so far, the configuration now says {found}",
        hint="keep `naming`, or give the mirror a new name to start over",
    )
