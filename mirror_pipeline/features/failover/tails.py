"""Records of the old source that never came over: looked at again and again, each look noted before its records are copied aside.

A producer that nobody has stopped may write at any moment, also while the command was cut off. So nothing is deleted but offsets before
a noted end whose records were copied aside; what arrives later stays in its log, and the next look finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirror_pipeline.buffer.ledger.promotions import FailoverStep, Latest, Promotion
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.features.failover.look import writers
from mirror_pipeline.features.failover.report import TailPartition
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.text import SHOWN_NAMES, count


@dataclass(slots=True)
class NotedLook:
    """A look that a failback has written down: its number, what was new, the ids of the topics, and whether all of it was copied aside."""

    number: int
    tail: list[TailPartition]
    ids: dict[str, str]
    aside: bool
    copied: bool = False

    def of(self, topic: str, topic_id: str) -> list[TailPartition]:
        """The offsets of a topic, if it still is the one that was looked at."""
        return [row for row in self.tail if row.topic == topic] if self.ids.get(topic) == topic_id else []

    def detail(self) -> dict[str, object]:
        """The detail of its step in the ledger."""
        rows = [[row.topic, row.partition, row.start, row.end, row.lost] for row in self.tail]
        return {"offsets": rows, "ids": self.ids, "aside": self.aside}


@dataclass(frozen=True, slots=True)
class TailLook:
    """The logs of old topics now: what is new since the noted looks, and where each log starts, is stable, and ends."""

    tail: list[TailPartition]
    ids: dict[str, str]
    starts: dict[TopicPartition, int]
    stable: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]

    @property
    def undecided(self) -> list[TopicPartition]:
        """Partitions with an open transaction."""
        return [tp for tp, end in sorted(self.ends.items()) if end > self.stable[tp]]

    @property
    def used(self) -> dict[str, str]:
        """The topics that ever had a record, with their ids."""
        return {tp.topic: self.ids[tp.topic] for tp, end in self.ends.items() if end}

    @property
    def held(self) -> dict[TopicPartition, int]:
        """The end of each log that still holds records."""
        return {tp: end for tp, end in self.ends.items() if end > self.starts[tp]}


def noted_looks(steps: Iterable[FailoverStep], kind: str) -> list[NotedLook]:
    """Every look of a mirror's failbacks, in order."""
    found: list[NotedLook] = []
    for step in steps:
        if step.kind == kind and step.step == "tail":
            rows = [TailPartition(*row) for row in step.detail["offsets"]]
            found.append(NotedLook(step.number, rows, dict(step.detail.get("ids", {})), bool(step.detail.get("aside"))))
        elif step.kind == kind and step.step == "copied":
            for look in found:
                look.copied = look.copied or look.number == step.number
    return found


def look_at(flow: Flow, topics: Collection[str], latest: Latest, noted: Sequence[NotedLook]) -> TailLook:
    """Look at old topics: of one that was recreated since its promotion all that it holds never came over.

    Args:
        flow: the mirror that was failed over.
        topics: its source topics.
        latest: its last promotions.
        noted: looks whose records were, or are being, copied aside.

    Raises:
        ClusterUnreachable: the old source does not answer.
        ProblemFound: a log ends before an offset up to which it was copied.
    """
    with flow.source_client() as client:
        known = client.metadata(sorted(topics)).topics
        ids = {name: known[name].topic_id or "" for name in topics}
        asked = [TopicPartition(name, number) for name in topics for number in known[name].partitions]
        starts, stable = (offsets_at(client, asked, at) for at in (EARLIEST_TIME, LATEST_TIME))
        ends = offsets_at(client, asked, LATEST_TIME, isolation=0)
    since = {tp: _since(tp, ids[tp.topic], latest[tp.topic], noted) for tp in asked}
    _refuse_shorter(flow, since, ends)
    tail = [
        TailPartition(tp.topic, tp.partition, since[tp], stable[tp], max(0, min(starts[tp], stable[tp]) - since[tp]))
        for tp in sorted(asked)
        if stable[tp] > since[tp]
    ]
    return TailLook(tail, ids, starts, stable, ends)


def _since(tp: TopicPartition, topic_id: str, promoted: Mapping[int, Promotion], noted: Sequence[NotedLook]) -> int:
    """The offset up to which the records of a partition came over, or were copied aside."""
    first = next((row.generation.partition("/")[0] for row in promoted.values()), "")
    row = promoted.get(tp.partition) if first in ("", topic_id) else None
    copied = [part.end for look in noted for part in look.of(tp.topic, topic_id) if part.partition == tp.partition]
    return max([0 if row is None else row.source_offset, *copied])


def _refuse_shorter(flow: Flow, since: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    shorter = [f"{tp.topic}[{tp.partition}] at offset {count(ends[tp])}" for tp in sorted(since) if ends[tp] < since[tp]]
    if shorter:
        raise ProblemFound(
            f"cluster {flow.settings.source} has lost records that were copied: the log ends of {'; '.join(shorter[:SHOWN_NAMES])},"
            " before the offsets of the promotion; nothing was opened",
            hint="look at its brokers: was one started with an older or an empty disk? A topic that you delete there stands in no way",
        )


def merged(rows: Iterable[TailPartition]) -> list[TailPartition]:
    """One row for each partition, over all that several looks have found."""
    found: dict[tuple[str, int], TailPartition] = {}
    for row in rows:
        before = found.get((row.topic, row.partition), row)
        start, end = min(before.start, row.start), max(before.end, row.end)
        found[row.topic, row.partition] = TailPartition(row.topic, row.partition, start, end, max(before.lost, row.lost))
    return [found[key] for key in sorted(found)]


def still_written(client: WireClient, look: TailLook) -> str:
    """The partitions of a look that do not come to rest, in words, with the producers that their leaders remember."""
    busy = sorted({*look.undecided, *(TopicPartition(row.topic, row.partition) for row in look.tail)} or look.held)
    known = client.describe_producers(busy)
    more = f" and {len(busy) - SHOWN_NAMES} more partitions" if len(busy) > SHOWN_NAMES else ""
    return "; ".join(f"{tp}: {writers(known[tp])}" for tp in busy[:SHOWN_NAMES]) + more
