"""What a mirror has copied and can be compared now: partitions, offset maps, log starts and ends on both sides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.offset_runs import Runs, runs_of
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.errors import BrokerError, UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.answers import ClusterMetadata
from mirror_pipeline.kafka.client import WireClient, metadata_of
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.offsets import log_ranges, offsets_at
from mirror_pipeline.model import Gap, HoleCause, Incarnation, TopicPartition
from mirror_pipeline.verdicts import Difference
from mirror_pipeline.verify.fold_tasks import Chunk
from mirror_pipeline.verify.log_walk import READ_COMMITTED, READ_UNCOMMITTED
from mirror_pipeline.verify.record_tasks import Terms
from mirror_pipeline.verify.rules import read_terms

Gaps = tuple[tuple[int, int], ...]
Log = tuple[int, int]


@dataclass(slots=True)
class CopiedPartition:
    """One partition of a copied topic. ``chunk`` is what can be compared, ``expired`` what the target deleted of it.

    ``promoted``: applications write to the target after it. ``adopted_end`` is where the target ended when the copy began or was adopted.
    """

    key: SpanKey
    chunk: Chunk
    position: int
    target_next: int
    gaps: Gaps
    source_log: Log = (0, 0)
    target_log: Log = (0, 0)
    expired: int = 0
    promoted: bool = False
    adopted_end: int = 0

    def accepts(self, found: Difference) -> bool:
        """Whether a difference is a foreign record that was named when the topic was adopted: nothing else is before that end and not in
        the offset map."""
        at = found.target_offset
        return found.kind == "extra" and at is not None and at < self.adopted_end and self.chunk.runs.to_source(at) is None

    def narrow(self, low: int, high: int) -> None:
        """Compare only source offsets ``[low, high)``."""
        start = max(self.chunk.start, low)
        self.chunk = replace(self.chunk.cut(start, max(start, min(self.chunk.end, high))), first=True)

    def see_logs(self, source: Log, target: Log, *, ends_deleted: bool) -> None:
        """Skip what the source has deleted; count as expired what the target's retention has deleted."""
        self.source_log, self.target_log = source, target
        self.narrow(source[0], self.chunk.end)
        if ends_deleted and target[0] > self.chunk.target_start:
            kept = self.chunk.runs.source_at_or_after(target[0], self.chunk.end)
            self.expired += self.chunk.runs.records(self.chunk.start, kept)
            self.narrow(kept, self.chunk.end)


@dataclass(slots=True)
class CopiedTopic:
    """One topic as one lane copied it; ``age`` 0 is the present generation, 1 the one before it."""

    lane: str
    age: int
    generation: Incarnation
    ledger: Ledger
    partitions: dict[int, CopiedPartition]
    terms: Terms = field(default_factory=Terms)
    problem: str = ""


def copied_topics(flow: Flow, wanted: Collection[str] | None, *, lenient: bool = False) -> list[CopiedTopic]:
    """Every topic that a lane of the flow, or a backfill, has begun to copy; asks no cluster.

    Raises:
        UsageError: a topic of ``wanted`` was never copied; not when ``lenient``.
    """
    stores = find_lanes(flow.config.buffer, flow.name)
    found = [topic for store in stores for topic in _of_lane(store, wanted, shared=flow.settings.shared)]
    promoted = flow.directions().look().promoted()
    for topic in found:
        for part in topic.partitions.values():
            part.promoted = topic.generation.topic in promoted
    strange = sorted(set(wanted or ()) - {topic.generation.topic for topic in found})
    if strange and not lenient:
        raise UsageError(f"mirror {flow.name} has not copied topic {strange[0]}", hint="`mirror lag` shows what it copies")
    return found


def _of_lane(store: LaneStore, wanted: Collection[str] | None, *, shared: bool) -> list[CopiedTopic]:
    ledger = Ledger(store)
    if not ledger.exists():
        return []
    ends, maps, gaps = ledger.reached(), runs_of(ledger.sends_table()), ledger.gaps()
    ours = producer_ids(ledger) if shared else frozenset()
    topics = []
    for topic, present in sorted(ledger.incarnations().items()):
        if wanted and topic not in wanted:
            continue
        known = [generation for (name, _), generation in ledger.generations().items() if name == topic]
        past = [generation for generation in known if _continued_by(generation, present)]
        for age, generation in enumerate([present, *reversed(past)]):
            mine = [gap for gap in gaps if gap.topic == topic and gap.incarnation == generation.incarnation]
            partitions = {}
            for number in sorted(generation.starts):
                key = (topic, number, generation.incarnation)
                holes = [gap for gap in mine if gap.partition == number]
                partitions[number] = _partition(key, generation, ends.get(key), maps.get(key, Runs()), holes, ours)
            topics.append(CopiedTopic(store.lane, age, generation, ledger, partitions))
    return topics


def _continued_by(generation: Incarnation, present: Incarnation) -> bool:
    """Whether the present generation continues this one between the same two topics, after a truncation of the source."""
    same = (generation.topic_id, generation.target_topic_id) == (present.topic_id, present.target_topic_id)
    return same and generation.incarnation != present.incarnation


def producer_ids(ledger: Ledger) -> frozenset[int]:
    """Every producer id with which a lane ever wrote."""
    return frozenset(producer for _, producer in ledger.producers())


def _partition(
    key: SpanKey, generation: Incarnation, reached: int | None, runs: Runs, gaps: Sequence[Gap], ours: frozenset[int]
) -> CopiedPartition:
    """Offsets from a truncation on are left out: the source has other records there now."""
    topic, number, _ = key
    start = generation.starts[number]
    end = max(start, start if reached is None else reached)
    cut = [gap.start for gap in gaps if gap.cause is HoleCause.TRUNCATION and gap.start < end]
    compared = max(start, min([end, *cut]))
    source, target = TopicPartition(topic, number), TopicPartition(generation.target_topic, number)
    adopted_end = generation.target_starts.get(number, 0)
    chunk = Chunk(source, target, start, compared, runs.slice(start, compared), first=True, ours=ours, ours_from=adopted_end)
    target_next = max(runs.target_end, adopted_end)
    return CopiedPartition(key, chunk, end, target_next, tuple((gap.start, gap.end) for gap in gaps), adopted_end=adopted_end)


def see_clusters(flow: Flow, topics: Sequence[CopiedTopic], source: WireClient, target: WireClient) -> None:
    """Ask both clusters for log ranges and settings; a topic that cannot be read, or is not the one that was copied, gets a ``problem``.

    Raises:
        ClusterUnreachable: no broker of a cluster answers.
    """
    ours = metadata_of(source, sorted({topic.generation.topic for topic in topics}))
    theirs = metadata_of(target, sorted({topic.generation.target_topic for topic in topics}))
    for topic in topics:
        copied = topic.generation
        topic.problem = _changed("source", ours, copied.topic, copied.topic_id, copied.source_cluster_id) or _changed(
            "target", theirs, copied.target_topic, copied.target_topic_id, copied.target_cluster_id
        )
    good = [topic for topic in topics if not topic.problem]
    by_lane: dict[str, dict[str, str]] = {}
    for topic in good:
        by_lane.setdefault(topic.lane, {})[topic.generation.topic] = topic.generation.target_topic
    terms = {lane: read_terms(flow.source, flow.target, pairs) for lane, pairs in by_lane.items()}
    for topic in good:
        topic.terms = terms[topic.lane][topic.generation.topic]
    refresh_logs(good, source, target)


def refresh_logs(topics: Sequence[CopiedTopic], source: WireClient, target: WireClient) -> None:
    """Ask for log starts and ends again: retention continues during the comparison. A topic of which a partition cannot be asked gets a
    ``problem``.

    Raises:
        ClusterUnreachable: no broker of a cluster answers.
    """
    parts = [(topic, part) for topic in topics for part in topic.partitions.values()]
    ours = log_ranges(source, {part.chunk.source for _, part in parts}, isolation=READ_COMMITTED)
    theirs = log_ranges(target, {part.chunk.target for _, part in parts}, isolation=READ_UNCOMMITTED)
    for topic, part in parts:
        left, right = ours[part.chunk.source], theirs[part.chunk.target]
        if isinstance(left, BrokerError):
            topic.problem = topic.problem or _unreadable("source", left.message)
        elif isinstance(right, BrokerError):
            topic.problem = topic.problem or _unreadable("target", right.message)
        else:
            part.see_logs(left, right, ends_deleted=topic.terms.ends_deleted)


def _changed(side: str, cluster: ClusterMetadata, name: str, topic_id: str, cluster_id: str) -> str:
    if cluster_id and cluster.cluster_id != cluster_id:
        return f"the {side} address leads to another cluster: {cluster.cluster_id}, not {cluster_id}"
    found = cluster.topics.get(name)
    if found is None or found.error:
        return _unreadable(side, broker_error(found.error, name).message if found is not None else name)
    if topic_id and found.topic_id and found.topic_id != topic_id:
        return f"the {side} topic has been recreated since it was copied"
    return ""


def _unreadable(side: str, why: str) -> str:
    return f"the {side} topic cannot be read: {why}"


def by_time(topics: Sequence[CopiedTopic], source: WireClient, from_time: int | None, to_time: int | None) -> None:
    """Narrow every partition to a time range, whose bounds are the first records at or after the two times (ListOffsets)."""
    parts = [part for topic in topics for part in topic.partitions.values()]
    if not parts:
        return
    lows, highs = _at(parts, source, from_time), _at(parts, source, to_time)
    for part in parts:
        tp = part.chunk.source
        low = part.chunk.end if lows.get(tp, 0) < 0 else lows.get(tp, 0)
        high = part.chunk.end if highs.get(tp, -1) < 0 else highs[tp]
        part.narrow(low, high)


def _at(parts: Sequence[CopiedPartition], source: WireClient, when: int | None) -> Mapping[TopicPartition, int]:
    if when is None:
        return {}
    return offsets_at(source, [part.chunk.source for part in parts], when)
