"""Begins the copy of new and grown topics, many together: a mirror may have thousands of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext

from mirror_pipeline.config.starts import EARLIEST as EARLIEST_START
from mirror_pipeline.config.starts import StartMap
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.state import TopicRun
from mirror_pipeline.engine.driver.topics.first_seen import FirstSeen
from mirror_pipeline.engine.driver.topics.generations import bound_at
from mirror_pipeline.engine.driver.topics.join import Ranges, run_of
from mirror_pipeline.engine.driver.topics.padding import StillPadding
from mirror_pipeline.engine.driver.topics.policies import apply_policy
from mirror_pipeline.engine.driver.topics.start_offsets import impossible_starts, start_offsets
from mirror_pipeline.engine.driver.topics.target import TargetSide
from mirror_pipeline.engine.driver.topics.waits import Waits, passes, patience
from mirror_pipeline.engine.tasks.longlink.connection_count import is_long
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConnectionLost, CorruptBatch, MirrorError
from mirror_pipeline.halts import Halt, blocked, not_begun, source_missing, target_filled
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME, ClusterMetadata, TopicMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import LEADER_NOT_AVAILABLE, broker_error
from mirror_pipeline.kafka.fetch import fetch
from mirror_pipeline.kafka.offsets import log_range, offsets_or_errors
from mirror_pipeline.kafka.records.header import headers
from mirror_pipeline.model import LEAST_BYTES_PER_OFFSET, Incarnation, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic
from mirror_pipeline.topics.plan import TargetPlan

log = logging.getLogger(__name__)

# Topics that are created in one request and recorded in one transaction.
TOPICS_TOGETHER = 100
BATCH_LOOK_BYTES = 64 * 1024
# Fewer offsets are not worth a look: only records of kilobytes would make much of them.
WORTH_A_LOOK = 1_000_000


class TopicStarter:
    """Creates target topics and begins generations; a failure of one topic halts that topic alone."""

    def __init__(
        self, context: LaneContext, source: WireClient, source_admin: Admin, targets: TargetSide, first_seen: FirstSeen, waits: Waits
    ) -> None:
        self._context = context
        self._state = context.state
        self._source = source
        self._source_admin = source_admin
        self._targets = targets
        self._first_seen = first_seen
        self._waits = waits
        self._silent: set[int] = set()

    def begin(self, topics: Sequence[LaneTopic]) -> None:
        """Create or grow target topics and record where the copy begins. Brokers are asked once: what is not ready waits.

        Raises:
            ClusterUnreachable, ConnectionLost: a cluster does not answer; topics that have begun stay begun.
            LaneBusy: another mirror is beginning topics now.
        """
        if not topics:
            return
        self._silent.clear()
        self._leave_out_silent()
        known = self._context.ledger.incarnations()
        metadata = self._source.metadata([topic.topic for topic in topics])
        topics = self._led(topics, {topic.topic: self._without_leader(topic, metadata, known.get(topic.topic)) for topic in topics})
        unled = self._targets.without_leader([topic.target_topic for topic in topics])
        topics = self._led(topics, {topic.topic: unled.get(topic.target_topic) for topic in topics})
        if not topics:
            return
        claims = self._context.permits.claims
        if claims is not None:
            claims.look()
        plans = self._targets.plans(list(topics), self._source_admin)
        for start in range(0, len(topics), TOPICS_TOGETHER):
            chunk = topics[start : start + TOPICS_TOGETHER]
            for topic in chunk:
                if topic.topic not in plans:
                    self._refuse(topic.topic, source_missing(topic.topic))
            with claims.held(self._context.store) if claims is not None else nullcontext():
                self._begin_some(self._unclaimed([topic for topic in chunk if topic.topic in plans]), plans, metadata)

    def _leave_out_silent(self) -> None:
        """A broker of the source that has let a question time out is not asked again until topics are tried again."""
        self._silent |= self._source.take_silent().keys()
        self._source.avoid(self._silent)

    def _led(self, topics: Sequence[LaneTopic], unled: Mapping[str, BrokerError | None]) -> list[LaneTopic]:
        """The topics whose partitions all have leaders; the others wait, which costs no plan."""
        for name, error in unled.items():
            if error is not None and not self.waits(name, error):
                self._refuse(name, not_begun(name, error))
        return [topic for topic in topics if unled[topic.topic] is None]

    def _without_leader(self, topic: LaneTopic, metadata: ClusterMetadata, known: Incarnation | None) -> BrokerError | None:
        """The error of a partition that is to begin and has no leader on the source."""
        found = metadata.topics[topic.topic]
        if found.error:
            return None  # dealt with where the topic begins
        missing = (n for n in _new_partitions(topic, found, known) if n in found.partitions and found.partitions[n].leader < 0)
        number = next(missing, None)
        place = TopicPartition(topic.topic, number) if number is not None else None
        return broker_error(LEADER_NOT_AVAILABLE, f"{place} on cluster {self._context.source.alias}") if place is not None else None

    def _unclaimed(self, topics: Sequence[LaneTopic]) -> list[LaneTopic]:
        """Topics that no other mirror writes, or copies the other way; the others halt."""
        if self._context.permits.claims is None:
            return list(topics)
        known = self._context.ledger.incarnations()
        fresh = {topic.topic: topic.target_topic for topic in topics if topic.topic not in known}
        refused = self._context.permits.claims.refused(fresh, any_claim={topic.topic for topic in topics if topic.ranges is not None})
        if self._context.permits.directions is not None:
            refused |= self._context.permits.directions.look().refused(fresh)
        for name, halt in refused.items():
            self._refuse(name, halt)
        return [topic for topic in topics if topic.topic not in refused]

    def checked_runs(self, generations: Sequence[Incarnation], ranges: dict[str, Ranges]) -> list[TopicRun]:
        """Runs of topics whose targets have just been checked."""
        positions = self._context.ledger.positions()
        rules = self._targets.rules([(generation.topic, generation.target_topic) for generation in generations], self._source_admin)
        runs = [run_of(generation, positions, ranges.get(generation.topic), exact=self._context.exact) for generation in generations]
        for run in runs:
            run.max_batch_bytes, policy = rules[run.topic]
            apply_policy(run, policy, fresh=True)
            run.target_checked = True
            self._waits.over(run.topic)
        return runs

    def _begin_some(self, topics: Sequence[LaneTopic], plans: dict[str, TargetPlan], metadata: ClusterMetadata) -> None:
        known = self._context.ledger.incarnations()
        topics = self._startable(topics, metadata, known)
        firsts = self._first_offsets(topics, metadata, known)
        self._expect([topic for topic in topics if topic.topic not in known], metadata, firsts)
        targets = self._targets.ensure(topics, plans, self._source_admin)
        earlier = self._context.ledger.generations().values()
        generations: list[Incarnation] = []
        new: dict[str, list[int]] = {}
        for topic in topics:
            try:
                target = targets[topic.topic]
                if isinstance(target, MirrorError):
                    raise target
                generation, numbers = self._generation(topic, metadata, known.get(topic.topic), firsts, earlier, *target)
            except (ClusterUnreachable, ConnectionLost):
                raise
            except StillPadding as progress:
                self._waits.over(topic.topic)
                self._waits.put_off(topic.topic, str(progress), most=math.inf)
                continue
            except MirrorError as error:
                if not self.waits(topic.topic, error):
                    self._refuse(topic.topic, not_begun(topic.topic, error))
                continue
            generations.append(generation)
            new[topic.topic] = numbers
        if generations:
            self._write_down(generations, new, {topic.topic: topic.ranges for topic in topics})

    def _startable(
        self, topics: Sequence[LaneTopic], metadata: ClusterMetadata, known: Mapping[str, Incarnation]
    ) -> list[LaneTopic]:
        """Topics that can begin where ``start`` says; the others halt before anything is created."""
        start = self._context.mirror.start
        if not isinstance(start, StartMap):
            return list(topics)
        fresh = [
            topic.topic for topic in topics
            if topic.ranges is None and topic.topic not in known and not metadata.topics[topic.topic].error
            and self._first_seen.offsets(topic.topic, metadata.topics[topic.topic].topic_id, metadata.cluster_id) != {}
        ]  # fmt: skip
        wrong = impossible_starts(self._source, start, fresh)
        for name, said in wrong.items():
            self._refuse(name, blocked(name, (said,)))
        return [topic for topic in topics if topic.topic not in wrong]

    def _first_offsets(
        self, topics: Sequence[LaneTopic], metadata: ClusterMetadata, known: Mapping[str, Incarnation]
    ) -> dict[TopicPartition, int | BrokerError]:
        """Where the logs of partitions begin that are copied from there, asked of all topics together."""
        earliest = [
            (topic, metadata.topics[topic.topic]) for topic in topics
            if topic.ranges is None and (self._context.mirror.start == EARLIEST_START or topic.topic in known)
        ]  # fmt: skip
        parts = [TopicPartition(t.topic, n) for t, found in earliest for n in _new_partitions(t, found, known.get(t.topic))]
        found = offsets_or_errors(self._source, parts, EARLIEST_TIME, within=patience(self._source))
        self._leave_out_silent()
        return found

    def _expect(
        self, topics: Sequence[LaneTopic], metadata: ClusterMetadata, firsts: Mapping[TopicPartition, int | BrokerError]
    ) -> None:
        """Let Spark start beside the creation of the target topics, which brokers take a second for, if a large backlog waits.

        On a long link it is not needed, and each request would take as long as the topics' creation.
        """
        if self._context.mirror.start != EARLIEST_START or is_long(self._source.round_trip):
            return
        names = {topic.topic for topic in topics if topic.ranges is None and not metadata.topics[topic.topic].error}
        begins = {tp: begin for tp, begin in firsts.items() if tp.topic in names and isinstance(begin, int)}
        ends = offsets_or_errors(self._source, begins, LATEST_TIME, within=patience(self._source))
        bounds = {tp: (begin, end) for tp, begin in begins.items() if isinstance(end := ends[tp], int)}
        try:
            waiting = backlog_bytes(self._source, bounds)
        except ConnectionLost as error:  # it is an estimate: the broker's own topics will say what is wrong
            log.info("the size of the backlog is unknown: %s", error.message)
            return
        self._context.placement.expect(int(waiting))

    def _generation(
        self, topic: LaneTopic, metadata: ClusterMetadata, known: Incarnation | None,
        firsts: Mapping[TopicPartition, int | BrokerError], earlier: Collection[Incarnation], target_id: str,
        bounds: dict[int, tuple[int, int]],
    ) -> tuple[Incarnation, list[int]]:  # fmt: skip
        found = metadata.topics[topic.topic]
        if found.error:
            raise broker_error(found.error, topic.topic)
        new = _new_partitions(topic, found, known)
        starts = self._starts(topic, new, metadata, firsts)
        bounds = self._targets.padded(topic.target_topic, bounds, starts)
        reached = self._reached(topic, new, bounds) if known is None else {}
        generation = Incarnation(
            topic=topic.topic,
            incarnation=known.incarnation if known else found.topic_id,
            source_cluster_id=metadata.cluster_id,
            target_cluster_id=self._targets.cluster_id,
            target_topic=topic.target_topic,
            target_topic_id=target_id,
            starts=(known.starts if known else {}) | starts | reached,
            target_starts=known.target_starts if known else {},
            at=bound_at(known),
            ordinals=known.ordinals if known else {},
            producer_epoch=known.producer_epoch if known else 0,
            kept=known.kept if known else {number: bounds[number][0] for number in reached},
        )
        return self._targets.continued(generation, {number: end for number, (_, end) in bounds.items()}, earlier), new

    def _reached(self, topic: LaneTopic, new: Sequence[int], bounds: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """Where a copy with the source's offsets continues whose ledger was lost: where the target's logs end. Raises TopicHalted."""
        prove, context = self._context.tails_differ, self._context
        filled = {number: bounds[number] for number in new if bounds[number][0] < bounds[number][1]}
        if not (context.exact and filled and prove is not None):
            self._targets.refuse_filled(topic, bounds)
            return {}
        ours = log_range(self._source, [TopicPartition(topic.topic, n) for n in filled], isolation=1, within=patience(self._source))
        logs = {tp.partition: (log, filled[tp.partition]) for tp, log in ours.items()}
        timeout = context.mirror.engine.request_timeout
        why = prove(context.source, context.target, (topic.topic, topic.target_topic), logs, timeout=timeout)
        if why:
            count = sum(end - start for start, end in filled.values())
            raise target_filled(topic.topic, topic.target_topic, count, unproven=why).error()
        log.info("lost_ledger_resumed topic=%s: %s ends as the source does at the same offsets", topic.topic, topic.target_topic)
        return {number: end for number, (_, end) in filled.items()}

    def _starts(
        self, topic: LaneTopic, new: Sequence[int], metadata: ClusterMetadata, firsts: Mapping[TopicPartition, int | BrokerError]
    ) -> dict[int, int]:
        """First source offset of each new partition. Raises BrokerError."""
        asked = {number: firsts[tp] for number in new if (tp := TopicPartition(topic.topic, number)) in firsts}
        if not asked:
            try:
                return start_offsets(
                    self._source, self._first_seen, topic, self._context.mirror.start, new,
                    topic_id=metadata.topics[topic.topic].topic_id, cluster_id=metadata.cluster_id,
                )  # fmt: skip
            finally:
                self._leave_out_silent()
        starts = {}
        for number, answer in asked.items():
            if isinstance(answer, BrokerError):
                raise answer
            starts[number] = answer
        return starts

    def _write_down(self, generations: list[Incarnation], new: dict[str, list[int]], ranges: dict[str, Ranges]) -> None:
        crash_point("begin.before")
        self._context.ledger.add_incarnations(generations)
        crash_point("begin.after")
        fresh = self.checked_runs(generations, ranges)
        with self._state.lock:
            for begun in fresh:
                run = self._state.topics.setdefault(begun.topic, begun)
                run.waits = ""
                for number in new[begun.topic]:
                    run.partitions.setdefault(number, begun.partitions[number])
                self._state.unready.pop(begun.topic, None)
                self._state.refused.pop(begun.topic, None)

    def waits(self, name: str, error: MirrorError) -> bool:
        """Whether a topic is tried again later, because its brokers refuse for now. A ``once`` run waits for ``target_wait`` at most."""
        return passes(error) and self._waits.put_off(name, str(error), most=self._context.mirror.engine.target_wait)

    def _refuse(self, name: str, halt: Halt) -> None:
        """Halt a topic that cannot begin. Of one that has begun the new partitions alone wait, in a ``once`` run for the next run."""
        with self._state.lock:
            run = self._state.topics.get(name)
        why = str(halt.error())
        if run is not None and self._waits.put_off(name, why, most=0.0):
            return
        self._waits.over(name)
        with self._state.lock:
            self._state.unready.pop(name, None)
            if run is not None:
                run.waits = why
            else:
                self._state.halt(name, halt)


def _new_partitions(topic: LaneTopic, found: TopicMetadata, known: Incarnation | None) -> list[int]:
    """The source partitions that have not begun."""
    partitions = sorted(topic.ranges) if topic.ranges else sorted(found.partitions)
    return [number for number in partitions if known is None or number not in known.starts]


def backlog_bytes(source: WireClient, bounds: Mapping[TopicPartition, tuple[int, int]]) -> float:
    """About how many bytes lie between the bounds: as many an offset as in the first batches of the partition with most offsets.

    Of few offsets, and where that partition cannot be read, it is what the smallest records take.

    Args:
        source: the cluster.
        bounds: first offset and exclusive end of each partition.

    Raises:
        ConnectionLost: the broker broke off.
    """
    offsets = sum(end - begin for begin, end in bounds.values())
    if offsets < WORTH_A_LOOK:
        return offsets * LEAST_BYTES_PER_OFFSET
    largest = max(bounds, key=lambda tp: bounds[tp][1] - bounds[tp][0])
    try:
        each = _bytes_per_offset(source, largest, bounds[largest][0])
    except (BrokerError, CorruptBatch):  # reading it meets the same and says so
        each = LEAST_BYTES_PER_OFFSET
    return offsets * each


def _bytes_per_offset(source: WireClient, tp: TopicPartition, begin: int) -> float:
    connection = source.connection(source.leader(tp))
    answer = fetch(connection, {tp: (begin, BATCH_LOOK_BYTES)}, max_wait_ms=0, min_bytes=0, max_bytes=BATCH_LOOK_BYTES, patience=0.0)[tp]
    found = [] if answer.error else [header for _, header in headers(answer.records)]
    if not found or found[-1].next_offset <= begin:
        return LEAST_BYTES_PER_OFFSET
    return sum(header.size for header in found) / (found[-1].next_offset - min(begin, found[0].base_offset))
