"""Deletes the copy of a topic that was deleted on the source, with `topics.on_source_delete: delete`.

Only what this mirror alone wrote, delivered and verified is deleted: whatever speaks against it leaves the copy, and the topic halts as
`source_gone`. The intent is written down first (a decision of the kind ``deletion`` with the target topic's id), then the topic is
deleted by that id, so that another one of the same name cannot be hit, and then the ledger ends the topic. A run that finds an intent
and no topic of that id only ends it in the ledger; where the topic still exists, every check is made again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from mirror_pipeline.buffer.ledger.verified import verified_ends
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.context import LaneContext
from mirror_pipeline.engine.driver.read import divergence
from mirror_pipeline.engine.driver.state import LaneState, TopicRun
from mirror_pipeline.errors import BrokerError, LaneLost, MirrorError
from mirror_pipeline.execution.runner import OneAtATime
from mirror_pipeline.halts import ENDED, copy_deleted, source_gone
from mirror_pipeline.kafka.answers import ClusterMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.model import Decision, DecisionKind, Gap, HoleCause, Incarnation, TopicPartition, Verdict

log = logging.getLogger(__name__)

KEEP_DECIDED_BY = "topics.on_source_delete: keep"
DELETE_DECIDED_BY = "topics.on_source_delete: delete"
DELETION_LOOKS = 3
# Bytes of spans that one verification compares, and how long one look at the topics may verify.
DELETION_VERIFY_BYTES = 256 * 2**20
DELETION_VERIFY_SECONDS = 60.0
GONE_SECONDS, GONE_POLL_SECONDS = 30.0, 0.2


class Kept(Exception):
    """Why a copy is not deleted now."""


def intended(context: LaneContext, generation: Incarnation) -> bool:
    """Whether this mirror had begun to delete the copy's target topic."""
    return bool(context.permits.accepted(DecisionKind.DELETION, generation.incarnation, generation.target_topic_id))


def end_topic(context: LaneContext, generation: Incarnation) -> None:
    """Write down that the copy is deleted: the ledger does not know the topic any more. Raises BufferUnusable."""
    context.ledger.add_incarnation(generation.ended())
    log.warning(
        "the copy of %s is deleted: topic %s (id %s) on cluster %s is gone, as its source is (%s)",
        generation.topic, generation.target_topic, generation.target_topic_id, context.target.alias, DELETE_DECIDED_BY,
    )  # fmt: skip


class Deletions:
    """Looks at a lane's topics that are gone from the source, beside its run or at its end."""

    def __init__(self, context: LaneContext) -> None:
        self._context = context

    def look(self) -> None:
        """Delete the copies that may be deleted; the others halt with the reason. Raises BufferUnusable."""
        context = self._context
        if context.mirror.topics.on_source_delete != "delete" or context.drain or not context.is_mirror:
            return
        with context.state.lock:
            gone = [r for r in context.state.topics.values() if r.halted is not None and r.halted.code == "source_gone" and not r.left_out]
        for run in gone:
            try:
                generation = self._delete(run)
                halt = copy_deleted(generation.topic, generation.target_topic, context.target.alias)
            except LaneLost:
                raise
            except Kept as why:
                halt = source_gone(run.topic, context.source.alias, kept=str(why))
            except BrokerError as error:
                halt = source_gone(run.topic, context.source.alias, kept=error.message)
            except MirrorError as error:
                if not error.retryable:
                    raise
                halt = source_gone(run.topic, context.source.alias, kept=error.message)
            with context.state.lock:
                if run.halted is not None and run.halted.code == "source_gone":
                    run.halted, run.sendable = halt, run.sendable and halt.code == "source_gone"

    def _delete(self, run: TopicRun) -> Incarnation:
        context = self._context
        context.permits.read()
        generation = context.ledger.incarnations().get(run.topic)
        if generation is None or generation.incarnation != run.incarnation:
            raise Kept("its copy has begun anew")
        self._permitted(run, generation)
        self._delivered(run)
        self._verified(generation)
        self._look_at_source(generation)
        with WireClient(context.target, timeout=context.mirror.engine.request_timeout) as target:
            self._look_at_target(target, generation)
            if not run.sendable:  # nothing more could be sent to it
                raise Kept("its copy has halted for another reason too")
            self._delete_topic(target, generation)
        end_topic(context, generation)
        return generation

    def _permitted(self, run: TopicRun, generation: Incarnation) -> None:
        """The mirror alone writes the target topic, and may delete it."""
        mirror = self._context.mirror
        if mirror.shared:
            raise Kept("others write the target topic too (writers: shared)")
        if not mirror.topics.manage:
            raise Kept("the mirror may not change target topics (topics.manage: false)")
        if any(generation.target_starts.values()):
            raise Kept("its target topic held records before this copy began: adopted ones, or those of an earlier source topic")
        away = self._context.permits.turned_away([run.topic])
        if away:
            raise Kept(next(iter(away.values())).message)
        claims = self._context.permits.claims
        if claims is not None:
            claims.look()
            refused = claims.refused({generation.topic: generation.target_topic}, any_claim={generation.topic})
            if refused:
                raise Kept(refused[generation.topic].message)
        if any((gap.topic, gap.incarnation) == (generation.topic, generation.incarnation) for gap in self._context.ledger.gaps()):
            raise Kept("records are missing in the copy: `mirror gaps` lists them")

    def _delivered(self, run: TopicRun) -> None:
        """All that was read is on the target by the ledger, and all that the source was seen to have was read."""
        positions = self._context.ledger.positions()
        with self._context.state.lock:
            if not run.target_checked:
                raise Kept("the target topic was not checked yet")
            for part in run.partitions.values():
                if part.pending or (part.writing.outcome_unknown and part.writing.resumed):
                    raise Kept(f"staged records of {part.source} are not on the target yet")
                known = positions.get(part.source)
                if known is not None and known != part.writing.position:
                    raise Kept(f"the ledger does not have all of {part.source} yet")
                if not (part.reading.end_known or part.reading.end_was_known):
                    raise Kept(f"whether all of {part.source} was read is unknown: no run has seen where it ended")
                unread = part.reading.seen_end - part.writing.position.source_next
                if unread > 0:
                    raise Kept(f"{unread:,} offsets of {part.source} were never read")

    def _verified(self, generation: Incarnation) -> None:
        """Compare what is not compared yet, for a limited time. Raises Kept where some is left."""
        context, deadline = self._context, time.monotonic() + DELETION_VERIFY_SECONDS
        verify = context.verify_staged
        if verify is None:
            raise Kept("this run does not verify")
        left = self._unverified(generation)
        while left:
            found = verify(
                ledger=context.ledger, spans=context.spans, runner=OneAtATime(context.placement.beside()), target=context.target,
                timeout=context.mirror.engine.request_timeout, budget_bytes=DELETION_VERIFY_BYTES, topics={generation.topic},
            )  # fmt: skip
            if found.differences:
                raise Kept("its copy differs from what was read: `mirror verify` lists the differences")
            before, left = left, self._unverified(generation)
            if left and (left == before or time.monotonic() > deadline):
                raise Kept(f"{sum(left.values()):,} offsets of its copy are not verified yet")

    def _unverified(self, generation: Incarnation) -> dict[int, int]:
        """How many offsets of each partition were copied and not compared with the target."""
        rows = [row for row in self._context.ledger.verifications() if row.verdict is not Verdict.NOT_STAGED]
        ends = verified_ends(rows, {generation.topic: generation})
        positions = self._context.ledger.positions()
        left = {}
        for number, start in generation.starts.items():
            known = positions.get(TopicPartition(generation.topic, number))
            missing = (known.source_next if known else start) - ends.get((generation.topic, number, generation.incarnation), start)
            if missing > 0:
                left[number] = missing
        return left

    def _look_at_source(self, generation: Incarnation) -> None:
        """Several times, some seconds apart and at different brokers: a broker's metadata may be out of date."""
        context = self._context
        with WireClient(context.source, timeout=context.mirror.engine.request_timeout) as source:
            for number in range(DELETION_LOOKS):
                if number:
                    time.sleep(divergence.SECOND_LOOK_SECONDS)
                    source.ask_elsewhere()
                metadata = source.metadata([generation.topic])
                found = metadata.topics[generation.topic]
                if metadata.cluster_id != generation.source_cluster_id:
                    raise Kept(f"cluster {context.source.alias} is another cluster than before")
                if found.error != UNKNOWN_TOPIC_OR_PARTITION:
                    raise Kept(broker_error(found.error, generation.topic).message if found.error else "the source topic exists again")

    def _look_at_target(self, target: WireClient, generation: Incarnation) -> None:
        """It is the topic that was copied to, and it ends where the copy does: nobody else has written to it."""
        metadata = target.metadata([generation.target_topic])
        found = metadata.topics[generation.target_topic]
        if metadata.cluster_id != generation.target_cluster_id:
            raise Kept(f"cluster {self._context.target.alias} is another cluster than before")
        if found.error:
            raise Kept(broker_error(found.error, generation.target_topic).message)
        if found.topic_id != generation.target_topic_id:
            raise Kept(f"target topic {generation.target_topic} was recreated")
        positions = self._context.ledger.positions()
        for tp, answer in target.log_ends([TopicPartition(generation.target_topic, number) for number in found.partitions]).items():
            if answer.error:
                raise Kept(broker_error(answer.error, f"the end of {tp}").message)
            known = positions.get(TopicPartition(generation.topic, tp.partition))
            end = known.target_next if known else generation.target_starts.get(tp.partition, 0)
            if answer.offset != end:
                raise Kept(f"{tp} ends at offset {answer.offset}, the copy at {end}: others have written to it")

    def _delete_topic(self, target: WireClient, generation: Incarnation) -> None:
        context = self._context
        if not intended(context, generation):
            now = int(time.time() * 1000)
            kind = DecisionKind.DELETION
            whose, of = generation.incarnation, generation.target_topic_id
            context.permits.cases.add([Decision(generation.topic, -1, whose, kind, 0, 0, of, DELETE_DECIDED_BY, now)])
        crash_point("deletion.named")
        context.hold.check()
        try:
            target.delete_topic(generation.target_topic_id, generation.target_topic)
        except BrokerError as error:
            if error.code != UNKNOWN_TOPIC_ID:
                raise
        crash_point("deletion.deleted")
        deadline = time.monotonic() + GONE_SECONDS
        while not is_gone(target, generation):
            if time.monotonic() > deadline:
                raise Kept(f"target topic {generation.target_topic} is still there after it was deleted")
            time.sleep(GONE_POLL_SECONDS)


def is_gone(target: WireClient, generation: Incarnation) -> bool:
    """Whether the target has no topic of the copy's id any more, by one broker's metadata; an unclear answer says no."""
    metadata = target.metadata([generation.target_topic])
    found = metadata.topics[generation.target_topic]
    if metadata.cluster_id != generation.target_cluster_id:
        return False
    return found.error == UNKNOWN_TOPIC_OR_PARTITION or (not found.error and found.topic_id != generation.target_topic_id)


def settled(context: LaneContext, target: WireClient, run: TopicRun, generation: Incarnation) -> bool:
    """End a topic in the ledger whose copy was deleted by a run that was ended before the ledger knew. Raises BufferUnusable.

    The caller has looked at the target topic twice before. A source topic that was recreated meanwhile begins anew.
    """
    if not intended(context, generation) or not is_gone(target, generation):
        return False
    end_topic(context, generation)
    with context.state.lock:
        run.target_checked = True
        if run.halted is not None and run.halted.code == "recreated":
            del context.state.topics[run.topic]
            context.state.unready[run.topic] = "waits for the target cluster"
        else:
            run.halted, run.sendable = copy_deleted(generation.topic, generation.target_topic, context.target.alias), False
    return True


def forget_deleted(state: LaneState, metadata: ClusterMetadata, known: Mapping[str, Incarnation]) -> None:
    """A topic whose copy was deleted with it, and that exists again, begins like any new one."""
    with state.lock:
        for name, run in list(state.topics.items()):
            found = metadata.topics.get(name)
            if name not in known and run.halted is not None and run.halted.code == ENDED and found is not None and not found.error:
                del state.topics[name]


def record_unread(context: LaneContext) -> None:
    """Record, at the end of a run, the offsets that the source last had and that were never read, where all that was read is delivered.

    Repeating it changes nothing. What the source had is known from this run, else from the last one. Raises BufferUnusable.
    """
    with context.state.lock:
        over = [run for run in context.state.topics.values() if run.halted is not None and run.halted.code == ENDED and not run.left_out]
        over = [run for run in over if not any(part.pending for part in run.partitions.values())]
    for run in over:
        for number, part in sorted(run.partitions.items()):
            at, end = part.writing.position.source_next, part.reading.seen_end
            if end > at:
                now = int(time.time() * 1000)
                gap = Gap(context.mirror.name, run.topic, number, run.incarnation, at, end, HoleCause.RETENTION, KEEP_DECIDED_BY, now)
                context.ledger.add_gap(gap)
