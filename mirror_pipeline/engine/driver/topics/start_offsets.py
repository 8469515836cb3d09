"""Where the copy of a topic begins by the mirror's ``start``, and offsets in it at which it cannot begin."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from mirror_pipeline.config.starts import EARLIEST, LATEST, Start, StartOffsets, start_of
from mirror_pipeline.engine.driver.topics.first_seen import FirstSeen
from mirror_pipeline.engine.driver.topics.join import first_offsets
from mirror_pipeline.engine.driver.topics.waits import passes, patience
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka import answers
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic


def start_offsets(
    client: WireClient, first_seen: FirstSeen, topic: LaneTopic, start: Start, new: Collection[int], *, topic_id: str, cluster_id: str
) -> dict[int, int]:
    """First source offset of each partition of a topic that has not begun.

    A topic, or a partition, that the lane's first look at the source did not find begins at its first offset.

    Args:
        client: the source.
        first_seen: what that look found.
        topic: the topic; the ranges of a backfill take precedence.
        start: the mirror's.
        new: its partitions.
        topic_id, cluster_id: as the source has them now.

    Raises:
        BrokerError: the source refuses the request.
    """
    at = start_of(start, topic.topic)
    if topic.ranges is not None or at == EARLIEST:
        return first_offsets(client, topic, list(new), EARLIEST)
    seen = first_seen.offsets(topic.topic, topic_id, cluster_id)
    then = [number for number in new if seen is None or number in seen]
    later = first_offsets(client, topic, [number for number in new if number not in then], EARLIEST)
    if isinstance(at, StartOffsets):
        named = {number: offset for number, offset in at.by_partition.items() if number in then}
        return later | first_offsets(client, topic, [number for number in then if number not in named], EARLIEST) | named
    if at == LATEST and seen is not None:
        return later | {number: seen[number] for number in then}
    return later | first_offsets(client, topic, then, at)


def impossible_starts(client: WireClient, start: Start, topics: Collection[str]) -> dict[str, str]:
    """What is wrong with the offsets that ``start`` names for some topics that exist, by topic, in words.

    Nothing is said of a partition that cannot be asked now: its topic waits for it.

    Raises:
        ClusterUnreachable: the source does not answer.
    """
    named: Mapping[str, StartOffsets] = {topic: at for topic in topics if isinstance(at := start_of(start, topic), StartOffsets)}
    if not named:
        return {}
    found = client.metadata(sorted(named)).topics
    parts = [TopicPartition(topic, n) for topic, at in named.items() for n in at.by_partition if n in found[topic].partitions]
    within = patience(client)
    firsts, ends = (
        offsets_or_errors(client, parts, which, isolation=0, within=within) for which in (answers.EARLIEST_TIME, answers.LATEST_TIME)
    )
    wrong: dict[str, str] = {}
    for topic, at in named.items():
        if found[topic].error:
            error = broker_error(found[topic].error, topic)
            wrong |= {} if passes(error) else {topic: error.message}
            continue
        for number, offset in at.pairs:
            tp = TopicPartition(topic, number)
            said = _wrong(tp, offset, len(found[topic].partitions), firsts.get(tp), ends.get(tp))
            if said:
                wrong.setdefault(topic, said)
    return wrong


def _wrong(tp: TopicPartition, offset: int, partitions: int, first: int | BrokerError | None, end: int | BrokerError | None) -> str:
    if first is None or end is None:
        return f"`start` names partition {tp.partition} of {tp.topic}, which has {partitions}: correct it in mirror.yaml"
    refusal = first if isinstance(first, BrokerError) else end
    if isinstance(refusal, BrokerError):
        return "" if passes(refusal) else refusal.message
    assert isinstance(first, int) and isinstance(end, int)  # noqa: S101 - no refusal is left
    if first <= offset <= end:
        return ""
    return f"`start` names offset {offset} of {tp}, whose log begins at {first} and ends at {end}: correct it in mirror.yaml"
