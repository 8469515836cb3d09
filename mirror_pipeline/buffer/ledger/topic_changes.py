"""What a mirror has made on target topics beside their records, settings and ACLs: one small table of a mirror.

An entry is written down before its change is made and taken out after it is undone, so the table may name more than there is, never less.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

import pyarrow as pa

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables import columns
from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.files import read_rows, write_rows
from mirror_pipeline.buffer.tables.schema import TOPIC_CHANGES
from mirror_pipeline.buffer.tables.upkeep import READER_GRACE, maintain_log
from mirror_pipeline.errors import BufferUnusable

TOPICS_LANE = "topics"
"""The folder beside the lanes' folders; rounds of one mirror exclude each other by its lock."""
TOPICS_APP_ID = "mirror-topics"
SETTING, ACL = "setting", "acl"
MAX_CHANGE_FILES = 64


class Made(NamedTuple):
    """One setting of a target topic, or one ACL. ``name`` is the setting's name, or the ACL's other fields as a JSON list.

    The value of an ACL is the source's ACL that it follows, as a JSON list of all fields.
    """

    kind: str
    topic: str
    name: str


class TopicChanges:
    """The table of one mirror; one writer at a time.

    Args:
        store: the mirror's ``topics`` folder.
        durable: bring commits to the disk before they count (local paths).
    """

    def __init__(self, store: LaneStore, *, durable: bool = True) -> None:
        self._store = store
        self._durable = durable
        self._log = DeltaLog(store, TOPIC_CHANGES, durable=durable)

    def read(self) -> dict[Made, str]:
        """What the mirror has made and not undone, with its value. Raises BufferUnusable."""
        if not self._log.exists():
            return {}
        rows = _latest(read_rows(self._log)).to_pylist()
        return {Made(row["kind"], row["topic"], row["name"]): row["value"] for row in rows if not row["removed"]}

    def write(self, made: Mapping[Made, str], removed: Collection[Made] = ()) -> None:
        """Put entries in and take others out, all or none.

        Raises:
            BufferUnusable: the table cannot be written, also when another run has written meanwhile.
        """
        rows = [(*key, value, False) for key, value in made.items()] + [(*key, "", True) for key in removed]
        if not rows:
            return
        self._log.ensure()
        revision = max(self._log.transaction(TOPICS_APP_ID), -1) + 1
        path, size, stats = write_rows(self._log, _table(self._store, rows, revision), durable=self._durable)
        if not self._log.commit([add_action(path, size, stats, {})], app_id=TOPICS_APP_ID, version=revision):
            hint = "two runs of one mirror? end one of them"
            raise BufferUnusable(f"topic changes {self._log.uri}: revision {revision} was written by another run", hint=hint)

    def maintain(self) -> None:
        """Keep the number of files and rows bounded; costs nothing when there is nothing to do. Raises BufferUnusable."""
        if self._log.exists():
            maintain_log(self._log, max_files=MAX_CHANGE_FILES, orphan_age=READER_GRACE, durable=self._durable, shrink=_latest)


def _table(store: LaneStore, rows: list[tuple[str, str, str, str, bool]], revision: int) -> pa.Table:
    count, now = len(rows), int(time.time() * 1000)
    kinds, topics, names, values, removed = zip(*rows, strict=True)
    arrays = [
        columns.strings([store.mirror] * count),
        columns.strings([store.lane] * count),
        columns.int64s([revision] * count),
        *(columns.strings(list(texts)) for texts in (kinds, topics, names, values)),
        pa.array(list(removed), pa.bool_()),
        columns.times([now] * count),
    ]
    return pa.Table.from_arrays(arrays, schema=TOPIC_CHANGES.schema)


def _latest(table: pa.Table) -> pa.Table:
    """The row with the greatest revision of each entry."""
    if not table.num_rows:
        return table
    rows = table.append_column("row", pa.array(range(table.num_rows))).sort_by([("revision", "ascending")])
    last = rows.group_by(["kind", "topic", "name"], use_threads=False).aggregate([("row", "last")])
    return table.take(last["row_last"])
