"""Upkeep of the small ledger tables: thousands of commits a day, a bounded number of files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.files import FoundFile, found_files, read_rows, removable_files, remove_files, write_rows

# Bytes: larger files are not rewritten, so that a row is rewritten only a few times. About 700,000 rows of the offset map of a
# transactional topic; they are in memory while they are joined.
SMALL = 2 * 2**20

# Seconds that files stay after they left a table, for queries that still read them.
READER_GRACE = 600.0
# Seconds: a younger file may belong to a commit in progress.
MIN_AGE = 60.0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What one round did."""

    joined: int = 0
    removed: int = 0
    freed: int = 0

    def __add__(self, other: Upkeep) -> Upkeep:
        return Upkeep(self.joined + other.joined, self.removed + other.removed, self.freed + other.freed)


Shrink = Callable[[pa.Table], pa.Table]
"""Returns fewer rows with the same meaning."""


def join_small_files(log: DeltaLog, *, max_files: int, durable: bool = True, shrink: Shrink | None = None) -> int:
    """Rewrite the small files of a table as one, in one transaction; how many were joined.

    What the rows say does not change (``data_change`` is False). A commit meanwhile is no conflict; when a file was removed meanwhile
    nothing is written.
    """
    small = [file for file in log.files().values() if file.size < SMALL]
    if len(small) <= max_files:
        return 0
    table = read_rows(log, paths=[file.path for file in small])
    order = [name for name in ("revision", "topic", "partition", "source_start", "start_offset") if name in table.column_names]
    table = table.sort_by([(name, "ascending") for name in order])
    path, size, stats = write_rows(log, shrink(table) if shrink else table, durable=durable)
    removed = log.replace(small, [add_action(path, size, stats, {}, new=False)], data_change=False)
    if not removed:
        remove_files(log.store, log.spec.name, [FoundFile(path, size, 0.0)])
    return len(removed)


def remove_dead_files(log: DeltaLog, *, orphan_age: float) -> tuple[int, int]:
    """Remove files that the table does not refer to, older than ``orphan_age`` (at least ``MIN_AGE``) seconds: how many, bytes."""
    found = found_files(log.store, log.spec.name)
    gone = removable_files(found, log.files(), now=log.store.now, orphan_age=max(orphan_age, MIN_AGE))
    return len(gone), remove_files(log.store, log.spec.name, gone)


def maintain_log(log: DeltaLog, *, max_files: int, orphan_age: float, durable: bool = True, shrink: Shrink | None = None) -> Upkeep:
    """One round of upkeep over one table."""
    removed, freed = remove_dead_files(log, orphan_age=orphan_age)
    joined = join_small_files(log, max_files=max_files, durable=durable, shrink=shrink)
    if joined:
        log.checkpoint()
    return Upkeep(joined, removed, freed)
