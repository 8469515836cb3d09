"""The last round over the groups before a promotion; without the source, by the commits that were seen there last."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import find_lanes, open_lane
from mirror_pipeline.errors import BrokerError, ClusterUnreachable
from mirror_pipeline.features.failover.look import Situation
from mirror_pipeline.features.failover.report import HandedGroup
from mirror_pipeline.features.groups.decide import GroupDecision, GroupState
from mirror_pipeline.features.groups.group_offsets import GROUPS_LANE, GroupOffsets, GroupPartition
from mirror_pipeline.features.groups.group_round import GroupRounds, RoundOutcome
from mirror_pipeline.features.groups.seen_groups import SeenGroups
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.groups.group_client import Commits, GroupClient
from mirror_pipeline.model import TopicPartition

GROUPS_LOCK_SECONDS = 30.0


def carries(flow: Flow) -> bool:
    """Whether the mirror carries groups."""
    return flow.settings.groups is not None and bool(flow.settings.groups.include)


def last_round(situation: Situation) -> RoundOutcome:
    """One round, and what it decided; without the source, by the commits that were seen there last.

    Raises:
        LaneBusy: another run carries the groups and does not end.
        ClusterUnreachable, BrokerError: as a round.
    """
    flow = situation.flow
    if not carries(flow):
        return RoundOutcome()
    assert flow.settings.groups is not None  # noqa: S101 - just looked
    store = open_lane(flow.config.buffer, flow.name, GROUPS_LANE)
    with lane_lock(store, patience=GROUPS_LOCK_SECONDS), ExitStack() as stack:
        table = GroupOffsets(store, durable=flow.config.buffer.durable)
        rows = table.read()
        target = stack.enter_context(flow.target_client())
        seen = SeenGroups(target, rows=rows, ends={tp: at.source_next for tp, at in situation.positions().items()})
        source = GroupClient(stack.enter_context(flow.source_client())) if situation.source_there else seen
        rounds = GroupRounds(flow, table, source, GroupClient(target), flow.settings.groups)
        rounds.remember(rows)
        outcome = rounds.run()
    if outcome.source_down:  # it was there a moment ago: newer commits may be on it
        raise ClusterUnreachable(flow.settings.source, outcome.source_down)
    outcome.notes += seen.further
    return outcome


def handed(flow: Flow, targets: Mapping[str, str], outcome: RoundOutcome | None = None) -> tuple[HandedGroup, ...]:
    """Where the groups continue: what the target has for them now.

    Args:
        flow: the mirror.
        targets: target topic by source topic.
        outcome: the last round; without it the ledger names the groups.
    """
    if not carries(flow):
        return ()
    store = next((found for found in find_lanes(flow.config.buffer, flow.name) if found.lane == GROUPS_LANE), None)
    known = {} if store is None else GroupOffsets(store).read()
    decided = {} if outcome is None else {key: decision for key, (_, decision) in outcome.decisions.items()}
    keys = sorted(key for key in {*known, *decided} if key.topic in targets)
    with flow.target_client() as client:
        held = GroupClient(client).committed(sorted({key.group for key in keys}))
    return tuple(_handed(key, targets[key.topic], held.get(key.group), decided.get(key)) for key in keys)


def _handed(key: GroupPartition, target_topic: str, held: Commits | BrokerError | None, decision: GroupDecision | None) -> HandedGroup:
    if held is None or isinstance(held, BrokerError):
        why = "the target's coordinator does not answer" if held is None else held.message
        return HandedGroup(key.group, target_topic, key.partition, None, why)
    commit = held.get(TopicPartition(target_topic, key.partition))
    settled = decision is None or decision.state in (GroupState.IN_STEP, GroupState.MOVED, GroupState.WRITE)
    why = "" if settled and commit is not None else decision.why if decision is not None else "nothing is committed there"
    return HandedGroup(key.group, target_topic, key.partition, None if commit is None else commit.offset, why)
