"""``resolve``: an operator accepts what a mirror must not decide by itself. Recorded in the ledger; the next run acts on it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.engine.driver.read.divergence import diverged
from mirror_pipeline.engine.driver.topics.policies import source_policies
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConnectionLost, UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.halts import ACCEPTABLE, MEANING, accept_command
from mirror_pipeline.host import operator
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import UNKNOWN_TOPIC_OR_PARTITION, broker_error
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.lags import HALTED
from mirror_pipeline.model import BatchMark, Decision, DecisionKind, Gap, HoleCause, Incarnation, TopicPartition
from mirror_pipeline.operations.state.halts import HaltLook
from mirror_pipeline.operations.state.ledger_view import ledger_view
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import HaltedTopic, Resolution, TopicProgress
from mirror_pipeline.topics.lanes import KnownCopy

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Halted:
    """A halt, and the lane that copies its topic."""

    store: LaneStore
    halt: HaltedTopic


def halts(flow: Flow) -> list[HaltedTopic]:
    """The halts that `lag` and `plan` show, with the command that accepts each.

    What the clusters show now, as far as they answer, else what the last run of each lane reported.
    """
    return [found.halt for found in _halted(flow)]


def _halted(flow: Flow) -> list[_Halted]:
    """Those of the lanes by a look at the clusters, those of backfills as reported."""
    lanes = flow.lane_stores()
    others = [store for store in find_lanes(flow.config.buffer, flow.name) if store.lane not in {lane.lane for lane in lanes}]
    reports = _reports(lanes)
    look = _look(flow, reports)
    rows = []
    for name, state in sorted(look.halts.items()):
        if state.state == HALTED:
            store, said = reports.get(name) or (look.copied[name].store, TopicProgress(""))
            seen = look.seen.get(name)
            spot = (seen.partition, seen.span) if seen is not None else (said.halted_partition, said.halted_span)
            said = replace(said, halted_partition=spot[0], halted_span=spot[1], code=state.code, reason=state.reason, hint=state.hint)
            rows.append(_Halted(store, _halt(flow.name, store.lane, name, said)))
    elsewhere = sorted(_reports(others).items())
    return [*rows, *(_Halted(store, _halt(flow.name, store.lane, name, said)) for name, (store, said) in elsewhere)]


def _reports(stores: Iterable[LaneStore]) -> dict[str, tuple[LaneStore, TopicProgress]]:
    """The topics that the last run of each lane left halted."""
    topics = ((store, name, said) for store in stores for name, said in read_lane_file(store).topics.items())
    return {name: (store, said) for store, name, said in topics if said.state == HALTED}


def _look(flow: Flow, reported: Iterable[str]) -> HaltLook:
    with Snapshot(flow) as snapshot:
        look = HaltLook(snapshot, {*snapshot.ledger.kept, *reported})
        for ask in (look.at_source, look.at_target):
            with suppress(ClusterUnreachable, ConnectionLost, BrokerError):
                ask()
    return look


def _halt(mirror: str, lane: str, topic: str, said: TopicProgress) -> HaltedTopic:
    start, end = said.halted_span or (None, None)
    return HaltedTopic(
        mirror=mirror,
        lane=lane,
        topic=topic,
        partition=said.halted_partition,
        code=said.code,
        reason=said.reason,
        hint=said.hint,
        start=start,
        end=end,
        accept=accept_command(mirror, topic, said.code),
    )


def resolve(flow: Flow, topic: str, accept: str) -> Resolution:
    """See :meth:`Mirror.resolve`."""
    mine = [found for found in _halted(flow) if found.halt.topic == topic]
    found = next((f for f in mine if f.halt.code == accept), None)
    if found is None:
        raise _refusal(flow, topic, accept, mine)
    kind = ACCEPTABLE.get(accept)
    if kind is None:
        raise UsageError(f"{accept} cannot be accepted; fix its cause: {found.halt.reason}", hint=found.halt.hint)
    generation = Ledger(found.store).incarnations().get(topic)
    if generation is None:
        raise UsageError(f"topic {topic} has no copy yet in lane {found.store.lane}", hint="`mirror plan` shows what prevents it")
    decided = _decide(flow, found, kind, generation)
    if kind is DecisionKind.SOURCE_GONE:
        _name_lost(flow, found.store, decided)
    return _recorded(flow, found.store, accept, decided)


def accept_target(flow: Flow, known: KnownCopy, topic_id: str) -> Resolution:
    """Accept the target topic of this id for a copy afresh; asks no cluster: brokers may not show it alike yet."""
    store = next(store for store in flow.lane_stores() if store.lane == known.lane)
    return _recorded(flow, store, "target_recreated", [_decision(known.generation, DecisionKind.TARGET, -1, (0, 0), subject=topic_id)])


def _recorded(flow: Flow, store: LaneStore, accept: str, decided: list[Decision]) -> Resolution:
    Decisions(store, durable=flow.config.buffer.durable).add(decided)
    spans = {d.partition: (d.start, d.end) for d in decided if d.partition >= 0}
    return Resolution(flow.name, decided[0].topic, accept, MEANING[accept], spans, decided[0].decided_by)


def _refusal(flow: Flow, topic: str, accept: str, mine: list[_Halted]) -> UsageError:
    """Why a topic's halt is not accepted under this code."""
    said = f"topic {topic} of mirror {flow.name} is not halted for {accept!r}"
    if mine:
        halt = mine[0].halt
        command = f"; accept that with: {halt.accept}" if halt.accept else ""
        return UsageError(said, hint=f"it is halted for {halt.code or 'another reason'}: {halt.reason}{command}")
    reported = _reports(flow.lane_stores()).get(topic)
    if reported is not None and reported[1].code == accept:
        return _not_so(f"{said} any more")
    return UsageError(said, hint=f"`mirror resolve --mirror {flow.name}` lists what is halted")


def _decide(flow: Flow, found: _Halted, kind: DecisionKind, generation: Incarnation) -> list[Decision]:
    with flow.target_client() if kind is DecisionKind.TARGET else flow.source_client() as client:
        if kind is DecisionKind.TARGET:
            _look_at_target(client, Ledger(found.store), generation)
        if kind in (DecisionKind.RECREATED, DecisionKind.TARGET):
            return [_of_topic(client, kind, generation)]
        if kind is DecisionKind.SOURCE_GONE:
            return _of_gone(client, found.store, generation)
        spans = _truncated(flow, client, found, generation) if kind is DecisionKind.TRUNCATED else _spans(client, found, generation)
    return [_decision(generation, kind, number, span) for number, span in sorted(spans.items())]


def _of_topic(client: WireClient, kind: DecisionKind, generation: Incarnation) -> Decision:
    name = generation.target_topic if kind is DecisionKind.TARGET else generation.topic
    answer = client.metadata([name]).topics[name]
    if answer.error:
        raise broker_error(answer.error, name)
    if kind is DecisionKind.RECREATED and answer.topic_id == generation.topic_id:
        raise _not_so(f"source topic {name} still has the topic id that was copied, {answer.topic_id}")
    return _decision(generation, kind, -1, (0, 0), subject=answer.topic_id)


def _not_so(seen: str) -> UsageError:
    """The halt's cause is gone: accepting it would give up, or copy twice, records that are in order."""
    return UsageError(f"{seen}: the halt no longer applies, and nothing was changed", hint="the next run resumes the topic")


def _of_gone(client: WireClient, store: LaneStore, generation: Incarnation) -> list[Decision]:
    """The topic is no longer mirrored; the offsets that its source last had and that were never read become a gap."""
    answer = client.metadata([generation.topic]).topics[generation.topic]
    if answer.error != UNKNOWN_TOPIC_OR_PARTITION:
        raise UsageError(
            f"source topic {generation.topic} exists, or may not be described" + (f" ({answer.topic_id})" if answer.topic_id else ""),
            hint="run the mirror again: the topic resumes, or halts as `recreated`",
        )
    rows = ledger_view([store]).staged_rows(generation)
    if left := sum(row.lag for row in rows):
        raise UsageError(
            f"{left:,} offsets of {generation.topic} are staged and not on the target yet", hint="deliver them first: `mirror run --drain`"
        )
    ends = read_lane_file(store).topic(generation.topic, generation.incarnation).end
    lost = {row.partition: (row.staged, ends[row.partition]) for row in rows if ends.get(row.partition, 0) > row.staged}
    spans = lost or {-1: (0, 0)}
    return [_decision(generation, DecisionKind.SOURCE_GONE, number, span) for number, span in sorted(spans.items())]


def _name_lost(flow: Flow, store: LaneStore, decided: Iterable[Decision]) -> None:
    ledger = Ledger(store, durable=flow.config.buffer.durable)
    for d in decided:
        if d.end > d.start:
            ledger.add_gap(Gap(flow.name, d.topic, d.partition, d.incarnation, d.start, d.end, HoleCause.RETENTION, d.decided_by, d.at))


def _look_at_target(client: WireClient, ledger: Ledger, generation: Incarnation) -> None:
    """Refuse to copy everything again into an intact target topic. Raises UsageError, BrokerError."""
    answer = client.metadata([generation.target_topic]).topics[generation.target_topic]
    if answer.error:
        raise broker_error(answer.error, generation.target_topic)
    known = ledger.positions()
    stands = {TopicPartition(generation.target_topic, number): at for number, at in generation.target_starts.items()}
    for place in stands:
        position = known.get(TopicPartition(generation.topic, place.partition))
        stands[place] = position.target_next if position is not None else stands[place]
    there = {TopicPartition(generation.target_topic, number) for number in answer.partitions}
    if answer.topic_id != generation.target_topic_id or not stands.keys() <= there:
        return
    ends = offsets_at(client, stands, LATEST_TIME, isolation=0)
    if all(ends[place] >= at for place, at in stands.items()):
        raise UsageError(
            f"target topic {generation.target_topic} holds what was copied: its topic id is unchanged, and no partition ends too early",
            hint="there is nothing left to accept; run the mirror again",
        )


def _spans(client: WireClient, found: _Halted, generation: Incarnation) -> dict[int, Span]:
    """Source offsets, by partition, that the decision covers: all partitions with the same problem now."""
    spans = _named_spans(found.halt)
    if found.halt.code == "trimmed":
        nexts = _nexts(found.store, generation)
        firsts = _offsets(client, generation.topic, nexts, EARLIEST_TIME)
        spans |= {n: (at, firsts[n]) for n, at in nexts.items() if firsts[n] > at}
    return spans


def _named_spans(halt: HaltedTopic) -> dict[int, Span]:
    """The offsets that the run halted for, if it named them."""
    if halt.partition is None or halt.start is None or halt.end is None:
        return {}
    return {halt.partition: (halt.start, halt.end)}


def _truncated(flow: Flow, client: WireClient, found: _Halted, generation: Incarnation) -> dict[int, Span]:
    """Source offsets, by partition, that the log has lost by now; where the run halted because the log was rewritten after a
    truncation, the offsets it named.

    Raises:
        UsageError: the log continues from what was read.
        BrokerError, ConnectionLost: this cannot be determined.
    """
    nexts = _nexts(found.store, generation)
    ends = _offsets(client, generation.topic, nexts, LATEST_TIME)
    named = _named_spans(found.halt)
    spans = {n: named.get(n, (ends[n], at)) for n, at in nexts.items() if ends[n] < at}
    others = {n: span for n, span in named.items() if n not in spans and n in nexts}
    spans |= {n: span for n, span in others.items() if _diverged(flow, client, found, generation, n, nexts[n])}
    same = client.metadata([generation.topic]).topics[generation.topic]  # after its log: an id never comes back
    if same.error or same.topic_id != generation.topic_id:
        raise UsageError(
            f"source topic {generation.topic} is not the one any more that was copied, but {same.topic_id or 'gone'}: nothing was changed",
            hint=f"`mirror resolve --mirror {flow.name}` shows what it is halted for now",
        )
    if not spans:
        number = found.halt.partition if found.halt.partition in nexts else min(nexts)
        seen = f"{generation.topic}[{number}] ends at offset {ends[number]}, which is not before the next offset to copy ({nexts[number]})"
        raise _not_so(seen)
    return spans


def _diverged(flow: Flow, client: WireClient, found: _Halted, generation: Incarnation, number: int, at: int) -> bool:
    """Whether the batch read last, as the run recorded it, is no longer in the log."""
    mark = read_lane_file(found.store).topic(generation.topic, generation.incarnation).marks.get(number)
    if mark is None:
        return False
    with flow.source_admin() as admin:
        compacted = source_policies([generation.topic], admin)[generation.topic].may_be_compacted
    return diverged(client, TopicPartition(generation.topic, number), BatchMark(*mark), at, compacted=compacted) is not None


def _nexts(store: LaneStore, generation: Incarnation) -> dict[int, int]:
    """Next source offset to read, by partition."""
    return {row.partition: row.staged for row in ledger_view([store]).staged_rows(generation)}


def _offsets(client: WireClient, topic: str, numbers: Iterable[int], at: int) -> dict[int, int]:
    found = offsets_at(client, [TopicPartition(topic, number) for number in numbers], at)
    return {tp.partition: offset for tp, offset in found.items()}


def _decision(generation: Incarnation, kind: DecisionKind, partition: int, span: Span, *, subject: str = "") -> Decision:
    at = int(time.time() * 1000)
    return Decision(generation.topic, partition, generation.incarnation, kind, span[0], span[1], subject, operator(), at)
