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
from mirror_pipeline.buffer.tables.latest import LatestTable
from mirror_pipeline.buffer.tables.schema import TOPIC_CHANGES

TOPICS_LANE = "topics"
"""The folder beside the lanes' folders; rounds of one mirror exclude each other by its lock."""
TOPICS_APP_ID = "mirror-topics"
SETTING, ACL = "setting", "acl"


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
        self._table = LatestTable(store, TOPIC_CHANGES, TOPICS_APP_ID, ("kind", "topic", "name"), durable=durable)

    def read(self) -> dict[Made, str]:
        """What the mirror has made and not undone, with its value. Raises BufferUnusable."""
        rows = self._table.rows().to_pylist()
        return {Made(row["kind"], row["topic"], row["name"]): row["value"] for row in rows if not row["removed"]}

    def write(self, made: Mapping[Made, str], removed: Collection[Made] = ()) -> None:
        """Put entries in and take others out, all or none.

        Raises:
            BufferUnusable: the table cannot be written, also when another run has written meanwhile.
        """
        rows = [(*key, value, False) for key, value in made.items()] + [(*key, "", True) for key in removed]
        if not rows:
            return
        kinds, topics, names, values, gone = zip(*rows, strict=True)
        texts = (columns.strings(list(column)) for column in (kinds, topics, names, values))
        self._table.append(len(rows), *texts, pa.array(list(gone), pa.bool_()), columns.times([int(time.time() * 1000)] * len(rows)))

    def maintain(self) -> None:
        """As :meth:`LatestTable.maintain`."""
        self._table.maintain()
