"""Bring a ledger up to its target: what was sent after the ledger's last row is found by comparing both logs from there on.

    source  ... position |=== the same records ===| beyond
    target  ... position |=== in the same order ==| end
    ledger  ... last row  <-- rows are added for this

Nothing is believed: a topic of which any record after the position differs, is missing or is not on the source is left as it is, and a
run halts it. Writes nothing to a cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.features.adoption.adopt_topics import mapped_sends
from mirror_pipeline.features.adoption.proof import PairComparison
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.model import Incarnation, Position, TopicPartition
from mirror_pipeline.text import SHOWN_NAMES
from mirror_pipeline.verify.compare import ComparedPair, PairTask, pair_tasks
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
                # With their ordinals the broker's memory of our sequences agrees.
                sends = [send for pair in pairs for send in mapped_sends(pair, generation, positions[pair.task.source])]
                ledger.record(ledger.last_record() + 1, sends)
                found.append(CaughtUpTopic(topic, generation.target_topic, sum(send.records for send in sends), CAUGHT_UP))
    return found


def _compared(
    flow: Flow, generation: Incarnation, positions: Mapping[TopicPartition, Position], session: Session, observer: Any,
    stop: threading.Event,
) -> list[ComparedPair]:  # fmt: skip
    """The partitions whose target is ahead of the ledger, compared from there on. Raises ProblemFound."""
    tasks = _tasks(flow, generation, positions)
    comparison = PairComparison(flow, observer, stop, ProblemFound("stopped before both sides were compared"))
    pairs = comparison.run(tasks, session) if tasks else {}
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
