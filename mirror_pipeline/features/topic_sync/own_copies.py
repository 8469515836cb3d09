"""Which target topics a round may change: those that this mirror writes now, as they are on both clusters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.topics.lanes import KnownCopy, known_topics


@dataclass(slots=True)
class OwnCopies:
    """By source topic. ``left`` says why a selected topic's target is left alone, where that is worth saying.

    ``handed_over``: target topics that belong to applications since a failover.
    """

    copies: dict[str, KnownCopy] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    handed_over: set[str] = field(default_factory=set)


def own_copies(flow: Flow, only: Collection[str] | None = None) -> OwnCopies:
    """The copies that are in order: begun, not handed over, written by no other mirror first, and neither side recreated.

    A topic of the source's name with another id may have settings and ACLs of quite another topic.

    Args:
        flow: the mirror.
        only: these source topics.

    Raises:
        ClusterUnreachable: a cluster does not answer.
        BufferUnusable: a ledger cannot be read.
    """
    found = OwnCopies({topic: copy for topic, copy in known_topics(flow.config, flow.settings).items() if only is None or topic in only})
    if not found.copies:
        return found
    away = flow.directions().look().refused(list(found.copies))
    found.handed_over = {found.copies[topic].generation.target_topic for topic in away}
    found.copies = {topic: copy for topic, copy in found.copies.items() if topic not in away}
    _leave_claimed(flow, found)
    with flow.source_client() as source, flow.target_client() as target:
        here = _ids(source, list(found.copies))
        there = _ids(target, [copy.generation.target_topic for copy in found.copies.values()])
    found.copies = {
        topic: copy for topic, copy in found.copies.items()
        if here.get(topic) == copy.generation.topic_id and there.get(copy.generation.target_topic) == copy.generation.target_topic_id
    }  # fmt: skip
    return found


def _leave_claimed(flow: Flow, found: OwnCopies) -> None:
    """Leave target topics alone that another mirror of the file writes and keeps in step."""
    claims = flow.claims()
    rivals = claims.on([copy.generation.target_topic for copy in found.copies.values()]) if claims is not None else {}
    for topic, copy in list(found.copies.items()):
        claim = rivals.get(copy.generation.target_topic)
        if claim is not None and claim.begun and claim.first:
            found.left[topic] = f"mirror {claim.mirror}, which is first in the file, keeps the settings of {copy.generation.target_topic}"
            del found.copies[topic]


def _ids(client: WireClient, names: Collection[str]) -> Mapping[str, str]:
    """Topic ids of those that exist and may be described."""
    found = client.metadata(sorted(names)).topics if names else {}
    return {name: topic.topic_id for name, topic in found.items() if not topic.error}
