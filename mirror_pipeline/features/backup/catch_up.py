"""Bring a ledger up to its target: what was sent after the ledger's last row is found by comparing both logs from there on.

    source  ... position |=== the same records ===| beyond
    target  ... position |=== in the same order ==| end
    ledger  ... last row  <-- rows are added for this

Nothing is believed: a topic of which any record after the position differs, is missing or is not on the source is left as it is, and a
run halts it. Writes nothing to a cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.features.adoption.adopt_topics import ADOPTED
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.model import HoleCause, Incarnation, Position, Send, TopicPartition
from mirror_pipeline.text import SHOWN_NAMES
from mirror_pipeline.verdicts import VerifyProgress
from mirror_pipeline.verify.compare import ComparedPair, PairStep, PairTask, compare_pairs, pair_tasks
from mirror_pipeline.verify.rules import read_terms

CAUGHT_UP, REFUSED_TOPIC = "caught_up", "refused"


@dataclass(frozen=True, slots=True)
class CaughtUpTopic:
    """One topic: ``records`` that the ledger did not know of. ``state`` is ``caught_up``, or ``refused`` with the ``reason``."""

    topic: str
    target_topic: str
    records: int
    state: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """One element of ``topics``."""
        return asdict(self)


def catch_up(flow: Flow, session: Session, observer: Any, stop: threading.Event) -> list[CaughtUpTopic]:
    """Add what is missing to the ledger of every lane, with the lane held. Raises ClusterUnreachable, LaneBusy, BufferUnusable."""
    found: list[CaughtUpTopic] = []
    promoted = flow.directions().look()
    for store in flow.lane_stores():
        with lane_lock(store) as hold:
            ledger = Ledger(store, durable=flow.config.buffer.durable)
            ledger.ensure()
            positions = ledger.positions()
            for topic, generation in sorted(ledger.incarnations().items()):
                if topic in promoted.refused([topic]):
                    continue  # applications write there, and no run does
                try:
                    pairs = _compared(flow, generation, positions, session, observer, stop)
                except ProblemFound as error:
                    found.append(CaughtUpTopic(topic, generation.target_topic, 0, REFUSED_TOPIC, error.message))
                    continue
                hold.check()
                sends = [send for pair in pairs for send in _missing(generation, pair, positions[pair.task.source])]
                ledger.record(ledger.last_record() + 1, sends)
                found.append(CaughtUpTopic(topic, generation.target_topic, sum(send.records for send in sends), CAUGHT_UP))
    return found


def _compared(
    flow: Flow, generation: Incarnation, positions: Mapping[TopicPartition, Position], session: Session, observer: Any,
    stop: threading.Event,
) -> list[ComparedPair]:  # fmt: skip
    """The partitions whose target is ahead of the ledger, compared from there on. Raises ProblemFound."""
    tasks = _tasks(flow, generation, positions)
    progress = VerifyProgress(sum(task.theirs[1] - task.theirs[0] for task in tasks), stage="records")

    def seen(_: ComparedPair, step: PairStep) -> None:
        if stop.is_set():
            raise ProblemFound("stopped before both sides were compared")
        progress.offsets = min(progress.total, progress.offsets + step.records)
        progress.records += step.records
        progress.bytes += step.bytes
        if observer is not None:
            observer(progress)

    runner = flow.comparer(session, progress.total)
    pairs = compare_pairs(runner, flow.target, tasks, timeout=flow.settings.engine.request_timeout, seen=seen) if tasks else {}
    for pair in pairs.values():
        _refuse_different(pair)
    return list(pairs.values())


def _tasks(flow: Flow, generation: Incarnation, positions: Mapping[TopicPartition, Position]) -> list[PairTask]:
    topic, target = generation.topic, generation.target_topic
    with closing(flow.source_client()) as left, closing(flow.target_client()) as right:
        ours, theirs = left.metadata([topic]).topics[topic], right.metadata([target]).topics[target]
        if ours.error or theirs.error:
            raise ProblemFound(f"{topic if ours.error else target} does not exist any more, or cannot be read")
        if theirs.topic_id != generation.target_topic_id or not generation.incarnation.startswith(ours.topic_id):
            raise ProblemFound(f"{topic} or {target} was recreated after the backup")
        terms = read_terms(flow.source, flow.target, {topic: target})[topic]
        counts = (len(ours.partitions), len(theirs.partitions))
        every = pair_tasks(left, right, (topic, target), counts, terms, limit=SHOWN_NAMES, strict=True)
    tasks = []
    for task in every:
        at = positions.get(task.source, Position(0, 0, 0))
        if task.theirs[1] > at.target_next:
            if task.ours[0] > at.source_next or task.theirs[0] > at.target_next:
                raise ProblemFound(f"{task.source}: records from offset {at.source_next} on are deleted on one side")
            if task.source not in positions:
                raise ProblemFound(f"{task.source} was added after the backup")
            narrowed = replace(task, ours=(at.source_next, task.ours[1]), theirs=(at.target_next, task.theirs[1]))
            tasks.append(replace(narrowed, prefix=True))
    return tasks


def _refuse_different(pair: ComparedPair) -> None:
    """Raise ProblemFound unless every target offset after the position holds the source's next record."""
    first, end = pair.task.theirs
    settled, matched = pair.settled, pair.runs.records(*pair.task.ours)
    if settled.unreadable:
        raise ProblemFound(f"{pair.task.target} cannot be compared: {settled.unreadable}")
    if settled.differences or matched != end - first:
        raise ProblemFound(f"{pair.task.target}: offsets [{first}, {end}) are not the next {end - first} records of the source")


def _missing(generation: Incarnation, pair: ComparedPair, at: Position) -> Iterator[Send]:
    """Sends that continue the ledger's rows, with their ordinals: the broker's memory of our sequences agrees with them."""
    end = pair.task.ours[1] if pair.beyond is None else pair.beyond
    first = Send(generation.topic, pair.task.source.partition, generation.incarnation, 0, 0, generation.target_topic, 0, 0, 0, 0, ADOPTED)

    def tile(at: Position, stop: int, records: int) -> tuple[Send, Position]:
        after = Position(stop, at.target_next + records, at.ordinal + records)
        made = replace(
            first, source_start=at.source_next, source_end=stop, target_start=at.target_next, target_end=after.target_next,
            records=records, ordinal=at.ordinal, cause=None if records else HoleCause.NO_RECORD,
        )  # fmt: skip
        return made, after

    for source, _, length in pair.runs.between(*pair.task.ours):
        if source > at.source_next:
            send, at = tile(at, source, 0)
            yield send
        send, at = tile(at, source + length, length)
        yield send
    if end > at.source_next:
        yield tile(at, end, 0)[0]
