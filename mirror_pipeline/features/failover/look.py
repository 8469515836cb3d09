"""What a failover finds before it changes anything, and everything for which it is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.promotions import is_promoted
from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.buffer.place.lock import Hold, lane_lock
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.engine.driver.topics.target import target_changed
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, LaneBusy, ProblemFound, UsageError
from mirror_pipeline.features.groups.answer import groups
from mirror_pipeline.features.groups.decide import GroupState
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.answers import LATEST_TIME, ProducerState
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.model import Incarnation, Position, TopicPartition
from mirror_pipeline.operations.state.buffer_status import ledger_of, span_table
from mirror_pipeline.operations.state.ledger_view import ledger_view
from mirror_pipeline.text import SHOWN_NAMES, count, instant
from mirror_pipeline.topics.lanes import select_topics


@dataclass(slots=True)
class Situation:
    """What is known of the topics that a failover is about: their lanes and generations, and whether the source is asked.

    ``producing`` has a line for each partition with records that are not on the target, ``left_out`` are selected topics that were never
    copied and so cannot be promoted.
    """

    flow: Flow
    copies: dict[str, tuple[LaneStore, Incarnation]]
    source_there: bool
    why_not: str = ""
    producing: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def refresh(self) -> None:
        """Read the ledgers again: a run takes in new partitions, and the next generation of a topic. Raises BufferUnusable."""
        found = found_copies(self.flow)
        self.copies = {topic: found[topic] for topic in self.copies if topic in found}

    @property
    def stores(self) -> list[LaneStore]:
        """The lanes concerned."""
        return sorted({store for store, _ in self.copies.values()}, key=lambda store: store.lane)

    def positions(self) -> dict[TopicPartition, Position]:
        """Where each partition stands, by the ledger as it is now. Raises BufferUnusable."""
        found: dict[TopicPartition, Position] = {}
        for store in self.stores:
            known = ledger_of(store).positions()
            for topic, (home, generation) in self.copies.items():
                for number, start in generation.starts.items() if home == store else ():
                    tp = TopicPartition(topic, number)
                    begun = Position(start, generation.target_starts.get(number, 0), generation.ordinals.get(number, 0))
                    found[tp] = known.get(tp) or begun
        return found

    def staged(self) -> dict[TopicPartition, int]:
        """Ends of what is staged and not sent, by partition. Raises BufferUnusable."""
        return {tp: end for tp, end in ledger_view(self.stores).staged.items() if tp.topic in self.copies}


def found_copies(flow: Flow) -> dict[str, tuple[LaneStore, Incarnation]]:
    """The topics that the mirror has copied, with their lanes. Raises UsageError for a mirror that never copied anything."""
    copies: dict[str, tuple[LaneStore, Incarnation]] = {}
    for store in flow.lane_stores():
        here = ledger_of(store).incarnations()
        out = Decisions(store).left_out(here)
        copies |= {topic: (store, generation) for topic, generation in here.items() if topic not in out}
    if not copies:
        raise UsageError(
            f"mirror {flow.name} has not copied anything: there is nothing to fail over to",
            hint=f"`mirror run --mirror {flow.name}` copies",
        )
    return copies


def choose(flow: Flow, copies: Mapping[str, tuple[LaneStore, Incarnation]], wanted: Collection[str] | None) -> list[str]:
    """The topics to promote: the ones asked for, or all that are not promoted yet.

    Raises:
        UsageError: a topic that was never copied, or that is promoted already.
    """
    promoted = {topic: rows for topic, rows in flow.directions().look().own.items() if is_promoted(rows)}
    unknown = sorted(set(wanted or ()) - copies.keys())
    if unknown:
        known = ", ".join(sorted(copies)[:SHOWN_NAMES]) + (", ..." if len(copies) > SHOWN_NAMES else "")
        raise UsageError(f"mirror {flow.name} has not copied topic {unknown[0]}", hint=f"it has copied {known}")
    chosen = sorted(set(wanted or copies) - promoted.keys())
    twice = sorted(set(wanted) & promoted.keys()) if wanted else [] if chosen else sorted(promoted)
    if twice:
        row = next(iter(promoted[twice[0]].values()))
        raise UsageError(
            f"mirror {flow.name} has failed over already: {', '.join(twice[:SHOWN_NAMES])} was promoted at {instant(row.at)} by {row.by}",
            hint=f"`mirror failback {flow.name}` leads back; the hand-over files are in the mirror's failover folder of the buffer",
        )
    return chosen


def look(flow: Flow, wanted: Collection[str] | None, *, unplanned: bool, dry_run: bool) -> Situation:
    """Look at both sides; changes nothing. A dry run holds nothing either, and looks beside a run.

    Raises:
        UsageError: the mirror never ran, an unknown topic, a second failover.
        ClusterUnreachable: the target does not answer.
        LaneBusy: a lane runs.
        ProblemFound: a copy is gone from the target, or the source is there and a group is active on the target.
    """
    copies = found_copies(flow)
    chosen = choose(flow, copies, wanted)
    _refuse_missing(flow, [copies[topic][1] for topic in chosen])
    there, why = (False, "--unplanned") if unplanned else _source_there(flow, chosen)
    found = Situation(flow, {topic: copies[topic] for topic in chosen}, there, why)
    if not dry_run:
        _refuse_running(found)
    if there:
        _refuse_active_groups(flow, chosen)
        found.producing = [line for _, line in still_written(found)]
        found.left_out = _never_copied(flow, copies) if wanted is None else []
    return found


def _refuse_missing(flow: Flow, generations: Collection[Incarnation]) -> None:
    """Applications cannot continue in a topic that is gone, or in another one of its name. Raises ClusterUnreachable."""
    with flow.target_client() as target:
        there = target.metadata(sorted({generation.target_topic for generation in generations}))
    for generation in generations:
        halt = target_changed(generation, there.topics[generation.target_topic], there.cluster_id, flow.settings.target)
        if halt is not None:
            hint = f"leave {generation.topic} out with --topic to fail over the others; {halt.hint}"
            raise ProblemFound(f"{halt.message}; nothing was promoted", hint=hint)


def _never_copied(flow: Flow, copies: Collection[str]) -> list[str]:
    """Selected topics of the source that the mirror has not begun. Raises ClusterUnreachable."""
    selected = select_topics(flow.config, flow.settings, flow.source_topics()).topics
    return sorted(selected.keys() - set(copies) - flow.directions().look().refused(selected).keys())


def _source_there(flow: Flow, topics: Collection[str]) -> tuple[bool, str]:
    try:
        with flow.source_client() as source:
            source.metadata(sorted(topics))
    except ClusterUnreachable as silent:
        return False, silent.message
    return True, ""


def _refuse_running(found: Situation) -> None:
    """A lane that runs would send on: it must end first."""
    with ExitStack() as stack:
        hold_lanes(found, stack)


def hold_lanes(found: Situation, stack: ExitStack) -> list[Hold]:
    """Hold the lanes of all topics. Raises LaneBusy."""
    holds = []
    for store in found.stores:
        try:
            holds.append(stack.enter_context(lane_lock(store)))
        except LaneBusy as busy:
            name = found.flow.name
            hint = f"stop that run first (in Dagster: stop the lag sensor of {name} and end the lane's run), then repeat the command"
            raise LaneBusy(busy.message, hint=hint) from None
    return holds


def _refuse_active_groups(flow: Flow, topics: Collection[str]) -> None:
    """Offsets cannot be written for a group that has members on the target."""
    if flow.settings.groups is None or not flow.settings.groups.include:
        return
    active = sorted({row.group for row in groups(flow).groups if row.state == GroupState.ACTIVE.value and row.topic in topics})
    if active:
        raise ProblemFound(
            f"group {active[0]} has members on cluster {flow.settings.target}: its offsets cannot be written there",
            hint="stop its consumers on the target until the failover is done; exclude the group with groups.exclude if it is another one",
        )


def still_written(found: Situation) -> list[tuple[TopicPartition, str]]:
    """Partitions whose source has records that are not on the target, in words, with the producers that the source remembers.

    Raises ClusterUnreachable.
    """
    positions = found.positions()
    with found.flow.source_client() as source:
        known = source.metadata(sorted(found.copies)).topics
        there = {TopicPartition(topic, number) for topic in found.copies for number in known[topic].partitions}
        ends = offsets_or_errors(source, positions.keys() | there, LATEST_TIME, isolation=0)
        same = {topic for topic, (_, generation) in found.copies.items() if known[topic].topic_id == generation.topic_id}
        # Of a topic that was made anew nothing is on the target, however far its predecessor was copied.
        reached = {tp: positions[tp].source_next if tp in positions and tp.topic in same else 0 for tp in ends}
        behind = [tp for tp, end in sorted(ends.items()) if isinstance(end, BrokerError) or end > reached[tp]]
        producers = source.describe_producers(behind) if behind else {}
    return [(tp, _written(tp, reached[tp], ends[tp], producers[tp])) for tp in behind]


def _written(tp: TopicPartition, position: int, end: int | BrokerError, known: list[ProducerState] | BrokerError) -> str:
    if isinstance(end, BrokerError):
        return f"{tp} cannot be read: {end.message}"
    return f"{tp}: {count(end - position)} offsets up to {end} are not on the target; {writers(known)}"


def writers(known: list[ProducerState] | BrokerError) -> str:
    """The producers that a partition's leader remembers, in words."""
    states = [] if isinstance(known, BrokerError) else sorted(known, key=lambda state: -state.last_timestamp)
    names = [f"{state.producer_id} (last at {instant(state.last_timestamp)})" for state in states[:SHOWN_NAMES]]
    opened = any(state.current_txn_start >= 0 for state in states)
    unknown = "whether someone still writes there cannot be told: brokers know idempotent producers only"
    said = f"producer ids: {', '.join(names)}" if names else unknown
    return f"{said}{'; a transaction is open' if opened else ''}"


def last_known_ends(found: Situation) -> dict[TopicPartition, int]:
    """The source's ends as the last run of each lane saw them. Raises BufferUnusable."""
    ends: dict[TopicPartition, int] = {}
    for store in found.stores:
        said = read_lane_file(store)
        for name, (_, generation) in found.copies.items():
            ends |= {TopicPartition(name, number): end for number, end in said.topic(name, generation.incarnation).end.items()}
    return ends


def pending(found: Situation) -> bool:
    """Whether something of the topics is staged and not on the target. Raises BufferUnusable."""
    positions = found.positions()
    stores = found.stores
    spans = [span for store in stores for span in span_table(store).pending({tp: at.source_next for tp, at in positions.items()})]
    return any(span.topic in found.copies and span.incarnation == found.copies[span.topic][1].incarnation for span in spans)
