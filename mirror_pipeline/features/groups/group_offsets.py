"""What was seen of consumer groups on the source, and what was written for them on the target: one small table of a mirror."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables import columns
from mirror_pipeline.buffer.tables.latest import LatestTable
from mirror_pipeline.buffer.tables.schema import GROUP_OFFSETS

GROUPS_LANE = "groups"
"""The folder beside the lanes' folders; rounds of one mirror exclude each other by its lock."""
GROUPS_APP_ID = "mirror-groups"
NO_OFFSET = -1


class GroupPartition(NamedTuple):
    """A source partition in which a group has committed."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CarriedOffset:
    """The latest commit seen on the source, and what it means on the target; offsets are ``NONE`` where there is none.

    ``target_offset`` is written down before it is committed, together with ``previous_offset``, which the target held then: after a
    crash the target holds one of the two, and anything else was committed there by somebody else. Once the write is known to have
    happened both are the same. ``moved_back`` while the target still has to follow a source commit that went back. ``opened`` is the
    revision of the promotions table at which the topic was opened last: a topic that is opened again since has another one.
    """

    key: GroupPartition
    source_offset: int
    metadata: str
    target_offset: int
    previous_offset: int
    moved_back: bool
    at: int
    opened: int = NO_OFFSET

    def settled(self, *, written: bool) -> CarriedOffset:
        """The row once it is known whether its offset was written: the other one of the two is somebody else's from now on."""
        return replace(self, previous_offset=self.target_offset) if written else replace(self, target_offset=NO_OFFSET)


class GroupOffsets:
    """The table of one mirror; one writer at a time.

    Args:
        store: the mirror's ``groups`` folder; None before the first round, then nothing can be added.
        durable: bring commits to the disk before they count (local paths).
    """

    def __init__(self, store: LaneStore | None, *, durable: bool = True) -> None:
        keys = ("group", "topic", "partition")
        self._table = None if store is None else LatestTable(store, GROUP_OFFSETS, GROUPS_APP_ID, keys, durable=durable)

    def read(self) -> dict[GroupPartition, CarriedOffset]:
        """The latest row of each partition of each group. Raises BufferUnusable."""
        return {} if self._table is None else {row.key: row for row in _rows(self._table.rows())}

    def add(self, carried: Sequence[CarriedOffset]) -> None:
        """Write rows down, all or none. Raises BufferUnusable, also when another run has written meanwhile."""
        if not carried:
            return
        assert self._table is not None  # noqa: S101 - nothing is added before the first round
        self._table.append(
            len(carried),
            columns.strings([c.key.group for c in carried]),
            columns.strings([c.key.topic for c in carried]),
            columns.int32s(c.key.partition for c in carried),
            columns.int64s(c.source_offset for c in carried),
            columns.strings([c.metadata for c in carried]),
            columns.int64s(c.target_offset for c in carried),
            columns.int64s(c.previous_offset for c in carried),
            pa.array([c.moved_back for c in carried], pa.bool_()),
            columns.times(c.at for c in carried),
            columns.int64s(c.opened for c in carried),
        )

    def maintain(self) -> None:
        """As :meth:`LatestTable.maintain`."""
        if self._table is not None:
            self._table.maintain()


def _rows(table: pa.Table) -> list[CarriedOffset]:
    at = [value // 1000 for value in table["written_at"].cast(pa.int64()).to_pylist()]
    return [
        CarriedOffset(
            GroupPartition(row["group"], row["topic"], row["partition"]), row["source_offset"], row["metadata"], row["target_offset"],
            row["previous_offset"], row["moved_back"], when, NO_OFFSET if row["opened"] is None else row["opened"],
        )
        for row, when in zip(table.drop_columns(["written_at"]).to_pylist(), at, strict=True)
    ]  # fmt: skip


def now() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)
