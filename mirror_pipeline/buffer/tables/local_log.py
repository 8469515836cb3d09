"""The Delta log of a table on a local path, read and continued entry by entry.

deltalake looks through the log's folder for each commit, each question for a transaction and each refresh. A lane commits many times
a second, so here a commit costs one small file, and a refresh one attempt to open the next.

The protocol of concurrent writers is Delta's. Entry N + 1 is written only by a writer that has read all entries up to N, and only
if there is none yet: a hard link never replaces a file. An entry is complete, and on the disk, before it gets its name. Whatever
is unknown here (other features, a changed schema, an entry that cannot be understood) makes deltalake read the log from scratch.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from mirror_pipeline import __version__
from mirror_pipeline.buffer.place.place import sync_path

# Writers of version 2 know of appends, removals, transactions and table settings: all that is written here.
KNOWN_READER, KNOWN_WRITER = 1, 2
LOG_WRITER = f"mirror-pipeline {__version__}"
# An entry under construction; deltalake and Spark skip names of this form, which object_store uses as well.
STAGED_MARK = "#"
STAGED_NUMBERS = 2**31
# Seconds after which an entry under construction was left by a killed process.
STAGED_AGE = 3600.0


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the table's present version; ``values`` are those of the partition columns other than ``micro_batch``."""

    path: str
    size: int
    modified: int
    micro_batch: int = 0
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """A data file to be removed from the table; ``data_change`` is False when its rows stay, in another file."""

    path: str
    data_change: bool
    at: int
    size: int
    partition_values: Mapping[str, str | None]


def other_columns(partition_by: Sequence[str]) -> list[str]:
    """Partition columns without ``micro_batch``."""
    return [name for name in partition_by if name != "micro_batch"]


def add_actions(table: DeltaTable) -> pa.Table:
    """One row for each live file of a handle's version; ``pa.table`` would import pandas to read it."""
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()


def live_files(table: DeltaTable, *, numbered: bool, others: Sequence[str] = ()) -> dict[str, LiveFile]:
    """The live files of a handle's version by path.

    Args:
        table: the handle.
        numbered: whether the table is partitioned by micro-batch.
        others: its other partition columns.
    """
    actions = add_actions(table)
    names = ["path", "size_bytes", "modification_time", *(["partition.micro_batch"] if numbered else [])]
    rows = zip(*(actions[name].to_pylist() for name in names), strict=True)
    if not others:
        return {row[0]: LiveFile(*row) for row in rows}
    values = zip(*(actions[f"partition.{name}"].to_pylist() for name in others), strict=True)
    return {row[0]: LiveFile(row[0], row[1], row[2], 0, each) for row, each in zip(rows, values, strict=True)}


class LocalLog:
    """What a log says, up to ``version``; not safe to use from several threads.

    Args:
        uri: the table's folder.
        partition_by: its partition columns.
        durable: flush each entry to the disk.
    """

    def __init__(self, uri: str, partition_by: Sequence[str], *, durable: bool) -> None:
        self._mode = {"mode": "Append", "partitionBy": json.dumps(partition_by)}
        self._others = other_columns(partition_by)
        self._folder = f"{uri}/_delta_log"
        self._durable = durable
        self.version = -1
        self.live: dict[str, LiveFile] = {}
        self.transactions: dict[str, int] = {}
        self._seen: tuple[int, int, int] | None = None
        self._checkpoint = -1

    @staticmethod
    def can_read(table: DeltaTable) -> bool:
        """Whether the table uses nothing that this class does not know."""
        protocol = table.protocol()
        return protocol.min_reader_version <= KNOWN_READER and protocol.min_writer_version <= KNOWN_WRITER

    def load(self, table: DeltaTable, applications: Collection[str], *, numbered: bool) -> None:
        """Begin at a handle's version."""
        self.live = live_files(table, numbered=numbered, others=self._others)
        self.transactions = {name: -1 if (found := table.transaction_version(name)) is None else found for name in applications}
        self.version = table.version()

    def advance(self) -> bool:
        """Read the entries that others have added; False when only the whole log can tell."""
        while True:
            try:
                entry = Path(self._path(self.version + 1)).read_bytes()
            except FileNotFoundError:
                break
            if not self._apply(entry.splitlines()):
                return False
        return self._last_checkpoint() <= self.version  # entries before a checkpoint may have been cleaned up

    def _path(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

    def _last_checkpoint(self) -> int:
        path = f"{self._folder}/_last_checkpoint"
        try:
            status = os.stat(path)
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._checkpoint, self._seen = int(json.loads(Path(path).read_bytes())["version"]), seen
        except FileNotFoundError:
            return -1
        except (ValueError, KeyError, TypeError):  # only a hint for readers; deltalake decides what a damaged one means
            return self.version + 1
        return self._checkpoint

    def _apply(self, lines: Iterable[bytes | str]) -> bool:
        """Take over one entry; False, with nothing changed, when it is not understood."""
        live, transactions = dict[str, LiveFile | None](), dict[str, int]()
        try:
            for line in lines:
                for kind, body in json.loads(line).items():
                    if kind == "add":
                        file = _file(body, self._others)
                        live[file.path] = file
                    elif kind == "remove":
                        live[unquote(body["path"])] = None
                    elif kind == "txn":
                        transactions[body["appId"]] = int(body["version"])
                    elif kind != "commitInfo":
                        return False
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        for path, added in live.items():
            self.live.pop(path, None)
            if added is not None:
                self.live[path] = added
        self.transactions |= {name: number for name, number in transactions.items() if name in self.transactions}
        self.version += 1
        return True

    def number(self, application: str) -> int:
        """The number last committed, -1 when there is none; of an application that was named to :meth:`load`."""
        return self.transactions[application]

    def append(self, actions: Sequence[AddAction | Removal], transactions: Mapping[str, int]) -> None:
        """Write the entry after ``version``.

        Args:
            actions: files that come and go.
            transactions: number by application.

        Raises:
            FileExistsError: another writer was faster.
            OSError: the entry cannot be written, or its name may not be on the disk yet.
        """
        facts = {"timestamp": _now(), "operation": "WRITE", "operationParameters": self._mode, "engineInfo": LOG_WRITER}
        bodies: list[dict[str, Any]] = [{"commitInfo": facts}, *map(_action, actions)]
        bodies += [{"txn": {"appId": name, "version": number}} for name, number in transactions.items()]
        lines = [json.dumps(body, separators=(",", ":")) for body in bodies]
        path = self._path(self.version + 1)
        staged = f"{path}{STAGED_MARK}{random.randrange(STAGED_NUMBERS)}"  # noqa: S311 - a name, not a secret
        try:
            self._write(staged, "\n".join(lines).encode())
            os.link(staged, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged)
        self._apply(lines)
        if self._durable:
            sync_path(self._folder)

    def _write(self, path: str, body: bytes) -> None:
        with open(path, "xb", buffering=0) as sink:
            left = memoryview(body)
            while left:
                left = left[sink.write(left) :]
            if self._durable:
                os.fsync(sink.fileno())


def sweep(uri: str, now: Callable[[], float]) -> None:
    """Remove the entries that killed processes left unfinished in a table's log; ``now`` is the clock that stamps its files."""
    with os.scandir(f"{uri}/_delta_log") as entries:
        for entry in entries:
            if STAGED_MARK in entry.name:
                with contextlib.suppress(FileNotFoundError):
                    if now() - entry.stat().st_mtime > STAGED_AGE:
                        os.unlink(entry.path)


def _now() -> int:
    return int(time.time() * 1000)


def _file(body: Mapping[str, Any], others: Sequence[str]) -> LiveFile:
    if body.get("deletionVector"):
        raise ValueError("deletion vector")
    number = body["partitionValues"].get("micro_batch")
    values = tuple(body["partitionValues"][name] for name in others)
    return LiveFile(unquote(body["path"]), int(body["size"]), int(body["modificationTime"]), int(number or 0), values)


def _action(action: AddAction | Removal) -> dict[str, Any]:
    shared = {"path": quote(action.path), "partitionValues": dict(action.partition_values), "size": action.size}
    if isinstance(action, Removal):
        return {"remove": {**shared, "dataChange": action.data_change, "deletionTimestamp": action.at, "extendedFileMetadata": True}}
    times = {"modificationTime": action.modification_time, "dataChange": action.data_change, "stats": action.stats}
    return {"add": {**shared, **times}}
