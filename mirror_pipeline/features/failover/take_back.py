"""Failback where names come back to the same topic: the old source's topic becomes the copy of the new one.

Either it is adopted, because all it holds came over, or it is rebuilt: emptied, so that everything is copied afresh. It is emptied by
DeleteRecords up to offsets whose records are known to be elsewhere, because a deletion of the topic would also take what arrives in the
same moment. With `offsets: exact` only a new topic begins at offset 0 again: there the old one is deleted, after it was made to refuse
records. All of it may be repeated.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.promotions import FailoverStep
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.config import MirrorConfig
from mirror_pipeline.errors import BrokerError, ProblemFound
from mirror_pipeline.features.adoption.adopt_topics import record
from mirror_pipeline.features.adoption.adoption_report import AdoptOptions
from mirror_pipeline.features.adoption.proof import Proof, prove, prove_same_offsets
from mirror_pipeline.features.failover.report import REBUILD, OpenedTopic
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.topics.alter import alter_topics
from mirror_pipeline.topics.configs import KEPT_FOREVER
from mirror_pipeline.topics.lanes import lane_of, lane_stores
from mirror_pipeline.topics.manage import ensure_target_topic, plan_targets
from mirror_pipeline.topics.plan import TargetPlan

POLICY_VIOLATION = 44
# Until a topic's leaders know a new setting.
SETTING_SECONDS, SETTING_POLL_SECONDS = 30.0, 0.2
SETTINGS_STEP, RESTORED = "settings", "restored"
TAKES_NO_RECORDS = {"max.message.bytes": "0"}
"""A topic with this setting refuses every record."""
SETTLED_SETTING_SECONDS = 1.0
"""After which every leader knows that setting: brokers follow the controller within milliseconds."""
Note = Callable[[str, Mapping[str, object]], None]


def proof_of(reverse: Flow, topic: OpenedTopic, copied: Mapping[int, int], session: Session, stop: threading.Event) -> Proof:
    """That the old topic is the beginning of the one that applications use now; one that was rebuilt is empty.

    ``copied``: up to which offset each of its partitions came over.

    Raises:
        ProblemFound: it is not; with the first differences by offset.
    """
    try:
        if reverse.settings.exact:
            return prove_same_offsets(reverse, topic.copied, topic.target_topic, copied, emptied=topic.rebuilt)
        return prove(
            reverse, topic.copied, topic.target_topic, AdoptOptions(), session, None, stop, may_be_empty=True, emptied=topic.rebuilt
        )
    except ProblemFound as error:
        raise ProblemFound(
            error.message,
            hint=f"mirror {reverse.name} cannot continue in this topic; `--topic {topic.topic} --tail {REBUILD}` copies what never came"
            f" over aside, empties it on cluster {reverse.settings.target} and copies it afresh",
        ) from error


def adopt_old(reverse: Flow, topic: OpenedTopic, proof: Proof) -> None:
    """Write the proven copy into the ledger of the reverse mirror. Raises LaneBusy while that mirror runs."""
    lane = lane_of(reverse.config.buffer, reverse.settings, [topic.copied])[topic.copied]
    store = open_lane(reverse.config.buffer, reverse.name, lane)
    with lane_lock(store) as hold:
        hold.check()
        record(reverse, store, proof)


def generations(reverse: Flow, topics: Iterable[OpenedTopic]) -> dict[str, str]:
    """The generation that the reverse mirror's ledger has of each topic, "" for none; an adoption makes another one.

    Raises BufferUnusable.
    """
    stores = lane_stores(reverse.config.buffer, reverse.settings)
    known = {name: generation for store in stores for name, generation in Ledger(store).incarnations().items()}
    return {topic.copied: known[topic.copied].incarnation if topic.copied in known else "" for topic in topics}


def refuse_unfit(flow: Flow, reverse: Flow, topics: Collection[OpenedTopic]) -> None:
    """Raise ProblemFound for a topic that could not take its copy once it is empty: before anything is deleted."""
    if not topics:
        return
    with reverse.target_admin() as target, reverse.source_admin() as source:
        names = {topic.copied: topic.target_topic for topic in topics}
        plans = plan_targets(reverse.settings, source, target, names, partner=flow.settings)
    blocked = [plan for plan in plans.values() if plan.blockers]
    if blocked:
        raise ProblemFound(
            f"{blocked[0].blockers[0]}; nothing was opened", hint="leave the topic out with --topic, or change it: then repeat the command"
        )


def empty_old(reverse: Flow, ends: Mapping[TopicPartition, int], note: Note) -> None:
    """Delete records of the old source before these offsets, and no others.

    A compacted topic takes that only after a change of its settings, which is noted before; :func:`restore_settings` ends it.

    Raises:
        BrokerError: they cannot be deleted.
    """
    with reverse.target_admin() as target:
        for name in sorted({tp.topic for tp in ends}):
            own = {tp: end for tp, end in ends.items() if tp.topic == name}
            try:
                target.delete_records(own)
            except BrokerError as error:
                if error.code != POLICY_VIOLATION:
                    raise
                note(SETTINGS_STEP, {"topic": name, "settings": _own_settings(target, name, KEPT_FOREVER)})
                # A compacted topic takes no DeleteRecords; no other setting may delete from it meanwhile.
                _alter(target, name, KEPT_FOREVER)
                _delete_soon(target, own)


def replace_old(reverse: Flow, ids: Mapping[str, str], steps: Iterable[FailoverStep], note: Note) -> bool:
    """Make topics of the old source refuse records; those that already did when they were looked at are deleted.

    Args:
        reverse: the mirror that will write them.
        ids: the topics that were looked at, with their ids.
        steps: what was done so far.
        note: writes down a step.

    Returns:
        Whether they are deleted: otherwise they are to be looked at again.

    Raises:
        BrokerError: they cannot be closed, or deleted.
        ProblemFound: they are still there after their deletion.
    """
    closed = _changed(steps)
    if not ids.keys() <= closed.keys():
        with reverse.target_admin() as target:
            for name, topic_id in sorted(ids.items()):
                if name not in closed:
                    note(SETTINGS_STEP, {"topic": name, "id": topic_id, "settings": _own_settings(target, name, TAKES_NO_RECORDS)})
                    _alter(target, name, TAKES_NO_RECORDS)
        time.sleep(SETTLED_SETTING_SECONDS)
        return False
    with reverse.target_client() as client:
        for name, topic_id in sorted(ids.items()):
            client.delete_topic(topic_id, name)
        deadline = time.monotonic() + SETTING_SECONDS
        while any(client.metadata([name]).topics[name].topic_id == topic_id for name, topic_id in ids.items()):
            if time.monotonic() > deadline:
                raise ProblemFound(f"topics {', '.join(sorted(ids))} are still there after they were deleted", hint="repeat the command")
            time.sleep(SETTING_POLL_SECONDS)
    return True


def _own_settings(target: Admin, name: str, keys: Iterable[str]) -> dict[str, str | None]:
    found = target.topic_configs([name])[name]
    if isinstance(found, BrokerError):
        raise found
    return {key: found[key].value if key in found and found[key].is_explicit else None for key in keys}


def _alter(target: Admin, name: str, settings: Mapping[str, str | None]) -> None:
    refused = alter_topics(target, {name: settings})[name]
    if refused is not None:
        raise refused


def _delete_soon(target: Admin, ends: Mapping[TopicPartition, int]) -> None:
    """Leaders learn of a new setting a moment later."""
    deadline = time.monotonic() + SETTING_SECONDS
    while True:
        try:
            return target.delete_records(ends)
        except BrokerError as error:
            if error.code != POLICY_VIOLATION or time.monotonic() > deadline:
                raise
        time.sleep(SETTING_POLL_SECONDS)


def _changed(steps: Iterable[FailoverStep]) -> dict[str, Mapping[str, Any]]:
    """The topics whose settings were changed and not restored, with what they had."""
    changed: dict[str, Mapping[str, Any]] = {}
    for step in steps:
        if step.step == SETTINGS_STEP:
            changed.setdefault(step.detail["topic"], step.detail)
        elif step.step == RESTORED:
            changed.pop(step.detail["topic"], None)
    return changed


def restore_settings(reverse: Flow, steps: Iterable[FailoverStep], note: Note) -> None:
    """Give topics the settings back that they had before they were emptied, also after a kill. One that was made anew has its own.

    Raises BrokerError.
    """
    changed = _changed(steps)
    if not changed:
        return
    with reverse.target_admin() as target:
        present = target.topics(sorted(changed))
        for name, was in sorted(changed.items()):
            if name in present and was.get("id", present[name].topic_id) == present[name].topic_id:
                _alter(target, name, was["settings"])
            note(RESTORED, {"topic": name})


def make_old(reverse: Flow, topic: OpenedTopic, partner: MirrorConfig) -> None:
    """Create the old topic if it is gone, or give it the partitions that it lacks, as the reverse mirror would.

    Raises:
        TopicHalted, BrokerError: it cannot be made.
    """
    with reverse.target_admin() as target, reverse.source_admin() as source:

        def plan(names: Collection[str]) -> dict[str, TargetPlan]:
            return plan_targets(reverse.settings, source, target, dict.fromkeys(names, topic.target_topic), partner=partner)

        ensure_target_topic(target, plan([topic.copied])[topic.copied], plan)
