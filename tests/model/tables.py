"""Delta logs in memory: numbered transactions land once, readers see whole commits. The Parquet files are real."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deltalake.transaction import AddAction

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.tables.delta import DeltaLog
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import TableSpec


@dataclass(slots=True)
class Table:
    """What the log of one table holds."""

    files: dict[str, LiveFile] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    version: int = 0


class ModelLog(DeltaLog):
    """Stands in for ``DeltaLog``; all handles on one table share it."""

    tables: dict[str, Table] = {}

    def __init__(self, store: LaneStore, spec: TableSpec, *, durable: bool = True) -> None:
        self.store, self.spec = store, spec
        self.uri = store.table(spec.name)
        self.lock = threading.RLock()

    @property
    def _state(self) -> Table:
        return self.tables.setdefault(self.uri, Table())

    def ensure(self) -> None:
        Path(self.uri).mkdir(exist_ok=True)
        self.tables.setdefault(self.uri, Table())

    def exists(self) -> bool:
        return Path(self.uri).exists()

    def files(self) -> dict[str, LiveFile]:
        return dict(self._state.files)

    def transaction(self, app_id: str) -> int:
        return self._state.transactions.get(app_id, -1)

    def commit(self, adds: Sequence[AddAction], *, app_id: str = "", version: int = -1) -> bool:
        state = self._state
        if not adds or (app_id and state.transactions.get(app_id, -1) >= version):
            return False
        self._add(adds)
        if app_id:
            state.transactions[app_id] = version
        return True

    def _add(self, adds: Sequence[AddAction]) -> None:
        for add in adds:
            number = int((add.partition_values or {}).get("micro_batch") or 0)
            self._state.files[add.path] = LiveFile(add.path, add.size, add.modification_time, number)
        self._state.version += 1

    def replace(self, removes: Sequence[LiveFile], adds: Sequence[AddAction] = (), *, data_change: bool = True) -> list[LiveFile]:
        chosen = [file for file in removes if file.path in self._state.files]
        if adds and len(chosen) < len(removes):
            return []
        for file in chosen:
            del self._state.files[file.path]
        self._add(adds)
        return chosen
