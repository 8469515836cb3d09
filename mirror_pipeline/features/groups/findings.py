"""What ``check`` says of a mirror's consumer groups: which are carried over, which cannot be, and missing rights. Changes no group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mirror_pipeline.config import ClusterSettings, GroupSelection
from mirror_pipeline.errors import BrokerError, MirrorError
from mirror_pipeline.features.groups.group_round import IDLE_STATES, matching, selected, unmatched, why_left_out
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.groups.group_client import GROUP_AUTHORIZATION_FAILED, GroupClient, ListedGroup
from mirror_pipeline.reports import Finding
from mirror_pipeline.text import SHOWN_NAMES, few, plural
from mirror_pipeline.topics import rights

# A group's name that stands for those of a regex of which nothing but `.*` is known.
ANY_GROUP = "mirror-check"


def group_findings(flow: Flow) -> list[Finding]:
    """One finding, or none where the mirror carries no groups."""
    selection = flow.settings.groups
    if selection is None or not selection.include:
        return []
    try:
        with flow.source_client() as source, flow.target_client() as target:
            return [_finding(flow, selection, GroupClient(source), GroupClient(target))]
    except MirrorError as error:
        return [Finding("groups", False, error.message, error.hint)]


def _finding(flow: Flow, selection: GroupSelection, source: GroupClient, target: GroupClient) -> Finding:
    listed = source.listed()
    chosen = selected(listed, selection)
    left_out = {name: why for name, group in chosen.items() if (why := why_left_out(group))}
    probes = {pattern: matching(chosen, [pattern]) or [_probe(pattern)] for pattern in selection.include}
    names = sorted({name for own in probes.values() for name in own})
    hidden = BrokerError(GROUP_AUTHORIZATION_FAILED, "GROUP_AUTHORIZATION_FAILED", "not described")
    here: dict[str, rights.Operations] = dict.fromkeys(source.hidden(names), hidden)
    missing = [
        *_missing(flow.source, probes, here, rights.GROUPS_SOURCE),
        *_missing(flow.target, probes, target.operations(names), rights.GROUPS_TARGET),
    ]
    lines = [
        f"{len(chosen) - len(left_out)} of {plural(len(listed), 'group')} selected",
        *unmatched(listed, selection, flow.settings.source),
        *few([f"{name} is not carried over: {why}" for name, why in sorted(left_out.items())]),
        *_active(flow, chosen, target.listed()),
    ]
    return Finding("groups", not missing, "; ".join([*lines, *missing]))


def _probe(pattern: str) -> str:
    """A name to which the rights apply that the groups of a regex need."""
    name, _ = rights.resource_of(pattern)
    return ANY_GROUP if name == "*" else name


def _missing(
    cluster: ClusterSettings, probes: Mapping[str, Sequence[str]], operations: Mapping[str, rights.Operations], needed: Sequence[str]
) -> Iterator[str]:
    for pattern, names in probes.items():
        lacking = {right for name in names for right in rights.lacking(operations.get(name), needed)}
        if lacking:
            yield rights.groups_sentence(cluster, pattern, sorted(lacking))


def _active(flow: Flow, chosen: Mapping[str, ListedGroup], there: Mapping[str, ListedGroup]) -> list[str]:
    """Groups with members on the target: their offsets are not written."""
    active = sorted(name for name in chosen if name in there and there[name].state.lower() not in IDLE_STATES)
    if not active:
        return []
    more = f" and {len(active) - SHOWN_NAMES} more" if len(active) > SHOWN_NAMES else ""
    said = f"warning: active on {flow.settings.target}: {', '.join(active[:SHOWN_NAMES])}{more}"
    return [f"{said}; offsets are not written there until a group has no members"]

