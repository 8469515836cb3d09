"""``Mirror.adopt``: take over a target topic that already holds a copy, after proving that it is one.

The offset map of what is there goes into the ledger first, under the name of a generation that does not exist yet. The generation's own
row is the commit: without it nobody reads those rows, so a process that is killed before it has adopted nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes, open_lane
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.topics.generations import bound_at
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.features.adoption import mm2_adoption
from mirror_pipeline.features.adoption.adoption_report import AdoptedPartition, AdoptOptions, AdoptReport
from mirror_pipeline.features.adoption.proof import Proof, ProofObserver, ProvenPartition, prove
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.model import HoleCause, Incarnation, Position, Send, TopicPartition
from mirror_pipeline.topics.lanes import known_topics, lane_of, select_topics
from mirror_pipeline.verify.compare import ComparedPair
from mirror_pipeline.verify.log_walk import READ_UNCOMMITTED

ADOPTED = -1
"""The micro-batch of sends that no run has made."""


def adopt(
    flow: Flow, topic: str, options: AdoptOptions, session: Session, observer: ProofObserver | None, stop: threading.Event
) -> AdoptReport:
    """See ``Mirror.adopt``."""
    began = time.monotonic()
    flow.meet()
    target_topic = _selected(flow, topic)
    lane = lane_of(flow.config.buffer, flow.settings, [topic])[topic]
    if flow.settings.exact:
        raise UsageError(
            f"mirror {flow.name} copies with exact offsets, and an existing copy may have others",
            hint="`mirror run` continues a copy that has the same offsets; adopt another one in a mirror with `offsets: translated`",
        )
    _refuse_begun(flow, topic)
    _refuse_others(flow, topic, target_topic)
    if not options.dry_run:
        _refuse_busy(flow, lane)
    maker = None if options.mm2_alias is None else mm2_adoption.begin(flow, options.mm2_alias)
    proof = prove(flow, topic, target_topic, options, session, observer, stop)
    if maker is not None:
        proof = replace(proof, notes=(*proof.notes, *maker.check(proof)))
    if not options.dry_run:
        store = open_lane(flow.config.buffer, flow.name, lane)
        claims = flow.claims()
        with lane_lock(store) as hold, claims.held(store) if claims is not None else nullcontext():
            _refuse_begun(flow, topic)
            _refuse_others(flow, topic, target_topic)  # another mirror may have begun it during the comparison
            if maker is not None:
                maker.keep_groups(proof)  # before the commit: without it these rows concern no topic
            hold.check()
            record(flow, store, proof)
    return report_of(flow, lane, proof, options, time.monotonic() - began)


def report_of(flow: Flow, lane: str, proof: Proof, options: AdoptOptions, seconds: float) -> AdoptReport:
    """The answer."""
    parts = tuple(_row(part, proof.source_ends[part.number]) for part in proof.partitions)
    state = "ready" if options.dry_run else "adopted"
    return AdoptReport(
        flow.name, proof.topic, proof.target_topic, lane, state, options.dry_run, options.proof, parts, proof.notes, seconds
    )


def _selected(flow: Flow, topic: str) -> str:
    return select_topics(flow.config, flow.settings, flow.source_topics()).target_of(flow.name, topic)


def _refuse_begun(flow: Flow, topic: str) -> None:
    known = known_topics(flow.config, flow.settings).get(topic)
    if known is not None:
        raise UsageError(
            f"mirror {flow.name} copies topic {topic} already, in {known.lane}: its ledger knows what the target holds",
            hint="`mirror run` continues it; `mirror lag` shows where it stands",
        )


def _refuse_others(flow: Flow, topic: str, target_topic: str) -> None:
    """Raise TopicHalted where another mirror writes the target topic, or copies it the other way."""
    halts = flow.directions().look().refused([topic])
    claims = flow.claims()
    if claims is not None:
        claims.look()
        halts = {**claims.refused({topic: target_topic}), **halts}
    for halt in halts.values():
        raise halt.error()


def _refuse_busy(flow: Flow, lane: str) -> None:
    """Raise LaneBusy now rather than after the comparison."""
    for store in find_lanes(flow.config.buffer, flow.name):
        if store.lane == lane:
            with lane_lock(store):
                return


def record(flow: Flow, store: LaneStore, proof: Proof) -> Incarnation:
    """Write a proven copy into the ledger, with the lane held; returns its generation.

    Raises:
        ProblemFound: the target was written meanwhile, or recreated.
    """
    _refuse_moved(flow, proof)
    ledger = Ledger(store, durable=flow.config.buffer.durable)
    ledger.ensure()
    generation = _generation(proof, ledger.incarnations().get(proof.topic))
    sends = [send for part in proof.partitions for send in _sends(part, generation)]
    ledger.record(ledger.last_record() + 1, sends)
    crash_point("adopt.mapped")
    ledger.add_incarnations([generation])
    crash_point("adopt.adopted")
    return generation


def _refuse_moved(flow: Flow, proof: Proof) -> None:
    """Raise ProblemFound unless the target is what was compared."""
    with flow.target_client() as client:
        found = client.metadata([proof.target_topic]).topics[proof.target_topic]
        logs = {TopicPartition(proof.target_topic, part.number): part.target_log for part in proof.partitions}
        ends = {} if found.error else log_range(client, logs, isolation=READ_UNCOMMITTED)
    moved = [f"{tp} ends at {ends[tp][1]}, not {log[1]}" for tp, log in logs.items() if tp in ends and ends[tp][1] != log[1]]
    if found.topic_id != proof.target.topic_id:
        moved = ["it was deleted or recreated"]
    if moved:
        raise ProblemFound(
            f"target topic {proof.target_topic} changed while it was compared: {moved[0]}; nothing was adopted",
            hint="stop whatever writes it, then repeat the command: a mirrored topic has one writer",
        )


def _generation(proof: Proof, before: Incarnation | None) -> Incarnation:
    """The generation's name has the time in it: rows of an adoption that was killed are never taken for those of another generation.

    ``before`` is the one that it replaces. The brokers may remember its last sequence, and take sequence 0 under the next epoch (KIP-360).
    """
    return Incarnation(
        topic=proof.topic,
        incarnation=f"{proof.source.topic_id}/{int(time.time() * 1000)}",
        source_cluster_id=proof.source.cluster_id,
        target_cluster_id=proof.target.cluster_id,
        target_topic=proof.target_topic,
        target_topic_id=proof.target.topic_id,
        starts={part.number: part.start for part in proof.partitions},
        target_starts={part.number: part.target_log[1] for part in proof.partitions},
        at=bound_at(before),
        producer_epoch=0 if before is None else before.producer_epoch + 1,
        kept={part.number: part.target_log[0] for part in proof.partitions} if proof.same_offsets else {},
    )


@dataclass(slots=True)
class _Tiles:
    """Makes the sends of one partition: they tile its source offsets, and their ordinals run on; an adopted copy's end at 0, where its own
    begin."""

    first: Send
    at: int
    target: int
    ordinal: int

    def hole(self, end: int) -> Iterator[Send]:
        """Source offsets without a committed record."""
        if end > self.at:
            yield self._tile(end, 0, HoleCause.NO_RECORD)

    def dense(self, target: int, length: int) -> Iterator[Send]:
        """Records that are on both sides."""
        self.target = target
        yield self._tile(self.at + length, length, None)

    def _tile(self, end: int, records: int, cause: HoleCause | None) -> Send:
        made = replace(
            self.first, source_start=self.at, source_end=end, target_start=self.target, target_end=self.target + records,
            records=records, ordinal=self.ordinal, cause=cause,
        )  # fmt: skip
        self.at, self.target, self.ordinal = end, self.target + records, self.ordinal + records
        return made


def _sends(part: ProvenPartition, generation: Incarnation) -> Iterator[Send]:
    if part.pair is not None:
        records = part.pair.runs.records(part.start, part.source_next)
        yield from mapped_sends(part.pair, generation, Position(part.start, part.pair.task.theirs[0], -records))


def mapped_sends(pair: ComparedPair, generation: Incarnation, at: Position) -> Iterator[Send]:
    """What a comparison has matched, as the sends of a generation from a position on."""
    source, target = at.source_next, at.target_next
    number = pair.task.source.partition
    first = Send(generation.topic, number, generation.incarnation, source, source, generation.target_topic, target, target, 0, 0, ADOPTED)
    tiles = _Tiles(first, source, target, at.ordinal)
    for begin, there, length in pair.runs.between(source, pair.source_next):
        yield from tiles.hole(begin)
        yield from tiles.dense(there, length)
    yield from tiles.hole(pair.source_next)


def _row(part: ProvenPartition, source_end: int) -> AdoptedPartition:
    runs = part.pair.runs if part.pair is not None else None
    return AdoptedPartition(
        part.number, part.start, part.source_next, part.target_log[0] + part.unproven, part.target_log[1],
        0 if runs is None else runs.records(part.start, part.source_next), 0 if runs is None else len(runs.source),
        part.foreign, part.unproven, source_end - part.source_next,
    )  # fmt: skip
