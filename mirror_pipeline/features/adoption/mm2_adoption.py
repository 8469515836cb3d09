"""Adoption of a copy that MirrorMaker 2 has made: its own position must agree with the data, and it must not run any more.

A stopped MirrorMaker has stored the offset of the last record that it has sent. One that was killed has sent more than it stored: the data
decide, and it must never be started again, because it would send those records a second time. A stored position beyond the data means that
the target has lost records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.errors import BrokerError, ProblemFound
from mirror_pipeline.features.adoption.proof import Proof, ProvenPartition
from mirror_pipeline.features.adoption.state_topics import Checkpoints, StoredPositions, checkpoints, stored_positions
from mirror_pipeline.features.adoption.still_running import refuse_members, refuse_moved, refuse_open_transactions
from mirror_pipeline.features.groups.group_offsets import GROUPS_LANE, NO_OFFSET, CarriedOffset, GroupOffsets, GroupPartition, now
from mirror_pipeline.features.groups.group_round import selected
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.groups.group_client import Commits, GroupClient
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.text import SHOWN_NAMES, count


@dataclass(frozen=True, slots=True)
class TakeOver:
    """One adoption from MirrorMaker; ``alias`` is the source cluster's in its property file."""

    flow: Flow
    alias: str
    positions: StoredPositions

    def check(self, proof: Proof) -> tuple[str, ...]:
        """Compare the positions with what the data prove; returns notes.

        Raises:
            ProblemFound: MirrorMaker runs, or the target lacks records that it has copied.
            ClusterUnreachable: the target does not answer.
        """
        parts = [TopicPartition(proof.target_topic, part.number) for part in proof.partitions if part.target_log[1]]
        with closing(self.flow.target_client()) as client:
            refuse_members(client, self.alias)
            refuse_moved(client, self.positions)
            refuse_open_transactions(client, parts)
        return agreement(proof.topic, proof.target_topic, proof.partitions, self.positions)

    def keep_groups(self, proof: Proof) -> int:
        """Tell the ledger which group offsets on the target MirrorMaker has written, so that rounds over groups continue from them.

        A round leaves such an offset where it is further than the source's, and moves it on otherwise. Any other offset was committed by
        an application on the target and is never overwritten. Returns the number of offsets.
        """
        selection = self.flow.settings.groups
        if selection is None:
            return 0
        with closing(self.flow.source_client()) as ours, closing(self.flow.target_client()) as theirs:
            groups = GroupClient(theirs)
            names = sorted(selected(groups.listed(), selection))
            held, source = groups.committed(names), GroupClient(ours).committed(names)
            rows = list(written(held, source, checkpoints(theirs, self.alias), proof, now()))
        store = open_lane(self.flow.config.buffer, self.flow.name, GROUPS_LANE)
        with lane_lock(store):
            table = GroupOffsets(store, durable=self.flow.config.buffer.durable)
            known = table.read()
            table.add([row for row in rows if row.key not in known])
        return len(rows)


def begin(flow: Flow, alias: str) -> TakeOver:
    """Read MirrorMaker's positions.

    Raises:
        ProblemFound: it runs.
        UsageError: it never copied from a cluster of that alias.
        ClusterUnreachable: the target does not answer.
    """
    with closing(flow.target_client()) as client:
        refuse_members(client, alias)
        return TakeOver(flow, alias, stored_positions(client, alias))


def positions(flow: Flow, alias: str) -> StoredPositions:
    """MirrorMaker's positions, whether it runs or not."""
    with closing(flow.target_client()) as client:
        return stored_positions(client, alias)


def agreement(topic: str, target_topic: str, partitions: Iterable[ProvenPartition], stored: StoredPositions) -> tuple[str, ...]:
    """Notes on partitions where MirrorMaker has sent more than it stored. Raises ProblemFound where it has stored more than was found."""
    beyond, behind = [], []
    for part in partitions:
        said = stored.next_offsets.get(TopicPartition(topic, part.number))
        last = _last_copied(part)
        if said is not None and said > part.source_next:
            beyond.append(f"{topic}[{part.number}] offset {count(said - 1)}, the copy ends before offset {count(part.source_next)}")
        elif last is not None and (said is None or said <= last):
            text = "no position" if said is None else f"offset {count(said - 1)}"
            behind.append(f"{target_topic}[{part.number}]: MirrorMaker stored {text} and has sent records up to {count(last)}")
    if beyond:
        rest = f"; and {len(beyond) - SHOWN_NAMES} more" if len(beyond) > SHOWN_NAMES else ""
        raise ProblemFound(
            f"MirrorMaker has stored positions beyond what {target_topic} holds: {'; '.join(beyond[:SHOWN_NAMES])}{rest}",
            hint="the target has lost records; `mirror adopt` without --from-mm2 adopts what is there and copies them again",
        )
    if behind:
        behind.append("MirrorMaker was killed: never start it again, it would send these records a second time")
    return tuple(behind)


def _last_copied(part: ProvenPartition) -> int | None:
    """The greatest source offset that is on the target; None where there is none."""
    if part.pair is None:
        return None
    runs = part.pair.runs.between(part.start, part.source_next)
    return max((source + length - 1 for source, _, length in runs), default=None)


def written(
    held: Mapping[str, Commits | BrokerError], source: Mapping[str, Commits | BrokerError], known: Checkpoints, proof: Proof, moment: int
) -> Iterator[CarriedOffset]:
    """Rows of the ledger for offsets on the target that MirrorMaker has written, by its checkpoints. Raises BrokerError.

    A group that went back on the source since then counts as seen there: MirrorMaker's offset is further and is kept.
    """
    commits_there = _answers(source)
    for group, commits in _answers(held).items():
        there = commits_there.get(group, {})
        for tp, commit in commits.items():
            same = [point for point in known.get((group, tp), []) if point.target_offset == commit.offset]
            if tp.topic != proof.target_topic or not same:
                continue
            now_there = there.get(TopicPartition(proof.topic, tp.partition))
            then = same[-1].source_offset
            seen = then if now_there is None else min(then, now_there.offset)
            carried = GroupPartition(group, proof.topic, tp.partition)
            yield CarriedOffset(carried, seen, commit.metadata, commit.offset, NO_OFFSET, False, moment)


def _answers(answers: Mapping[str, Commits | BrokerError]) -> dict[str, Commits]:
    """The answers for all groups. Raises the first error among them."""
    found: dict[str, Commits] = {}
    for group, answer in answers.items():
        if isinstance(answer, BrokerError):
            raise answer
        found[group] = answer
    return found
