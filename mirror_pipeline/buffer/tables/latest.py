"""A small table of one mirror with one writer at a time: rows come with a revision, and the latest of a key counts."""

from __future__ import annotations

import pyarrow as pa

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables import columns
from mirror_pipeline.buffer.tables.delta import DeltaLog
from mirror_pipeline.buffer.tables.files import append_revision, read_rows
from mirror_pipeline.buffer.tables.schema import TableSpec
from mirror_pipeline.buffer.tables.upkeep import READER_GRACE, maintain_log

MAX_LATEST_FILES = 64


class LatestTable:
    """One such table; its first columns are mirror, lane and revision.

    Args:
        store: the folder, whose lock the writer holds.
        spec: the table.
        app_id: of its transactions in its Delta log, which count the revisions.
        keys: columns that name an entry; none for a table that keeps every row.
        durable: bring commits to the disk before they count (local paths).
    """

    def __init__(self, store: LaneStore, spec: TableSpec, app_id: str, keys: tuple[str, ...] = (), *, durable: bool = True) -> None:
        self._store, self._spec, self._app_id, self._keys, self._durable = store, spec, app_id, keys, durable
        self._log = DeltaLog(store, spec, durable=durable)

    def rows(self) -> pa.Table:
        """The latest row of each entry; every row, by revision, if the table has no keys. Raises BufferUnusable."""
        return self._latest(read_rows(self._log)) if self._log.exists() else columns.empty(self._spec.schema)

    def append(self, count: int, *rest: pa.Array) -> None:
        """Write this many rows, all or none; ``rest`` are the columns after the first three.

        Raises:
            BufferUnusable: the table cannot be written, also when another run has written meanwhile.
        """
        self._log.ensure()
        revision = max(self._log.transaction(self._app_id), -1) + 1
        first = [columns.strings([self._store.mirror] * count), columns.strings([self._store.lane] * count)]
        table = pa.Table.from_arrays([*first, columns.int64s([revision] * count), *rest], schema=self._spec.schema)
        what = self._spec.name.replace("_", " ")
        append_revision(self._log, table, self._app_id, revision, durable=self._durable, what=what, of="mirror")

    def maintain(self) -> None:
        """Keep the number of files and rows bounded; costs nothing when there is nothing to do. Raises BufferUnusable."""
        if self._log.exists():
            maintain_log(self._log, max_files=MAX_LATEST_FILES, orphan_age=READER_GRACE, durable=self._durable, shrink=self._latest)

    def _latest(self, table: pa.Table) -> pa.Table:
        if not self._keys:
            return table.sort_by([("revision", "ascending")])
        if not table.num_rows:
            return table
        rows = table.append_column("row", columns.int64s(range(table.num_rows))).sort_by([("revision", "ascending")])
        last = rows.group_by(list(self._keys), use_threads=False).aggregate([("row", "last")])
        return table.take(last["row_last"])
