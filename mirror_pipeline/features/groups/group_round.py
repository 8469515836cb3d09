"""One round over all consumer groups of a mirror: read both sides, translate, write what may be written.

A round may end at any point. The ledger names what is about to be written before it is, so the next round knows its own offsets.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.promotions import latest_of, promoted_topics
from mirror_pipeline.buffer.ledger.translation import PartitionMap
from mirror_pipeline.config import GroupSelection
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.topics.waits import patience
from mirror_pipeline.errors import BrokerError, ClusterUnreachable
from mirror_pipeline.features.groups.decide import GroupDecision, GroupState, Sides, decide, seen_only
from mirror_pipeline.features.groups.group_offsets import NO_OFFSET, CarriedOffset, GroupOffsets, GroupPartition, now
from mirror_pipeline.features.groups.maps import MirrorMaps
from mirror_pipeline.features.groups.seen_groups import SeenGroups
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.groups.group_client import UNKNOWN_MEMBER_ID, Commit, Commits, GroupClient, ListedGroup
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.model import TopicPartition

log = logging.getLogger(__name__)

# Of a Connect group and of a consumer group without members.
IDLE_STATES = ("", "empty", "dead")
# Nothing changes until the source's commit, its translation, or the target does.
SETTLED = (GroupState.IN_STEP, GroupState.MOVED, GroupState.BOTH, GroupState.AHEAD)
# Every this many rounds the target is asked about all groups, also those of which nothing is new: brokers delete old offsets.
WHOLE_EVERY = 60


@dataclass(frozen=True, slots=True)
class Seen:
    """A selected group on the source."""

    group: ListedGroup
    commits: Commits


@dataclass(slots=True)
class RoundOutcome:
    """What a round found: a decision for each group and partition that was looked at, and groups that cannot be carried.

    ``source_down`` says why the source did not answer: the commits are those that were seen there last.
    """

    decisions: dict[GroupPartition, tuple[Sides, GroupDecision]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    groups: int = 0
    written: int = 0
    source_down: str = ""


def selected(groups: Mapping[str, ListedGroup], selection: GroupSelection) -> dict[str, ListedGroup]:
    """The groups that the mirror carries over, or would if it could."""
    out = set(matching(groups, selection.exclude))
    return {name: groups[name] for name in matching(groups, selection.include) if name not in out}


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that one of the regexes matches as a whole."""
    compiled = [re.compile(pattern) for pattern in patterns]
    return [name for name in names if any(pattern.fullmatch(name) for pattern in compiled)]


def unmatched(groups: Collection[str], selection: GroupSelection, alias: str) -> list[str]:
    """A sentence for each regex that matches no group of the source."""
    return [
        f"groups.include: {pattern!r} matches none of the {len(groups)} groups of cluster {alias}"
        for pattern in selection.include
        if not matching(groups, [pattern])
    ]


def why_left_out(group: ListedGroup) -> str:
    """Why a group cannot be carried over; "" if it can."""
    if group.kind == "share":
        return "share group: brokers keep a state of each record for it, which cannot be written on another cluster"
    return ""


@dataclass(slots=True)
class GroupRounds:
    """Rounds of one mirror; what the last one knew makes the next one short."""

    flow: Flow
    table: GroupOffsets
    source: GroupClient
    target: GroupClient
    selection: GroupSelection
    _maps: MirrorMaps = field(default_factory=MirrorMaps)
    _rows: dict[GroupPartition, CarriedOffset] | None = None
    _settled: dict[GroupPartition, tuple[Commit, int | None]] = field(default_factory=dict)
    _opened: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def remember(self, rows: Mapping[GroupPartition, CarriedOffset]) -> None:
        """Take what the ledger says from the caller."""
        self._rows = dict(rows)

    def run(self, *, write: bool = True, ask_source: bool = True) -> RoundOutcome:
        """One round; without ``write`` nothing changes and every group is looked at.

        While the source does not answer, and without ``ask_source``, the commits that were seen there last are used.

        Raises:
            ClusterUnreachable: the target does not answer, or the source does not and no commit was ever seen there.
            BrokerError: a cluster refuses to list its groups.
            BufferUnusable: a ledger cannot be read or written.
        """
        outcome = RoundOutcome()
        if self._rows is None:
            self._rows = self.table.read()
        seen = self._seen(ask_source, outcome)
        named = {tp.topic for group in seen.values() for tp in group.commits}
        latest = latest_of(self.flow.config.buffer, self.flow.name)
        out = promoted_topics(latest)  # their groups are the applications' own
        self._opened = {topic: max(row.revision for row in rows.values()) for topic, rows in latest.items() if topic not in out}
        maps = self._maps.refresh(self.flow.lane_stores(), named - out)
        if not write or self._count % WHOLE_EVERY == 0:
            self._settled.clear()
        self._count += 1
        open_groups = {name: group for name, group in seen.items() if self._open(name, group, maps)}
        try:
            self._decide(open_groups, maps, outcome)
        except ClusterUnreachable:
            if write:
                self._keep(open_groups, maps)
            raise
        if write:
            self._write(outcome, maps)
        return outcome

    def _seen(self, ask_source: bool, outcome: RoundOutcome) -> dict[str, Seen]:
        if ask_source:
            try:
                return self._selected(self.source, outcome)
            except ClusterUnreachable as silent:
                if not self._rows:
                    raise
                outcome.source_down = silent.message
        return self._selected(SeenGroups(self.target.client, rows=self._rows or {}), outcome)

    def _selected(self, source: GroupClient, outcome: RoundOutcome) -> dict[str, Seen]:
        listed = source.listed()
        chosen = selected(listed, self.selection)
        if source is self.source:
            outcome.notes += unmatched(listed, self.selection, self.flow.settings.source)
        outcome.left_out = {name: why for name, group in chosen.items() if (why := why_left_out(group))}
        seen: dict[str, Seen] = {}
        for name, commits in source.committed(sorted(chosen.keys() - outcome.left_out.keys())).items():
            if isinstance(commits, BrokerError):
                outcome.left_out[name] = commits.message
            else:
                seen[name] = Seen(chosen[name], commits)
        outcome.groups = len(seen)
        return seen

    def _open(self, name: str, group: Seen, maps: Mapping[TopicPartition, PartitionMap]) -> bool:
        """Whether a commit of the group, or its translation, is not what the last round settled."""
        return any(
            self._settled.get(GroupPartition(name, *tp)) != (commit, maps[tp].to_target(commit.offset).offset)
            for tp, commit in group.commits.items()
            if tp in maps
        )

    def _decide(self, seen: Mapping[str, Seen], maps: Mapping[TopicPartition, PartitionMap], outcome: RoundOutcome) -> None:
        if not seen:
            return
        listed = self.target.listed()
        held = self.target.committed(sorted(seen))
        copies = {tp: TopicPartition(maps[tp].target_topic, tp.partition) for group in seen.values() for tp in group.commits if tp in maps}
        bounds = _bounds(self.target.client, set(copies.values()))
        moment = now()
        for name, group in seen.items():
            there = held.get(name)
            if there is None or isinstance(there, BrokerError):
                outcome.left_out[name] = there.message if there is not None else "the target's coordinator does not answer"
                continue
            active = name in listed and listed[name].state.lower() not in IDLE_STATES
            for tp in sorted(group.commits.keys() & copies.keys()):
                key, place = GroupPartition(name, *tp), copies[tp]
                if place not in bounds:
                    continue  # the target topic is gone, or its leader is
                found = maps[tp].to_target(group.commits[tp].offset)
                sides = Sides(group.commits[tp], there.get(place), found, *bounds[place], active)
                known = (self._rows or {}).get(key)
                decision = decide(key, sides, known, moment, opened=self._opened.get(tp.topic, NO_OFFSET))
                outcome.decisions[key] = sides, decision
                if decision.state in SETTLED or found.offset is None:
                    self._settled[key] = sides.source, found.offset

    def _keep(self, seen: Mapping[str, Seen], maps: Mapping[TopicPartition, PartitionMap]) -> None:
        """Note commits of the source while the target does not answer: the source may be gone when it does."""
        assert self._rows is not None  # noqa: S101 - read before
        pairs = ((GroupPartition(name, *tp), commit) for name, group in seen.items() for tp, commit in group.commits.items() if tp in maps)
        rows = [row for key, commit in pairs if (row := seen_only(key, commit, self._rows.get(key), now())) is not None]
        self.table.add(rows)
        self._rows |= {row.key: row for row in rows}

    def _write(self, outcome: RoundOutcome, maps: Mapping[TopicPartition, PartitionMap]) -> None:
        assert self._rows is not None  # noqa: S101 - read above
        rows = [decision.row for _, decision in outcome.decisions.values() if decision.row is not None]
        self.table.add(rows)
        self._rows |= {row.key: row for row in rows}
        crash_point("groups.named")
        wanted: dict[str, Commits] = {}
        places: dict[tuple[str, TopicPartition], GroupPartition] = {}
        for key, (sides, decision) in outcome.decisions.items():
            if decision.state is GroupState.WRITE and decision.offset is not None:
                place = TopicPartition(maps[TopicPartition(key.topic, key.partition)].target_topic, key.partition)
                wanted.setdefault(key.group, {})[place] = sides.source._replace(offset=decision.offset)
                places[key.group, place] = key
        codes = _codes(self.target.commit(wanted), places) if wanted else {}
        crash_point("groups.written")
        self._settle(codes)
        outcome.written += sum(not code for code in codes.values())
        for group, code in {key.group: code for key, code in codes.items() if code}.items():
            log.warning("groups mirror=%s group=%s not written: %s", self.flow.name, group, _refused(code))

    def _settle(self, codes: Mapping[GroupPartition, int]) -> None:
        """Note what is known to be written, or not: an older offset that appears there later is the group's own commit."""
        assert self._rows is not None  # noqa: S101 - its rows are named there
        known = {key: self._rows[key].settled(written=not code) for key, code in codes.items() if code in (0, UNKNOWN_MEMBER_ID)}
        self.table.add(list(known.values()))
        self._rows |= known


def _codes(
    answers: Mapping[str, BrokerError | Mapping[TopicPartition, int]], places: Mapping[tuple[str, TopicPartition], GroupPartition]
) -> dict[GroupPartition, int]:
    """The coordinators' answers, by what was to be written; 0 for what was."""
    found = {}
    for (group, place), key in places.items():
        answer = answers.get(group)
        if isinstance(answer, BrokerError):
            found[key] = answer.code
        elif answer is not None and place in answer:
            found[key] = answer[place]
    return found


def _refused(code: int) -> str:
    return "it has members on the target" if code == UNKNOWN_MEMBER_ID else f"error {code}"


def _bounds(client: WireClient, places: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """First offset and end of target partitions. Leaders are asked once: where one does not answer, the next round asks again."""
    within = patience(client)
    starts = offsets_or_errors(client, places, EARLIEST_TIME, within=within)
    ends = offsets_or_errors(client, places, LATEST_TIME, isolation=0, within=within)
    found = {}
    for place in places:
        start, end = starts[place], ends[place]
        if not isinstance(start, BrokerError) and not isinstance(end, BrokerError):
            found[place] = start, end
    return found
