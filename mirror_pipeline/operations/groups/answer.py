"""``Mirror.groups``: how the groups stand on both sides, as a round would find them; changes nothing."""

from __future__ import annotations

from contextlib import ExitStack

from mirror_pipeline.buffer.ledger.group_offsets import GROUPS_LANE, GroupOffsets, GroupPartition
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.errors import UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.operations.groups.background import one_round, open_rounds
from mirror_pipeline.operations.groups.decide import Decision, GroupState, Sides
from mirror_pipeline.operations.groups.last_round import read_last_round
from mirror_pipeline.reports import CarriedGroup, GroupsReport


def groups(flow: Flow) -> GroupsReport:
    """See ``Mirror.groups``."""
    if flow.settings.groups is None or not flow.settings.groups.include:
        raise UsageError(f"mirror {flow.name} carries no consumer groups", hint="select some with groups: {include: [...]} in mirror.yaml")
    store = next((found for found in find_lanes(flow.config.buffer, flow.name) if found.lane == GROUPS_LANE), None)
    last = None if store is None else read_last_round(store)
    with ExitStack() as stack:
        rounds = open_rounds(flow, stack, store or LaneStore("/nonexistent", flow.name, GROUPS_LANE))
        known = {} if store is None else GroupOffsets(store).read()
        rounds.remember(known)
        outcome = rounds.run(write=False)
    rows = []
    for key, (sides, decision) in sorted(outcome.decisions.items()):
        row = known.get(key)
        written = row.at if row is not None and sides.target is not None and sides.target.offset == row.target_offset else None
        rows.append(_row(flow, key, sides, decision, written))
    rows += [
        CarriedGroup(flow.name, name, "", None, None, None, None, None, GroupState.NOT_CARRIED.value, why)
        for name, why in sorted(outcome.left_out.items())
    ]
    notes = list(outcome.notes)
    if last is None:
        notes.append("no round has run yet: `mirror run` carries the groups over")
    elif last.error:
        notes.append(f"the last round failed: {last.error}")
    return GroupsReport(flow.name, tuple(rows), tuple(notes), None if last is None else last.at)


def carry(flow: Flow) -> GroupsReport:
    """See ``Mirror.carry_groups``."""
    if flow.settings.groups is not None and flow.settings.groups.include:
        one_round(flow)
    return groups(flow)


def _row(flow: Flow, key: GroupPartition, sides: Sides, decision: Decision, written: int | None) -> CarriedGroup:
    held = None if sides.target is None else sides.target.offset
    behind = None
    if decision.offset is not None:
        behind = max(0, decision.offset - (sides.start if held is None else held))
    return CarriedGroup(
        flow.name, key.group, key.topic, key.partition, sides.source.offset, held, behind, written, decision.state.value, decision.why
    )
