"""Failback where names come back to the same topic: the old source's topic becomes the copy of the new one.

Either it is adopted, because all it holds came over, or it is rebuilt: deleted and created empty, so that everything is copied afresh.
Both may be repeated.
"""

from __future__ import annotations

import threading
import time

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import find_lanes, open_lane
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.operations.adoption.adopt_topics import record
from mirror_pipeline.operations.adoption.adoption_report import AdoptOptions
from mirror_pipeline.operations.adoption.proof import Proof, prove
from mirror_pipeline.operations.failover.report import REBUILD, OpenedTopic
from mirror_pipeline.topics.lanes import lane_of
from mirror_pipeline.topics.manage import ensure_target_topic, plan_targets

GONE_SECONDS = 30.0
GONE_POLL_SECONDS = 0.2


def proof_of(reverse: Flow, topic: OpenedTopic, session: Session, stop: threading.Event) -> Proof:
    """That the old topic is the beginning of the one that applications use now.

    Raises:
        ProblemFound: it is not; with the first differences by offset.
    """
    try:
        return prove(reverse, topic.copied, topic.target_topic, AdoptOptions(), session, None, stop, may_be_empty=True)
    except ProblemFound as error:
        raise ProblemFound(
            error.message,
            hint=f"mirror {reverse.name} cannot continue in this topic; `--topic {topic.topic} --tail {REBUILD}` deletes it on cluster"
            f" {reverse.settings.target} and copies it afresh",
        ) from error


def adopt_old(reverse: Flow, topic: OpenedTopic, proof: Proof) -> None:
    """Write the proven copy into the ledger of the reverse mirror. Raises LaneBusy while that mirror runs."""
    lane = lane_of(reverse.config.buffer, reverse.settings, [topic.copied])[topic.copied]
    store = open_lane(reverse.config.buffer, reverse.name, lane)
    with lane_lock(store) as hold:
        hold.check()
        record(reverse, store, proof)


def adopted_since(reverse: Flow, topic: OpenedTopic, at: int) -> bool:
    """Whether the reverse mirror has adopted the topic since a time, in milliseconds since the epoch. Raises BufferUnusable."""
    ledgers = [Ledger(store) for store in find_lanes(reverse.config.buffer, reverse.name)]
    known = [ledger.incarnations().get(topic.copied) for ledger in ledgers if ledger.exists()]
    return any(generation is not None and generation.at >= at for generation in known)


def old_topic_id(reverse: Flow, name: str) -> str:
    """The id of a topic on the old source, "" if it does not exist. Raises BrokerError, ClusterUnreachable."""
    with reverse.target_client() as client:
        found = client.metadata([name]).topics[name]
    if found.error and found.error != UNKNOWN_TOPIC_OR_PARTITION:
        raise broker_error(found.error, name)
    return found.topic_id or ""


def rebuild_old(reverse: Flow, topic: OpenedTopic, topic_id: str) -> None:
    """Delete the old topic, if it still is the one with this id, and create it empty, as the reverse mirror would.

    Raises:
        ProblemFound: the topic does not go away.
        TopicHalted, BrokerError: it cannot be deleted or created.
    """
    with reverse.target_admin() as target, reverse.source_admin() as source:
        if topic_id and old_topic_id(reverse, topic.target_topic) == topic_id:
            target.delete_topic(topic.target_topic)
            crash_point("failback.deleted")
        deadline = time.monotonic() + GONE_SECONDS
        while topic_id and old_topic_id(reverse, topic.target_topic) == topic_id:
            if time.monotonic() > deadline:
                raise ProblemFound(
                    f"topic {topic.target_topic} is still on cluster {reverse.settings.target} after it was deleted",
                    hint="repeat the command: it continues",
                )
            time.sleep(GONE_POLL_SECONDS)
        plan = plan_targets(reverse.settings, source, target, {topic.copied: topic.target_topic})[topic.copied]
        ensure_target_topic(target, plan)
