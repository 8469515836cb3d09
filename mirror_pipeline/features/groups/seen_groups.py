"""The groups of a source that does not answer: by the commits that were seen there last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.features.groups.group_offsets import CarriedOffset, GroupPartition
from mirror_pipeline.kafka.groups.group_client import Commit, Commits, GroupClient, ListedGroup
from mirror_pipeline.model import TopicPartition


@dataclass(slots=True)
class SeenGroups(GroupClient):
    """The groups of a source that does not answer, as the ledger has them.

    ``ends`` are the ends of copies that get no more records from there: a group that has read further than one continues at its end.
    ``further`` names those groups.
    """

    rows: Mapping[GroupPartition, CarriedOffset] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    further: list[str] = field(default_factory=list)

    def listed(self) -> dict[str, ListedGroup]:
        """Every group of which a commit was seen."""
        return {key.group: ListedGroup(key.group, "", "classic") for key in self.rows}

    def committed(self, groups: Sequence[str]) -> dict[str, Commits | BrokerError]:
        """The last commits seen."""
        found: dict[str, Commits] = {name: {} for name in groups}
        for key, row in sorted(self.rows.items()):
            if key.group not in found:
                continue
            tp = TopicPartition(key.topic, key.partition)
            at = min(row.source_offset, self.ends.get(tp, row.source_offset))
            found[key.group][tp] = Commit(at, row.metadata)
            if row.source_offset > at:
                read = f"group {key.group} had read {tp} up to offset {row.source_offset}"
                self.further.append(f"{read}, the copy ends at {at}: it continues at its end")
        return {**found}
