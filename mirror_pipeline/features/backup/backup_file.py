"""``mirror backup``: the ledger of a mirror, with its groups, decisions and promotions, in one file; while lanes run.

The tables are read one after the other, and each is a consistent version. A table that refers to another one is read before it: sends
before the gaps, the generations and the producer ids, because a run writes these first. So everything that a row of the backup refers
to is in the backup as well; what is missing are the newest rows alone.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pipeline.buffer.ledger.decisions import DECISIONS_APP_ID
from mirror_pipeline.buffer.ledger.ledger import LEDGER_APP_ID
from mirror_pipeline.buffer.ledger.promotions import FAILOVER_APP_ID
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes, format_of
from mirror_pipeline.buffer.tables import schema
from mirror_pipeline.buffer.tables.delta import DeltaLog
from mirror_pipeline.buffer.tables.files import read_rows
from mirror_pipeline.engine.driver.topics.first_seen import STARTS
from mirror_pipeline.errors import UsageError
from mirror_pipeline.features.groups.group_offsets import GROUPS_APP_ID
from mirror_pipeline.features.topic_sync.topic_changes import TOPICS_APP_ID
from mirror_pipeline.files import replace_file
from mirror_pipeline.flow import Flow

BACKUP_FORMAT = 1
CONTENTS = "backup.json"
# In the order in which they are read; written back in the opposite one.
BACKED_UP = (
    (schema.VERIFICATIONS, LEDGER_APP_ID),
    (schema.GROUP_OFFSETS, GROUPS_APP_ID),
    (schema.TOPIC_CHANGES, TOPICS_APP_ID),
    (schema.FAILOVER_STEPS, FAILOVER_APP_ID),
    (schema.PROMOTIONS, FAILOVER_APP_ID),
    (schema.SENDS, LEDGER_APP_ID),
    (schema.QUARANTINE, ""),
    (schema.GAPS, LEDGER_APP_ID),
    (schema.DECISIONS, DECISIONS_APP_ID),
    (schema.INCARNATIONS, LEDGER_APP_ID),
    (schema.PRODUCERS, LEDGER_APP_ID),
)


@dataclass(frozen=True, slots=True)
class SavedTable:
    """One table of one lane: rows, and the number of its last transaction (-1: none)."""

    lane: str
    table: str
    rows: int
    transaction: int

    @property
    def member(self) -> str:
        """Its name in the file."""
        return f"{self.lane}/{self.table}.parquet"


@dataclass(frozen=True, slots=True)
class BackupContents:
    """What a backup is of; ``taken_at`` in seconds since the epoch, ``starts`` by lane what it knows of topics that have not begun."""

    format: int
    mirror: str
    taken_at: float
    buffer_format: int
    tables: tuple[SavedTable, ...]
    starts: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """The document in the file."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BackupReport:
    """A backup that was written."""

    file: str
    bytes: int
    contents: BackupContents

    def to_json(self) -> dict[str, Any]:
        """The document of ``mirror backup --json``."""
        of = self.contents
        tables = [asdict(each) for each in of.tables]
        return {"file": self.file, "mirror": of.mirror, "taken_at": of.taken_at, "bytes": self.bytes, "tables": tables}


def back_up(flow: Flow, out: Path) -> BackupReport:
    """See ``Mirror.backup``."""
    if out.is_dir():
        out = out / time.strftime(f"mirror-backup-{flow.name}-%Y%m%d-%H%M%S.tar", time.gmtime())
    began, stores = time.time(), find_lanes(flow.config.buffer, flow.name)
    saved: list[SavedTable] = []
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for spec, app_id in BACKED_UP:
            for store in stores:
                log = DeltaLog(store, spec)
                if log.exists():
                    saved.append(_save(archive, store, log, app_id))
        if not any(each.table == schema.INCARNATIONS.name for each in saved):
            raise UsageError(f"mirror {flow.name} has no ledger yet", hint="`mirror run` begins one")
        starts = {store.lane: text.decode() for store in stores if (text := store.read_file(STARTS)) is not None}
        contents = BackupContents(BACKUP_FORMAT, flow.name, began, format_of(stores[0]), tuple(saved), starts)
        _add(archive, CONTENTS, json.dumps(contents.to_json()).encode())
    try:
        replace_file(out, written.getvalue(), durable=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}", hint="name another file") from error
    return BackupReport(str(out), len(written.getvalue()), contents)


def _save(archive: tarfile.TarFile, store: LaneStore, log: DeltaLog, app_id: str) -> SavedTable:
    rows = read_rows(log)
    # Asked after the rows: a greater number than theirs is harmless, a lower one would be used twice.
    saved = SavedTable(store.lane, log.spec.name, rows.num_rows, log.transaction(app_id) if app_id else -1)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    _add(archive, saved.member, sink.getvalue().to_pybytes())
    return saved


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))
