"""The target side of topic preparation: the producer id, the topics, and whether they are still the same ones."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.state import TopicRun
from mirror_pipeline.engine.driver.topics.continuing import continued
from mirror_pipeline.engine.driver.topics.deletion import settled
from mirror_pipeline.engine.driver.topics.padding import Padding
from mirror_pipeline.engine.driver.topics.policies import SourcePolicy, largest_batches, source_policies
from mirror_pipeline.engine.driver.topics.waits import patience
from mirror_pipeline.engine.driver.write.marker_epochs import marker_producer
from mirror_pipeline.errors import BrokerError, MirrorError
from mirror_pipeline.halts import Halt, other_target_cluster, refused_topic, target_filled, target_gone, target_recreated
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME, TopicMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.kafka.needs import EXACT_NEEDS, TARGET_NEEDS, without_id
from mirror_pipeline.kafka.offsets import log_range, offsets_or_errors
from mirror_pipeline.kafka.security.identity import refuse_one_cluster
from mirror_pipeline.model import Incarnation, Stamp, TopicPartition
from mirror_pipeline.topics.configs import number
from mirror_pipeline.topics.lanes import LaneTopic
from mirror_pipeline.topics.manage import ensure_target_topics, plan_targets
from mirror_pipeline.topics.plan import TargetPlan

PRODUCER_EXPIRATION_MS = 86_400_000
# A new topic is unknown to other brokers for some ms; where it takes longer, it waits without the others.
SETTLE_SECONDS = 1.0
SETTLE_POLL_SECONDS = 0.05


Target = tuple[str, dict[int, tuple[int, int]]]
"""Topic id, and log start and end offset by partition."""


class TargetSide:
    """Asks and changes the target cluster on behalf of a lane."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context
        self._client = WireClient(context.target, timeout=context.mirror.engine.request_timeout)
        self.admin = Admin(context.target)
        self.cluster_id = ""
        self._padding = Padding(context, self._client, self.admin)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def stamp(self) -> Stamp:
        """The lane's producer id on this target, requested once and kept in the ledger (KIP-98).

        Raises:
            WrongCluster: every address leads to another cluster than before.
            UsageError: the target is the source.
        """
        self.cluster_id = self._client.metadata([]).cluster_id
        if not self._context.target.cluster_id:
            self._context.target = replace(self._context.target, cluster_id=self.cluster_id)
            refuse_one_cluster(self._context.source, self._context.target)
        self._client.require(TARGET_NEEDS + (EXACT_NEEDS if self._context.exact else ()))
        self._context.state.memory_seconds = self._memory_seconds()
        stamp = self._context.ledger.producer(self.cluster_id)
        if stamp is None:
            stamp = self._client.init_producer_id()
            self._context.ledger.save_producer(stamp, self.cluster_id)
        if self._context.exact:
            marker_producer(self._context, self._client)  # before another thread may ask for it
        return stamp

    def _memory_seconds(self) -> float:
        """``producer.id.expiration.ms`` of the target's brokers; Kafka's default if it may not be read."""
        try:
            found = number(self.admin.broker_configs(), "producer.id.expiration.ms")
        except BrokerError:
            found = None
        return (found or PRODUCER_EXPIRATION_MS) / 1000

    def changed(self, generations: Sequence[Incarnation]) -> dict[str, Halt | BrokerError]:
        """Target topics that are no longer the ones the copies went to, by source topic; an error for those that cannot be told of now.

        One broker's metadata may be out of date, so another broker is asked about the topics in question.
        """
        found = self._changed(generations)
        halted = [generation for generation in generations if isinstance(found.get(generation.topic), Halt)]
        if not halted:
            return found
        time.sleep(divergence.SECOND_LOOK_SECONDS)
        self._client.ask_elsewhere()
        return {topic: error for topic, error in found.items() if isinstance(error, BrokerError)} | self._changed(halted)

    def _changed(self, generations: Sequence[Incarnation]) -> dict[str, Halt | BrokerError]:
        metadata = self._client.metadata([generation.target_topic for generation in generations]).topics if generations else {}
        found: dict[str, Halt | BrokerError] = {}
        for each in generations:
            try:
                halt = target_changed(each, metadata[each.target_topic], self.cluster_id, self._context.target.alias)
            except BrokerError as error:
                found[each.topic] = error
                continue
            if halt is not None:
                found[each.topic] = halt
        return found

    def settled(self, run: TopicRun, generation: Incarnation) -> bool:
        """See :func:`mirror_pipeline.engine.driver.topics.deletion.settled`."""
        return settled(self._context, self._client, run, generation)

    def plans(self, topics: list[LaneTopic], source_admin: Admin) -> dict[str, TargetPlan]:
        """What to create or change on the target, by source topic; the same rules as ``mirror plan``."""
        directions = self._context.permits.directions
        names = {topic.topic: topic.target_topic for topic in topics}
        partner = directions.partner if directions is not None else None
        return plan_targets(self._context.mirror, source_admin, self.admin, names, partner=partner)

    def ensure(self, topics: Sequence[LaneTopic], plans: Mapping[str, TargetPlan], source_admin: Admin) -> dict[str, Target | MirrorError]:
        """Create or grow target topics; by source topic the target's topic id with log start and end of every partition.

        A topic that cannot take its copy maps to the reason: a TopicHalted, or a BrokerError if the target refuses for now.

        Raises:
            ClusterUnreachable, ConnectionLost: the target does not answer.
        """
        named = {topic.topic: topic for topic in topics}

        def again(names: Collection[str]) -> dict[str, TargetPlan]:
            fresh = self.plans([named[name] for name in names], source_admin)
            return {name: _planned(plan, named[name]) for name, plan in fresh.items()}

        wanted = [_planned(plans[topic.topic], topic) for topic in topics]
        made = ensure_target_topics(self.admin, wanted, again)
        ready = [plan for plan in wanted if not isinstance(made[plan.target_topic], MirrorError)]
        found: dict[str, Target | MirrorError] = {p.topic: e for p in wanted if isinstance(e := made[p.target_topic], MirrorError)}
        metadata = known_topics(self._client, [plan.target_topic for plan in ready])
        parts = [TopicPartition(name, number) for name, topic in metadata.items() if not topic.error for number in topic.partitions]
        within = patience(self._client)
        starts, ends = (offsets_or_errors(self._client, parts, which, isolation=0, within=within) for which in (EARLIEST_TIME, LATEST_TIME))
        for plan in ready:
            found[plan.topic] = self._target_of(plan, metadata[plan.target_topic], starts, ends)
        return found

    def _target_of(
        self, plan: TargetPlan, metadata: TopicMetadata, starts: Mapping[TopicPartition, int | BrokerError],
        ends: Mapping[TopicPartition, int | BrokerError],
    ) -> Target | MirrorError:  # fmt: skip
        if metadata.error:
            return broker_error(metadata.error, plan.target_topic)
        if not metadata.topic_id:
            return without_id(self._context.target.alias, plan.target_topic)
        if len(metadata.partitions) < plan.partitions:  # this broker has not heard of the new ones yet
            return broker_error(UNKNOWN_TOPIC_OR_PARTITION, str(TopicPartition(plan.target_topic, plan.partitions - 1)))
        numbered = [TopicPartition(plan.target_topic, number) for number in sorted(metadata.partitions)]
        refusal = next((each for tp in numbered for each in (starts[tp], ends[tp]) if isinstance(each, BrokerError)), None)
        bounds = {tp.partition: (a, z) for tp in numbered if isinstance(a := starts[tp], int) and isinstance(z := ends[tp], int)}
        return refusal or (metadata.topic_id, bounds)

    def without_leader(self, target_topics: Collection[str]) -> dict[str, BrokerError]:
        """Those of some target topics that exist and have a partition without a leader."""
        topics = self._client.metadata(sorted(target_topics)).topics.values() if target_topics else ()
        unled = ((topic.name, number) for topic in topics for number, part in sorted(topic.partitions.items()) if part.leader < 0)
        alias = self._context.target.alias
        return {name: broker_error(LEADER_NOT_AVAILABLE, f"{name}[{number}] on cluster {alias}") for name, number in unled}

    def padded(self, topic: str, bounds: dict[int, tuple[int, int]], starts: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """See :meth:`mirror_pipeline.engine.driver.topics.padding.Padding.padded`; unchanged without exact offsets."""
        return self._padding.padded(topic, bounds, starts) if self._context.exact else bounds

    def continued(
        self, generation: Incarnation, ends: Mapping[int, int], earlier: Iterable[Incarnation], *, recorded: Collection[int] = ()
    ) -> Incarnation:
        """See :func:`mirror_pipeline.engine.driver.topics.continuing.continued`."""
        return continued(self._context, self._client, generation, ends, earlier, recorded=recorded)

    def topic_id(self, target_topic: str) -> str:
        """Id of a target topic; "" if it does not exist."""
        return self._client.metadata([target_topic]).topics[target_topic].topic_id or ""

    def bounds(self, target_topic: str) -> dict[int, tuple[int, int]]:
        """Log start and end of every partition of a target topic. Raises BrokerError."""
        parts = [TopicPartition(target_topic, n) for n in sorted(self._client.metadata([target_topic]).topics[target_topic].partitions)]
        found = log_range(self._client, parts, isolation=0, within=patience(self._client))
        return {tp.partition: both for tp, both in found.items()}

    @staticmethod
    def refuse_filled(topic: LaneTopic, bounds: Mapping[int, tuple[int, int]]) -> None:
        """Raise TopicHalted for a topic with records: they may be this very copy, made before its ledger was lost."""
        count = sum(end - start for start, end in bounds.values())
        if count and not topic.filled:
            raise target_filled(topic.topic, topic.target_topic, count).error()

    def rules(self, pairs: list[tuple[str, str]], source_admin: Admin) -> dict[str, tuple[int, SourcePolicy]]:
        """By source topic, for pairs of source and target topics: the largest batch the target takes, and the source's policy."""
        sizes = largest_batches([target for _, target in pairs], self.admin)
        policies = source_policies([source for source, _ in pairs], source_admin)
        return {source: (sizes[target], policies[source]) for source, target in pairs}


def _planned(plan: TargetPlan, topic: LaneTopic) -> TargetPlan:
    return replace(plan, configs={**plan.configs, **topic.configs}) if topic.configs and plan.create else plan


def known_topics(client: WireClient, names: Sequence[str]) -> dict[str, TopicMetadata]:
    """Metadata of topics that exist, requested again while the answering broker does not know all of them.

    A topic that is still unknown after some seconds is returned with its error.

    Raises:
        ClusterUnreachable: no broker answers.
    """
    found: dict[str, TopicMetadata] = {}
    wanted, deadline = list(names), time.monotonic() + SETTLE_SECONDS
    while wanted:
        found |= client.metadata(wanted).topics
        wanted = [name for name in wanted if found[name].error == UNKNOWN_TOPIC_OR_PARTITION]
        if not wanted or time.monotonic() >= deadline:
            break
        time.sleep(SETTLE_POLL_SECONDS)
    return found


def target_changed(known: Incarnation, found: TopicMetadata | None, cluster_id: str, alias: str) -> Halt | None:
    """The halt for a target topic that is not the one that a copy went to; None if it is.

    Args:
        known: the copy.
        found: its target topic as it is now; None on another cluster.
        cluster_id, alias: the target cluster as it is now.

    Raises:
        BrokerError: the topic's metadata is not available now.
    """
    if known.target_cluster_id != cluster_id or found is None:
        return other_target_cluster(known.topic, alias, known.target_cluster_id, cluster_id)
    if found.error:
        error = broker_error(found.error, known.target_topic)
        if found.error == UNKNOWN_TOPIC_OR_PARTITION:
            return target_gone(known.topic, known.target_topic, error)
        if error.retryable:
            raise error
        return refused_topic(known.topic, error)
    if found.topic_id != known.target_topic_id:
        return target_recreated(known.topic, known.target_topic, known.target_topic_id, found.topic_id)
    return None
