"""What was seen of consumer groups on the source, and what was written for them on the target: one small table of a mirror."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables import columns
from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.files import read_rows, write_rows
from mirror_pipeline.buffer.tables.schema import GROUP_OFFSETS
from mirror_pipeline.buffer.tables.upkeep import READER_GRACE, maintain_log
from mirror_pipeline.errors import BufferUnusable

GROUPS_LANE = "groups"
"""The folder beside the lanes' folders; rounds of one mirror exclude each other by its lock."""
GROUPS_APP_ID = "mirror-groups"
NO_OFFSET = -1
MAX_GROUP_FILES = 64


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
        self._store = store
        self._durable = durable
        self._log = None if store is None else DeltaLog(store, GROUP_OFFSETS, durable=durable)

    def read(self) -> dict[GroupPartition, CarriedOffset]:
        """The latest row of each partition of each group. Raises BufferUnusable."""
        if self._log is None or not self._log.exists():
            return {}
        return {row.key: row for row in _rows(_latest(read_rows(self._log)))}

    def add(self, carried: Sequence[CarriedOffset]) -> None:
        """Write rows down, all or none. Raises BufferUnusable, also when another run has written meanwhile."""
        if not carried:
            return
        assert self._log is not None and self._store is not None  # noqa: S101 - nothing is added before the first round
        self._log.ensure()
        revision = max(self._log.transaction(GROUPS_APP_ID), NO_OFFSET) + 1
        path, size, stats = write_rows(self._log, _table(self._store, carried, revision), durable=self._durable)
        if not self._log.commit([add_action(path, size, stats, {})], app_id=GROUPS_APP_ID, version=revision):
            hint = "two runs of one mirror? end one of them"
            raise BufferUnusable(f"group offsets {self._log.uri}: revision {revision} was written by another run", hint=hint)

    def maintain(self) -> None:
        """Keep the number of files and rows bounded; costs nothing when there is nothing to do. Raises BufferUnusable."""
        if self._log is not None and self._log.exists():
            maintain_log(self._log, max_files=MAX_GROUP_FILES, orphan_age=READER_GRACE, durable=self._durable, shrink=_latest)


def _table(store: LaneStore, carried: Sequence[CarriedOffset], revision: int) -> pa.Table:
    count = len(carried)
    arrays = [
        columns.strings([store.mirror] * count),
        columns.strings([store.lane] * count),
        columns.int64s([revision] * count),
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
    ]
    return pa.Table.from_arrays(arrays, schema=GROUP_OFFSETS.schema)


def _latest(table: pa.Table) -> pa.Table:
    """The row with the greatest revision of each partition of each group."""
    if not table.num_rows:
        return table
    keys = ["group", "topic", "partition"]
    rows = table.append_column("row", pa.array(range(table.num_rows))).sort_by([("revision", "ascending")])
    last = rows.group_by(keys, use_threads=False).aggregate([("row", "last")])
    return table.take(last["row_last"])


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
