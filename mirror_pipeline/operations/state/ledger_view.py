"""What a mirror's own files say of it, each read once: ledger, buffer, decisions, and the last run of each lane. Contacts no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.place.lane_file import FAILED, LaneFile, read_lane_file
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.engine.driver.topics.first_seen import FirstSeen
from mirror_pipeline.halts import ACCEPTABLE
from mirror_pipeline.lags import PartitionLag
from mirror_pipeline.model import Decision, DecisionKind, Incarnation, TopicPartition
from mirror_pipeline.operations.state.buffer_status import ledger_of, span_table
from mirror_pipeline.reports import TopicProgress, TopicState
from mirror_pipeline.text import few, plural, since


@dataclass(frozen=True, slots=True)
class Copied:
    """A topic that a lane copies, by its ledger, with the decisions recorded for it; ``running`` while that lane runs."""

    store: LaneStore
    generation: Incarnation
    decisions: tuple[Decision, ...]
    running: bool

    def accepted(self, kind: DecisionKind, subject: str = "") -> bool:
        """Whether an operator has accepted this of the topic's present generation."""
        mine = (d for d in self.decisions if d.kind is kind and d.incarnation == self.generation.incarnation)
        return any(not subject or d.subject == subject for d in mine)


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane: its last run's words, the topics in its ledger, and the decisions about them."""

    store: LaneStore
    file: LaneFile
    generations: Mapping[str, Incarnation]
    decisions: tuple[Decision, ...]

    def accepted(self, topic: str, code: str) -> bool:
        """Whether an operator has accepted this halt since the run, which did not know of it."""
        kind = ACCEPTABLE.get(code)
        return any((d.topic, d.kind) == (topic, kind) and d.revision > self.file.decisions for d in self.decisions)


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A mirror's lanes, and its partitions by ledger and buffer.

    ``positions`` are the next source offsets to produce, ``staged`` the ends of what is staged, ``starts`` the first offsets of copies
    that have begun, ``first_seen`` what lanes know of those that have not.
    """

    lanes: tuple[LaneView, ...] = ()
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    staged: dict[TopicPartition, int] = field(default_factory=dict)
    staged_records: int = 0
    staged_bytes: int = 0
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    first_seen: tuple[FirstSeen, ...] = ()

    @property
    def copied(self) -> dict[str, Copied]:
        """The topics in the ledgers."""
        return {
            topic: Copied(lane.store, generation, lane.decisions, lane.file.running)
            for lane in self.lanes
            for topic, generation in lane.generations.items()
        }

    @property
    def kept(self) -> set[str]:
        """Names of the topics in the ledgers, without those whose deletion an operator has accepted."""
        return {name for name, topic in self.copied.items() if not topic.accepted(DecisionKind.SOURCE_GONE)}

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each lane whose last run failed, was cut off, or waits for a cluster."""
        return tuple(f"{lane.store.lane}: {said}" for lane in self.lanes if (said := _note(lane.file)))

    def staged_rows(self, generation: Incarnation) -> tuple[PartitionLag, ...]:
        """The partitions of a copy by ledger and buffer alone: each ends where the buffer does."""
        rows = []
        for number, start in sorted(generation.starts.items()):
            tp = TopicPartition(generation.topic, number)
            position = self.positions.get(tp, start)
            staged = max(position, self.staged.get(tp, position))
            rows.append(PartitionLag(number, position, staged, staged, staged - position))
        return tuple(rows)

    def next_offsets(self, generations: Iterable[Incarnation]) -> dict[TopicPartition, int]:
        """The next source offset to read of each partition of these copies."""
        return {TopicPartition(g.topic, row.partition): row.staged for g in generations for row in self.staged_rows(g)}


def ledger_view(stores: Sequence[LaneStore]) -> LedgerView:
    """Read the files of some lanes. Raises BufferUnusable."""
    positions: dict[TopicPartition, int] = {}
    staged: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    lanes: list[LaneView] = []
    records = size = 0
    for store in stores:
        ledger, spans = ledger_of(store), span_table(store)
        there = ledger.exists()  # else the lane is being created
        generations = ledger.incarnations() if there else {}
        lanes.append(LaneView(store, read_lane_file(store), generations, tuple(Decisions(store).all())))
        if not (there and spans.exists()):
            continue
        incarnations = {name: generation.incarnation for name, generation in generations.items()}
        starts |= {TopicPartition(name, n): first for name, copied in generations.items() for n, first in copied.starts.items()}
        here = {tp: position.source_next for tp, position in ledger.positions().items()}
        positions |= here
        for span in spans.pending(here, incarnations=incarnations):
            staged[span.source] = max(staged.get(span.source, 0), span.end)
            records += span.records
            size += span.bytes
    return LedgerView(tuple(lanes), positions, staged, records, size, starts, tuple(map(FirstSeen, stores)))


def state_of(name: str, said: TopicProgress) -> TopicState:
    """A topic as the run last described it."""
    return TopicState(
        name, said.state, said.reason, said.hint, said.target_topic, said.records, said.bytes, said.code,
        behind_seconds=said.behind_seconds,
    )  # fmt: skip


def ahead(file: LaneFile) -> list[str]:
    """What copies of a source that is down hold and the target lacks, while a lane reads it from them."""
    more = file.progress.ahead if file.running else {}
    return [f"{alias} is ahead by {plural(number, 'record')}, copied from there" for alias, number in more.items() if number]


def _note(file: LaneFile) -> str:
    if file.state == FAILED:
        return f"the last run failed: {file.message or 'no reason given'}"
    if file.stale:
        return f"the last run was interrupted, its last heartbeat is {file.age:,.0f} s old"
    if file.progress.target_down:
        return f"target down: {file.progress.target_down}"
    if file.progress.source_down:
        return "; ".join([f"source down{since(file.source_down_since)}: {file.progress.source_down}", *ahead(file)])
    if file.running and file.progress.left_out:
        return "; ".join(few([f"{what} is not read: {why}" for what, why in file.progress.left_out.items()]))
    return f"no new topics or partitions are found: {said}" if (said := file.progress.search_failure) else ""
