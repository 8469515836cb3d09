"""``remirror``: copy a topic afresh. Its target topic is deleted, created again, and filled from the source's beginning."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mirror_pipeline.errors import BrokerError, UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.halts import renamed
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.kafka.offsets import log_range, offsets_at
from mirror_pipeline.model import Incarnation, TopicPartition
from mirror_pipeline.operations.resolve import accept_target
from mirror_pipeline.reports import FreshCopy, Resolution
from mirror_pipeline.text import plural
from mirror_pipeline.topics.configs import own_settings
from mirror_pipeline.topics.lanes import KnownCopy, known_topics

CREATE_SECONDS = 30.0


def look(flow: Flow, topic: str) -> FreshCopy:
    """See :meth:`Mirror.fresh_copy`."""
    known = _known(flow, topic)
    generation = known.generation
    with flow.source_client() as client:
        parts = [TopicPartition(topic, number) for number in generation.starts]
        firsts, ends = (offsets_at(client, parts, at) for at in (EARLIEST_TIME, LATEST_TIME))
    with flow.target_client() as client:
        there = client.metadata([known.target_topic]).topics[known.target_topic]
        targets = [TopicPartition(known.target_topic, number) for number in there.partitions]
        held = log_range(client, targets, isolation=0)
    return FreshCopy(
        flow.name, topic, known.target_topic, flow.settings.target, sum(end - start for start, end in held.values()),
        sum(ends[tp] - firsts[tp] for tp in parts), _deleted(generation, firsts),
    )  # fmt: skip


def remirror(flow: Flow, topic: str, *, accept_loss: bool) -> Resolution:
    """See :meth:`Mirror.remirror`."""
    known = _known(flow, topic)
    name, generation = known.target_topic, known.generation
    if (lost := _lost(flow, generation)) and not accept_loss:
        raise UsageError(
            f"{plural(lost, 'offset')} that the copy has are not on the source any more: a fresh copy would be without them",
            hint="--accept-loss deletes them; the next run then halts for `trimmed`, which names them",
        )
    with flow.target_admin() as admin:
        there = admin.topics([name]).get(name)
        partitions, replicas, configs = len(generation.starts), -1, dict[str, str]()
        if there is not None:
            found = admin.topic_configs([name])[name]
            if isinstance(found, BrokerError):
                raise found
            partitions, replicas = there.partitions, there.replication_factor
            configs = own_settings(found)
        if there is not None and there.topic_id in ("", generation.target_topic_id):
            admin.delete_topic(name)
            there = None
        topic_id = there.topic_id if there is not None else _created(flow, admin, generation, partitions, replicas, configs)
    return accept_target(flow, known, topic_id)


def _known(flow: Flow, topic: str) -> KnownCopy:
    known = known_topics(flow.config, flow.settings).get(topic)
    if known is None:
        raise UsageError(f"mirror {flow.name} has no copy of {topic}", hint="`mirror plan` shows which topics it copies")
    if (was := known.generation.target_topic) != known.target_topic:
        raise renamed(topic, was, known.target_topic).error()
    if topic in flow.directions().look().refused([topic]):
        raise UsageError(f"{topic} was handed over to applications: they may write to {known.target_topic}", hint="`mirror failback` first")
    if flow.settings.shared:
        raise UsageError(f"other mirrors write {known.target_topic} too (writers: shared)", hint="copy it into a topic of another name")
    if not flow.settings.topics.manage:
        raise UsageError("topics.manage is false: this mirror creates no topics", hint="recreate the target topic, then `mirror resolve`")
    return known


def _lost(flow: Flow, generation: Incarnation) -> int:
    """Source offsets from the copy's beginning on that the source has deleted meanwhile."""
    with flow.source_client() as client:
        firsts = offsets_at(client, [TopicPartition(generation.topic, number) for number in generation.starts], EARLIEST_TIME)
    return _deleted(generation, firsts)


def _deleted(generation: Incarnation, firsts: Mapping[TopicPartition, int]) -> int:
    return sum(max(0, offset - generation.starts[tp.partition]) for tp, offset in firsts.items())


def _created(flow: Flow, admin: Admin, old: Incarnation, partitions: int, replicas: int, configs: dict[str, str]) -> str:
    """Create the copy's target topic, and return its new id once a broker shows it.

    A deleted topic's name may be taken, and its old id shown, for some seconds; a run that sees it missing may create it first.
    """
    name, deadline = old.target_topic, time.monotonic() + CREATE_SECONDS
    with flow.target_client() as client:
        while True:
            try:
                admin.create_topic(name, partitions, replicas, configs)
            except BrokerError as error:
                if error.name != "TOPIC_ALREADY_EXISTS":
                    raise
            found = client.metadata([name]).topics[name]
            if not found.error and found.topic_id != old.target_topic_id:
                return found.topic_id
            if time.monotonic() > deadline:
                raise broker_error(found.error or UNKNOWN_TOPIC_OR_PARTITION, f"{name} was created, but is not shown")
            time.sleep(0.5)
