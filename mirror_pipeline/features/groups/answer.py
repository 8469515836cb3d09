"""``Mirror.groups``: how the groups stand on both sides, as a round would find them; changes nothing."""

from __future__ import annotations

import time
from contextlib import ExitStack

from mirror_pipeline.buffer.place.place import find_lanes
from mirror_pipeline.errors import UsageError
from mirror_pipeline.features.groups.carrying import one_round, open_rounds
from mirror_pipeline.features.groups.decide import GroupDecision, GroupState, Sides
from mirror_pipeline.features.groups.group_offsets import GROUPS_LANE, GroupPartition
from mirror_pipeline.features.groups.group_round import RoundOutcome
from mirror_pipeline.features.groups.last_round import LastRound, read_last_round
from mirror_pipeline.flow import Flow
from mirror_pipeline.reports import CarriedGroup, GroupsReport
from mirror_pipeline.text import instant


def groups(flow: Flow) -> GroupsReport:
    """See ``Mirror.groups``."""
    if flow.settings.groups is None or not flow.settings.groups.include:
        hint = f"select some in mirror.yaml, below `- name: {flow.name}` and in line with `topics:`: groups: {{include: ['.*']}}"
        raise UsageError(f"mirror {flow.name} carries no consumer groups", hint=hint)
    return _answer(flow, None)


def carry(flow: Flow) -> GroupsReport:
    """See ``Mirror.carry_groups``."""
    if flow.settings.groups is None or not flow.settings.groups.include:
        return groups(flow)
    return _answer(flow, one_round(flow))


def _answer(flow: Flow, just: RoundOutcome | None) -> GroupsReport:
    """Look at both sides. A source that did not answer the round before (``just``) is not asked again."""
    store = next((found for found in find_lanes(flow.config.buffer, flow.name) if found.lane == GROUPS_LANE), None)
    last = None if store is None else read_last_round(store)
    silent = "" if just is None else just.source_down
    with ExitStack() as stack:
        rounds = open_rounds(flow, stack, store)
        known = rounds.table.read()
        rounds.remember(known)
        outcome = rounds.run(write=False, ask_source=not silent)
    rows = []
    for key, (sides, decision) in sorted(outcome.decisions.items()):
        row = known.get(key)
        written = row.at if row is not None and sides.target is not None and sides.target.offset == row.target_offset else None
        rows.append(_row(flow, key, sides, decision, written))
    rows += [
        CarriedGroup(flow.name, name, "", None, None, None, None, None, GroupState.NOT_CARRIED.value, why)
        for name, why in sorted(outcome.left_out.items())
    ]
    since = ((last.source_down_since if last is not None else 0.0) or time.time()) if silent or outcome.source_down else None
    notes = (*outcome.notes, *_about(flow, last, since))
    return GroupsReport(flow.name, tuple(rows), notes, None if last is None else last.at, since)


def _about(flow: Flow, last: LastRound | None, since: float | None) -> list[str]:
    """What concerns all groups."""
    notes = []
    if since is not None:
        when = instant(int(since * 1000))
        notes.append(f"cluster {flow.settings.source} unreachable since {when}: its offsets are those that were seen there last")
    if last is None:
        notes.append("no round has run yet: `mirror run` carries the groups over")
    elif last.error:
        notes.append(f"the last round failed: {last.error}")
    return notes


def _row(flow: Flow, key: GroupPartition, sides: Sides, decision: GroupDecision, written: int | None) -> CarriedGroup:
    held = None if sides.target is None else sides.target.offset
    behind = None
    if decision.offset is not None:
        behind = max(0, decision.offset - (sides.start if held is None else held))
    return CarriedGroup(
        flow.name, key.group, key.topic, key.partition, sides.source.offset, held, behind, written, decision.state.value, decision.why
    )
