"""The data files of a table on disk: listing, removing, reading columns."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore, sync_path
from mirror_pipeline.buffer.tables.columns import empty
from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.schema import TableSpec
from mirror_pipeline.errors import BufferUnusable

# An object's age is measured by two clocks. A store refuses requests whose clock differs by more (S3: RequestTimeTooSkewed), so files
# there count as younger by so much.
SKEW_SECONDS = 900.0
# Maintenance may join files during a read; twice in a row is rare, more often is an error.
READ_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A data file in the table's folder; ``modified`` in seconds since the epoch."""

    path: str
    size: int
    modified: float


def removable_files(
    found: Iterable[FoundFile],
    live: Iterable[str],
    *,
    now: Callable[[], float],
    orphan_age: float,
    evicted: Mapping[str, float] | None = None,
    grace: float = 0.0,
) -> list[FoundFile]:
    """Files that no reader and no writer needs.

    Args:
        found: what lay in the folder *before* ``live`` was read, else a commit in between would look like an orphan.
        live: paths the newest table version refers to.
        now: seconds since the epoch, by the clock that stamps the files.
        orphan_age: seconds since an unreferenced file was last written; longer than any task takes to write one.
        evicted: files known to have been removed from the table, and for how many seconds; they leave after ``grace`` seconds, which
            gives readers of the version before time to end.
        grace: see ``evicted``.
    """
    alive = set(live)
    known = evicted or {}
    dead = [file for file in found if file.path not in alive]
    before = now() - orphan_age if any(file.path not in known for file in dead) else 0.0
    return [file for file in dead if (known[file.path] >= grace if file.path in known else file.modified <= before)]


def found_files(store: LaneStore, table: str) -> list[FoundFile]:
    """Every Parquet file directly in the table's folder, referenced or not."""
    if not store.local:
        with explained(store.table(table)):
            listed = store.objects().listed(table)
        return [FoundFile(f.name, f.size, f.modified + SKEW_SECONDS) for f in listed if f.name.endswith(".parquet") and "/" not in f.name]
    files = []
    with explained(store.table(table)), contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(store.table(table)):
            with contextlib.suppress(FileNotFoundError):
                if entry.name.endswith(".parquet"):
                    status = entry.stat()
                    files.append(FoundFile(entry.name, status.st_size, status.st_mtime))
    return files


def remove_files(store: LaneStore, table: str, files: Iterable[FoundFile]) -> int:
    """Remove data files; returns the bytes freed. A missing file is no error."""
    filesystem, base = store.filesystem()
    freed = 0
    with explained(store.table(table)):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                filesystem.delete_file(f"{base}/{table}/{file.path}")
                freed += file.size
    return freed


def statistics(spec: TableSpec, rows: int, lowest: Iterable[dict[str, Any]], highest: Iterable[dict[str, Any]]) -> dict[str, object]:
    """Delta statistics of a file from records that contain each column's least and greatest value."""
    low, high = list(lowest), list(highest)
    return {
        "numRecords": rows,
        "minValues": {name: min(row[name] for row in low) for name in spec.skipping},
        "maxValues": {name: max(row[name] for row in high) for name in spec.skipping},
        "nullCount": {name: 0 for name in spec.skipping},
    }


def table_statistics(spec: TableSpec, table: pa.Table) -> dict[str, object]:
    """Delta statistics of a file that holds ``table``."""
    bounds = {name: pc.min_max(table[name]) for name in spec.skipping}
    low = {name: bound["min"].as_py() for name, bound in bounds.items()}
    high = {name: bound["max"].as_py() for name, bound in bounds.items()}
    return statistics(spec, table.num_rows, [low], [high])


def write_rows(log: DeltaLog, table: pa.Table, *, durable: bool = True) -> tuple[str, int, dict[str, object]]:
    """Write small rows as one Parquet file: path, size and statistics for the commit."""
    filesystem, base = log.store.filesystem()
    name = f"part-{int(time.time() * 1000):013d}-{uuid.uuid4().hex}.parquet"
    path = f"{base}/{log.spec.name}/{name}"
    with explained(log.uri):
        with filesystem.open_output_stream(path) as sink:
            pq.write_table(table, sink, compression="zstd", store_schema=False, **_encodings(table.schema))
        if durable and log.store.local:
            sync_path(path)
            sync_path(os.path.dirname(path))
        size: int = filesystem.get_file_info(path).size
    return name, size, table_statistics(log.spec, table)


def append_rows(log: DeltaLog, table: pa.Table, app_id: str = "", version: int = -1, *, durable: bool = True) -> bool:
    """Append rows in one commit; False when the table has this version of the application already. Raises BufferUnusable."""
    path, size, stats = write_rows(log, table, durable=durable)
    return log.commit([add_action(path, size, stats, {})], app_id=app_id, version=version)


def append_revision(log: DeltaLog, table: pa.Table, app_id: str, revision: int, *, durable: bool, what: str, of: str) -> None:
    """Append under a revision that no other commit may use: a run that was suspended in between must not overwrite newer rows.

    Args:
        log: the table.
        table: the rows, which carry the revision.
        app_id: whose revisions are counted.
        revision: the next one.
        durable: bring the commit to the disk before it counts (local paths).
        what: the table, in the error.
        of: what it belongs to, one run at a time.

    Raises:
        BufferUnusable: another run has written it, or the table cannot be written.
    """
    if not append_rows(log, table, app_id, revision, durable=durable):
        hint = f"two runs of one {of}? end one of them"
        raise BufferUnusable(f"{what} {log.uri}: revision {revision} was written by another run", hint=hint)


def append_numbered(log: DeltaLog, app_id: str, table_of: Callable[[int], pa.Table], *, durable: bool = True) -> None:
    """Append rows under the table's next number. Of processes that append at the same time each gets a number of its own: clocks of
    several hosts could not order what they wrote. Raises BufferUnusable."""
    while True:
        number = log.transaction(app_id) + 1
        path, size, stats = write_rows(log, table_of(number), durable=durable)
        if log.commit([add_action(path, size, stats, {})], app_id=app_id, version=number):
            return
        remove_files(log.store, log.spec.name, [FoundFile(path, size, 0.0)])


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Consecutive offsets differ little: with delta encoding a row of the offset map takes 3 bytes instead of 6."""
    numbers = [field.name for field in schema if field.type in (pa.int64(), pa.int32())]
    repeated = [field.name for field in schema if field.type == pa.string()]
    return {"use_dictionary": repeated, "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED")}


class FileTotals:
    """The folded rows of a table, computed once for each of its files: files never change.

    Args:
        log: the table.
        names: columns to read.
        fold: makes one small table of many rows; its result over several such tables is the same as over all rows.
    """

    def __init__(self, log: DeltaLog, names: Sequence[str], fold: Callable[[pa.Table], pa.Table]) -> None:
        self._log = log
        self._names = names
        self._fold = fold
        self._known: dict[str, pa.Table] = {}
        self._lock = threading.Lock()

    def read(self) -> pa.Table:
        """The folded rows of all live files. Raises BufferUnusable."""
        for attempt in range(READ_ATTEMPTS):
            live = list(self._log.files())
            with self._lock:
                known = {path: self._known[path] for path in live if path in self._known}
            try:
                known |= {path: self._fold(read_rows(self._log, self._names, paths=[path])) for path in live if path not in known}
            except BufferUnusable:  # joined and removed during this read: the newest version has the rows
                if attempt == READ_ATTEMPTS - 1 or all(path in self._log.files() for path in live):
                    raise
                continue
            with self._lock:
                self._known = known
            return self._fold(pa.concat_tables(known.values())) if known else empty(self._log.spec.schema).select(list(self._names))
        raise AssertionError


def read_rows(
    log: DeltaLog,
    names: Sequence[str] | None = None,
    *,
    paths: Iterable[str] | None = None,
    keep: Callable[[pa.Table], pa.Table] | None = None,
) -> pa.Table:
    """The live rows of a table, or of some of its files; only the columns named, and what ``keep`` leaves of each file."""
    schema = log.spec.schema if names is None else pa.schema([log.spec.schema.field(name) for name in names])
    filesystem, base = log.store.filesystem()

    def read(path: str) -> pa.Table:
        with filesystem.open_input_file(f"{base}/{log.spec.name}/{path}") as source:
            part = pq.ParquetFile(source).read(columns=schema.names)
        known = set(part.column_names)  # a column that came later is null in older files
        columns = [
            part[field.name].cast(field.type) if field.name in known else pa.nulls(part.num_rows, field.type) for field in schema
        ]
        whole = pa.Table.from_arrays(columns, schema=schema)
        return whole if keep is None else keep(whole).cast(schema)

    with explained(log.uri):
        try:
            tables = [read(path) for path in (log.files() if paths is None else paths)]
        except FileNotFoundError:  # joined and removed during this read: the newest version has the rows
            if paths is not None:
                raise
            tables = [read(path) for path in log.files()]
    return pa.concat_tables(tables) if tables else empty(schema)
