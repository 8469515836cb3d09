"""One Delta table of a lane: opening, committing exactly once, checkpoints. The only file that writes a Delta log.

Readers see all files of a committed transaction or none. The durable order is: data file, its folder entry,
commit file, the log's folder entry; checkpoints reach the disk before the log files they replace are removed.

Over 300 lines: every commit path must keep the same durable order and retry rules.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, Transaction

from mirror_pipeline.buffer.place.errors import explain
from mirror_pipeline.buffer.place.place import LaneStore, sync_path
from mirror_pipeline.buffer.tables.schema import TableSpec
from mirror_pipeline.errors import BufferUnusable

# A commit fails only because of another commit: one process runs a lane, a second one may evict. Twenty in a row is a bug.
COMMIT_ATTEMPTS = 20
# Commits between checkpoints: readers replay little, and checkpoints stay rare.
CHECKPOINT_EVERY = 50
# In an object store each refresh reads every commit since the last checkpoint, one request each.
REMOTE_CHECKPOINT_EVERY = 10
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the table's present version."""

    path: str
    size: int
    modified: int
    micro_batch: int = 0


def add_action(
    path: str, size: int, stats: Mapping[str, object], partition: Mapping[str, str], *, new: bool = True, modified: int | None = None
) -> AddAction:
    """A file to be added; ``new`` is False when it only holds rows of files removed in the same commit, ``modified`` their time."""
    return AddAction(path, size, dict(partition), modified or int(time.time() * 1000), new, json.dumps(stats))


class DeltaLog:
    """A handle on one table that is kept up to date incrementally; safe to use from several threads."""

    def __init__(self, store: LaneStore, spec: TableSpec, *, durable: bool = True) -> None:
        self.store = store
        self.spec = spec
        self.uri = store.table(spec.name)
        self.lock = threading.RLock()
        self._durable = durable and store.local
        self._schema = Schema.from_arrow(spec.schema)
        self._table: DeltaTable | None = None
        self._every = CHECKPOINT_EVERY if store.local else REMOTE_CHECKPOINT_EVERY
        self._checkpointed = -1
        self._steps = 0

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except TableNotFoundError as error:
            raise BufferUnusable(f"buffer {self.uri}: no such table", hint="run the mirror once, or call ensure()") from error
        except (DeltaError, OSError) as error:
            raise explain(self.uri, error) from error

    def ensure(self) -> None:
        """Create the table if it does not exist."""
        with self.lock, self._explained():
            if not self.exists():
                if self.store.local:
                    Path(self.uri).mkdir(mode=0o700, exist_ok=True)
                with contextlib.suppress(CommitFailedError):  # another process was faster
                    DeltaTable.create(
                        self.uri,
                        self._schema,
                        mode="ignore",
                        partition_by=list(self.spec.partition_by),
                        configuration=dict(self.spec.settings),
                        storage_options=self.store.storage_options,
                    )
                self._sync_log(range(1))
            self._widen(self.reopen())

    def _widen(self, table: DeltaTable) -> None:
        """Add the columns that are newer than the table; older rows have nulls there."""
        known = {field.name for field in table.schema().fields}
        missing = [field for field in self._schema.fields if field.name not in known]
        if missing:
            table.alter.add_columns(missing)
            self.reopen()

    def exists(self) -> bool:
        """Whether the table has been created. Raises BufferUnusable."""
        with self._explained():
            if not self.store.local:  # deltalake would hold the interpreter's lock while it waits: the lease could not be renewed
                return bool(self.store.objects().entries(f"{self.spec.name}/_delta_log")[1])
            return DeltaTable.is_deltatable(self.uri, self.store.storage_options)

    def reopen(self) -> DeltaTable:
        """Read the log from scratch; the only way to know the outcome of a commit that failed."""
        with self.lock, self._explained():
            self._table = DeltaTable(self.uri, storage_options=self.store.storage_options)
            if self._checkpointed < 0:
                self._checkpointed = self._table.version()
            self._steps = 0
            return self._table

    def table(self) -> DeltaTable:
        """The handle, as of its last refresh."""
        return self._table or self.reopen()

    def refresh(self) -> DeltaTable:
        """The handle, advanced to the newest version."""
        with self.lock:
            if self._table is None:
                return self.reopen()
            self._steps += 1
            if self._steps > 2 * self._every:
                return self.reopen()
            try:
                self._table.update_incremental()
            except (DeltaError, OSError):  # versions in between may have been cleaned up
                return self.reopen()
            return self._table

    def files(self) -> dict[str, LiveFile]:
        """The live files of the newest version by path."""
        table = self.refresh()
        actions = pa.table(table.get_add_actions(flatten=True))
        names = ["path", "size_bytes", "modification_time"]
        if "micro_batch" in self.spec.partition_by:
            names.append("partition.micro_batch")
        return {row[0]: LiveFile(*row) for row in zip(*(actions[name].to_pylist() for name in names), strict=True)}

    def transaction(self, app_id: str) -> int:
        """The version last committed under ``app_id``, -1 when there is none. Raises BufferUnusable."""
        return self._number(self.refresh(), app_id)

    def _number(self, table: DeltaTable, app_id: str) -> int:
        with self._explained():  # not cached in the handle: each call reads the log
            version = table.transaction_version(app_id)
        return -1 if version is None else version

    def commit(self, adds: Sequence[AddAction], *, app_id: str = "", version: int = -1) -> bool:
        """Add files in one transaction, once.

        Args:
            adds: complete files below the table's folder, with names that were never used before.
            app_id: application whose transactions are numbered; empty for an unnumbered one.
            version: number of this transaction; must grow.

        Returns:
            True when these files are in the table, False when ``version`` was committed before, by anyone, with others.

        Raises:
            BufferUnusable: the commit cannot be written (``retryable`` when the disk is full).
        """
        transactions = [Transaction(app_id, version)] if app_id else None

        def landed(table: DeltaTable) -> bool:
            return bool(app_id) and self._number(table, app_id) >= version

        return self._commit(lambda: [*adds], transactions, landed, {add.path for add in adds})

    def fence(self, app_id: str, number: int) -> None:
        """Commit an empty transaction under this number or a later one, so that a late commit under the same number is refused.

        Raises:
            BufferUnusable: the commit cannot be written.
        """
        last: Exception | None = None
        with self.lock:
            for _ in range(COMMIT_ATTEMPTS):
                number = max(number, self.transaction(app_id) + 1)
                try:
                    self._write(self.table(), [], [Transaction(app_id, number)])
                except (DeltaError, OSError) as error:
                    last = error
                    if explain(self.uri, error).retryable:
                        break
                    self.reopen()
                    continue
                self.refresh()
                return
        raise explain(self.uri, last or RuntimeError("commit failed")) from last

    def replace(self, removes: Sequence[LiveFile], adds: Sequence[AddAction] = (), *, data_change: bool = True) -> list[LiveFile]:
        """Remove files, and add others that hold the same rows when ``data_change`` is False, in one transaction.

        Returns:
            The files removed, without those that another process removed before. Nothing is written when ``adds``
            are given and one of ``removes`` is gone (the rows in ``adds`` would come back).
        """
        chosen: list[LiveFile] = []

        def actions() -> list[AddAction | RemoveAction]:
            live = self.files()
            chosen[:] = [file for file in removes if file.path in live]
            if adds and len(chosen) < len(removes):
                chosen.clear()
            now = int(time.time() * 1000)
            self._touch(chosen)
            gone = [RemoveAction(f.path, data_change, now, f.size, self.partition_values(f.micro_batch)) for f in chosen]
            return [*gone, *adds] if gone else []

        paths = {file.path for file in removes}

        def landed(table: DeltaTable) -> bool:
            return not paths & set(pa.table(table.get_add_actions())["path"].to_pylist())

        self._commit(actions, None, landed, {add.path for add in adds})
        return chosen

    def _touch(self, files: Sequence[LiveFile]) -> None:
        """Make a removed file's age count from its removal, so that readers of the previous version have time to finish."""
        if self.store.local:
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(f"{self.uri}/{file.path}")

    def partition_values(self, micro_batch: int) -> dict[str, str | None]:
        """The partition values of a file of ``micro_batch``."""
        return {"micro_batch": str(micro_batch)} if "micro_batch" in self.spec.partition_by else {}

    def _commit(
        self,
        actions: Callable[[], list[AddAction | RemoveAction]],
        transactions: list[Transaction] | None,
        landed: Callable[[DeltaTable], bool],
        paths: set[str],
    ) -> bool:
        last: Exception | None = None
        with self.lock:
            for attempt in range(COMMIT_ATTEMPTS):
                table = self.reopen() if attempt else self.table()
                if landed(table) or (attempt and self._holds(table, paths)):
                    return bool(attempt) and self._holds(table, paths)
                todo = actions()
                if not todo:
                    return False
                before = table.version()
                try:
                    self._write(table, todo, transactions)
                except (DeltaError, OSError) as error:
                    last = error
                    if explain(self.uri, error).retryable:
                        if self._there_after_all(paths):
                            return True
                        break
                    continue
                after = self.refresh().version()
                self._sync_log(range(before + 1, after + 1))
                self._checkpoint_when_due(after)
                return True
        raise explain(self.uri, last or RuntimeError("commit failed")) from last

    def _there_after_all(self, paths: set[str]) -> bool:
        """A commit that failed for lack of space may have been written completely, with only the flush failing."""
        try:
            return self._holds(self.reopen(), paths)
        except BufferUnusable:
            return False

    @staticmethod
    def _holds(table: DeltaTable, paths: set[str]) -> bool:
        return bool(paths) and paths <= set(pa.table(table.get_add_actions())["path"].to_pylist())

    def _write(self, table: DeltaTable, actions: list[AddAction | RemoveAction], transactions: list[Transaction] | None) -> None:
        table.create_write_transaction(
            actions,
            "append",
            self._schema,
            list(self.spec.partition_by),
            commit_properties=CommitProperties(app_transactions=transactions),
            post_commithook_properties=_NO_HOOKS,
        )

    def _sync_log(self, versions: range) -> None:
        if self._durable:
            for version in versions:
                with contextlib.suppress(FileNotFoundError):
                    sync_path(f"{self.uri}/_delta_log/{version:020d}.json")
            sync_path(f"{self.uri}/_delta_log")

    def _checkpoint_when_due(self, version: int) -> None:
        if version - self._checkpointed >= self._every:
            with contextlib.suppress(BufferUnusable):  # the commit itself has succeeded; the next one tries again
                self.checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, then remove the log files that are older than the retention."""
        with self.lock, self._explained():
            table = self.refresh()
            table.create_checkpoint()
            version = table.version()
            if self._durable:
                folder = Path(self.uri, "_delta_log")
                for path in (*folder.glob(f"{version:020d}.checkpoint*"), folder / "_last_checkpoint", folder):
                    sync_path(path)
            self._checkpointed = version
            table.cleanup_metadata()
            # A handle gets slower with every step it is advanced (measured: 20 ms a commit after 100, 250 ms after 1000).
            self.reopen()
