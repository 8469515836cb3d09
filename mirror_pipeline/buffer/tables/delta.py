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
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from mirror_pipeline.buffer.place.errors import explain
from mirror_pipeline.buffer.place.place import LaneStore, sync_path
from mirror_pipeline.buffer.tables.handle_log import HandleLog
from mirror_pipeline.buffer.tables.local_log import LiveFile, LocalLog, Removal, add_actions, other_columns, sweep
from mirror_pipeline.buffer.tables.schema import TableSpec
from mirror_pipeline.errors import BufferUnusable

# A commit fails only because of another commit: one process runs a lane, a second one may evict. Twenty in a row is a bug.
COMMIT_ATTEMPTS = 20
# Commits between checkpoints: readers replay little, and checkpoints stay rare.
CHECKPOINT_EVERY = 50
# In an object store each refresh reads every commit since the last checkpoint, one request each.
REMOTE_CHECKPOINT_EVERY = 10


def add_action(
    path: str, size: int, stats: Mapping[str, object], partition: Mapping[str, str], *, new: bool = True, modified: int | None = None
) -> AddAction:
    """A file to be added; ``new`` is False when it only holds rows of files removed in the same commit, ``modified`` their time."""
    return AddAction(path, size, dict(partition), modified or int(time.time() * 1000), new, json.dumps(stats))


class DeltaLog:
    """A handle on one table that is kept up to date incrementally; safe to use from several threads.

    On a local path :class:`LocalLog` reads and writes the entries, elsewhere :class:`HandleLog`; deltalake makes the checkpoints.
    """

    def __init__(self, store: LaneStore, spec: TableSpec, *, durable: bool = True) -> None:
        self.store = store
        self.spec = spec
        self.uri = store.table(spec.name)
        self.lock = threading.RLock()
        self._durable = durable and store.local
        self._schema = Schema.from_arrow(spec.schema)
        self._numbered = "micro_batch" in spec.partition_by
        self._every = CHECKPOINT_EVERY if store.local else REMOTE_CHECKPOINT_EVERY
        self._opened: LocalLog | HandleLog | None = None
        self._applications: set[str] = set()
        self._checkpointed = -1
        self._checkpoints = threading.RLock()
        self._background: threading.Thread | None = None

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
                if self._durable:
                    sync_path(f"{self.uri}/_delta_log/{0:020d}.json")
                    sync_path(f"{self.uri}/_delta_log")
            self._widen()

    def _widen(self) -> None:
        """Add the columns that are newer than the table; older rows have nulls there."""
        table = self.reopen()
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
        with self.lock, self._checkpoints, self._explained():  # a checkpoint in progress removes entries that are being read
            table = DeltaTable(self.uri, storage_options=self.store.storage_options)
            if self._checkpointed < 0:
                self._checkpointed = table.version()
            if not isinstance(self._opened, LocalLog if self.store.local and LocalLog.can_read(table) else HandleLog):
                self._opened = self._kind(table)
            self._opened.load(table, self._applications, numbered=self._numbered)
            return table

    def _kind(self, table: DeltaTable) -> LocalLog | HandleLog:
        if self.store.local and LocalLog.can_read(table):
            return LocalLog(self.uri, self.spec.partition_by, durable=self._durable)
        return HandleLog(self.uri, self._schema, self.spec.partition_by, steps=2 * self._every, durable=self._durable)

    @property
    def _log(self) -> LocalLog | HandleLog:
        """The log as of its last refresh."""
        if self._opened is None:
            self.reopen()
        assert self._opened is not None  # noqa: S101 - opened above
        return self._opened

    def _refresh(self) -> None:
        """Advance to the newest version."""
        with self.lock:
            if self._opened is None:
                self.reopen()
                return
            with self._explained():
                known = self._opened.advance()
            if not known:
                self.reopen()

    def files(self) -> dict[str, LiveFile]:
        """The live files of the newest version by path."""
        with self.lock:
            self._refresh()
            return dict(self._log.live)

    def actions(self) -> pa.Table:
        """The live files of the newest version as Delta describes them: path, size, partition values, statistics."""
        return add_actions(self.reopen())

    def transaction(self, app_id: str) -> int:
        """The version last committed under ``app_id``, -1 when there is none. Raises BufferUnusable."""
        with self.lock:
            if app_id in self._applications:
                self._refresh()
            else:
                self._applications.add(app_id)
                self.reopen()
            with self._explained():
                return self._log.number(app_id)

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
        transactions = {app_id: version} if app_id else {}

        def landed() -> bool:
            with self._explained():
                return bool(app_id) and self._log.number(app_id) >= version

        if app_id and app_id not in self._applications:
            self.transaction(app_id)
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
                    self._write([], {app_id: number})
                except (DeltaError, OSError) as error:
                    last = error
                    if explain(self.uri, error).retryable:
                        break
                    self.reopen()
                    continue
                self._refresh()
                return
        raise explain(self.uri, last or RuntimeError("commit failed")) from last

    def replace(self, removes: Sequence[LiveFile], adds: Sequence[AddAction] = (), *, data_change: bool = True) -> list[LiveFile]:
        """Remove files, and add others that hold the same rows when ``data_change`` is False, in one transaction.

        Returns:
            The files removed, without those that another process removed before. Nothing is written when ``adds``
            are given and one of ``removes`` is gone (the rows in ``adds`` would come back).
        """
        chosen: list[LiveFile] = []

        def actions() -> list[AddAction | Removal]:
            live = self._log.live
            chosen[:] = [file for file in removes if file.path in live]
            if adds and len(chosen) < len(removes):
                chosen.clear()
            now = int(time.time() * 1000)
            self._touch(chosen)
            gone = [Removal(f.path, data_change, now, f.size, self.partition_values(f)) for f in chosen]
            return [*gone, *adds] if gone else []

        paths = {file.path for file in removes}

        def landed() -> bool:
            return not paths & self._log.live.keys()

        self._commit(actions, {}, landed, {add.path for add in adds})
        return chosen

    def _touch(self, files: Sequence[LiveFile]) -> None:
        """Make a removed file's age count from its removal, so that readers of the previous version have time to finish."""
        if self.store.local:
            for file in files:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(f"{self.uri}/{file.path}")

    def partition_values(self, file: LiveFile) -> dict[str, str | None]:
        """The partition values of a file."""
        if self._numbered:
            return {"micro_batch": str(file.micro_batch)}
        return dict(zip(other_columns(self.spec.partition_by), file.values, strict=True))

    def _commit(
        self,
        actions: Callable[[], list[AddAction | Removal]],
        transactions: Mapping[str, int],
        landed: Callable[[], bool],
        paths: set[str],
    ) -> bool:
        last: Exception | None = None
        with self.lock:
            for attempt in range(COMMIT_ATTEMPTS):
                self._prepare(last)
                if landed() or (attempt and self._holds(paths)):
                    return bool(attempt) and self._holds(paths)
                todo = actions()
                if not todo:
                    return False
                try:
                    self._write(todo, transactions)
                except (DeltaError, OSError) as error:
                    last = error
                    if explain(self.uri, error).retryable:
                        if self._there_after_all(paths):
                            return True
                        break
                    continue
                self._checkpoint_when_due()
                return True
        raise explain(self.uri, last or RuntimeError("commit failed")) from last

    def _prepare(self, last: Exception | None) -> None:
        """Know the newest version before an attempt to add the next one; ``last`` is the error of the attempt before."""
        if last is None and isinstance(self._opened, HandleLog):
            return  # a request to the store; deltalake finds out itself whether another commit was faster
        if last is None or isinstance(last, FileExistsError):
            self._refresh()
        else:
            self.reopen()

    def _there_after_all(self, paths: set[str]) -> bool:
        """A commit that failed for lack of space may have been written completely, with only the flush failing."""
        try:
            self.reopen()
        except BufferUnusable:
            return False
        return self._holds(paths)

    def _holds(self, paths: set[str]) -> bool:
        return bool(paths) and paths <= self._log.live.keys()

    def _write(self, actions: Sequence[AddAction | Removal], transactions: Mapping[str, int]) -> None:
        """Try once. Raises FileExistsError or DeltaError when another commit was faster."""
        self._log.append(actions, transactions)

    def _checkpoint_when_due(self) -> None:
        if self._log.version - self._checkpointed < self._every:
            return
        if not isinstance(self._opened, LocalLog):
            self._checkpoint_quietly()
        elif self._background is None or not self._background.is_alive():
            # Beside the commits, which would wait for it. Not a daemon, as the thread that commits is: where the process ends, Python cuts
            # off daemons, and a thread in the middle of Rust code then crashes the process.
            self._background = threading.Thread(target=self._checkpoint_quietly, name="checkpoint", daemon=False)
            self._background.start()

    def _checkpoint_quietly(self) -> None:
        with contextlib.suppress(BufferUnusable):  # the commit itself has succeeded; a later one tries again
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, then remove the log files that are older than the retention."""
        with self._checkpoints, self._explained():
            table = DeltaTable(self.uri, storage_options=self.store.storage_options)
            table.create_checkpoint()
            version = table.version()
            if self._durable:
                folder = Path(self.uri, "_delta_log")
                for path in (*folder.glob(f"{version:020d}.checkpoint*"), folder / "_last_checkpoint", folder):
                    sync_path(path)
            self._checkpointed = version
            table.cleanup_metadata()
            if self.store.local:
                sweep(self.uri, self.store.now)
        if not isinstance(self._opened, LocalLog):
            # A handle gets slower with every step it is advanced (measured: 20 ms a commit after 100, 250 ms after 1000).
            self.reopen()
