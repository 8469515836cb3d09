"""``mirror restore``: write a backup's tables, then bring the ledger up to the target.

The generations are written last of all that says what a topic's copy is: before them no topic is known, and a run halts each one, because
its target holds records. Before the ledger is caught up a run halts as well (`buffer_gap`): the target has records that it does not know.
"""

from __future__ import annotations

import json
import tarfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import FORMAT, LaneStore, find_lanes, open_lane, raise_format
from mirror_pipeline.buffer.tables.delta import DeltaLog
from mirror_pipeline.buffer.tables.files import append_rows
from mirror_pipeline.buffer.tables.schema import INCARNATIONS, TableSpec
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.topics.first_seen import STARTS
from mirror_pipeline.errors import UsageError
from mirror_pipeline.features.backup.backup_file import BACKED_UP, BACKUP_FORMAT, CONTENTS, BackupContents, SavedTable
from mirror_pipeline.features.backup.catch_up import REFUSED_TOPIC, CaughtUpTopic, catch_up
from mirror_pipeline.flow import Flow, Session

# Written in the order in which a run writes them, but the generations last.
_ORDER = (*(each for each in reversed(BACKED_UP) if each[0] is not INCARNATIONS), *(each for each in BACKED_UP if each[0] is INCARNATIONS))


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """A backup that was restored; ``kept`` names where the ledger of before is now, empty if there was none."""

    mirror: str
    taken_at: float
    kept: str
    topics: tuple[CaughtUpTopic, ...]

    @property
    def ok(self) -> bool:
        """Whether every topic can continue."""
        return all(topic.state != REFUSED_TOPIC for topic in self.topics)

    def to_json(self) -> dict[str, Any]:
        """The document of ``mirror restore --json``."""
        topics = [topic.to_json() for topic in self.topics]
        return {"ok": self.ok, "mirror": self.mirror, "taken_at": self.taken_at, "kept": self.kept, "topics": topics}


def restore(flow: Flow, file: Path, *, replace: bool, session: Session, observer: Any, stop: threading.Event) -> RestoreReport:
    """See ``Mirror.restore``."""
    _refuse_unsafe(flow)
    flow.meet()
    tables, contents = _read(flow, file)
    kept = _make_room(flow, replace=replace)
    _write(flow, tables, contents)
    crash_point("restore.written")
    return RestoreReport(flow.name, contents.taken_at, kept, tuple(catch_up(flow, session, observer, stop)))


def _refuse_unsafe(flow: Flow) -> None:
    if flow.settings.shared:
        hint = "mirror into topics of other names"
        raise UsageError("writers: shared: only the lost rows say which records are this mirror's; nothing is restored", hint=hint)
    if flow.settings.exact:
        hint = "without a ledger `mirror run` continues where both logs agree: move the old one away"
        raise UsageError("offsets: exact needs no backup of the ledger; nothing is restored", hint=hint)


def _read(flow: Flow, file: Path) -> tuple[dict[str, pa.Table], BackupContents]:
    """The whole backup, before anything is written."""
    try:
        with tarfile.open(file) as archive:
            body = json.loads(_member(archive, CONTENTS))
            tables = tuple(SavedTable(**each) for each in body["tables"])
            contents = BackupContents(**{**body, "tables": tables})
            found = {each.member: pq.read_table(pa.BufferReader(_member(archive, each.member))) for each in tables}
    except (OSError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is no backup of a mirror, or is damaged: {error}", hint="`mirror backup` makes one") from error
    if contents.format > BACKUP_FORMAT or contents.buffer_format > FORMAT:
        raise UsageError(f"{file} was made by a later version", hint="upgrade mirror-pipeline")
    if contents.mirror != flow.name:
        raise UsageError(f"{file} is a backup of mirror {contents.mirror}, not of {flow.name}", hint="restore it into that mirror")
    return found, contents


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    entry = archive.extractfile(name)
    if entry is None:
        raise ValueError(f"{name} is missing")
    return entry.read()


def _make_room(flow: Flow, *, replace: bool) -> str:
    """Move the folder of before aside, once no run holds it; returns its new name."""
    stores = find_lanes(flow.config.buffer, flow.name)
    if not any(DeltaLog(store, spec).exists() for store in stores for spec, _ in BACKED_UP):
        return ""
    if not replace:
        hint = "--replace keeps it beside the new one"
        raise UsageError(f"mirror {flow.name} has a ledger: a restore would lose what it knows", hint=hint)
    if not stores[0].local:
        hint = "move the objects under the mirror's prefix elsewhere, then restore without --replace"
        raise UsageError("an object store cannot rename a folder: the ledger of before would not be kept whole", hint=hint)
    folder = Path(stores[0].uri).parent
    named = f"{folder.name}.before-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    # Two restores in one second are two folders.
    names = (folder.with_name(f"{named}{f'-{number}' if number else ''}") for number in count())
    aside = next(name for name in names if not name.exists())
    with ExitStack() as held:
        for store in stores:
            held.enter_context(lane_lock(store))
        folder.rename(aside)
    return str(aside)


def _write(flow: Flow, tables: dict[str, pa.Table], contents: BackupContents) -> None:
    stores: dict[str, LaneStore] = {}
    for lane in sorted({each.lane for each in contents.tables}):
        stores[lane] = open_lane(flow.config.buffer, flow.name, lane)
    raise_format(next(iter(stores.values())), contents.buffer_format)
    for lane, text in contents.starts.items():
        stores[lane].write_file(STARTS, text, durable=True)
    for spec, app_id in _ORDER:
        for saved in (each for each in contents.tables if each.table == spec.name):
            _write_table(stores[saved.lane], spec, app_id, saved, tables[saved.member], durable=flow.config.buffer.durable)


def _write_table(store: LaneStore, spec: TableSpec, app_id: str, saved: SavedTable, rows: pa.Table, *, durable: bool) -> None:
    log = DeltaLog(store, spec, durable=durable)
    log.ensure()
    columns = [rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type) for f in spec.schema]
    if rows.num_rows:
        numbered = app_id if saved.transaction >= 0 else ""
        append_rows(log, pa.Table.from_arrays(columns, schema=spec.schema), numbered, saved.transaction, durable=durable)
    elif saved.transaction >= 0:
        log.fence(app_id, saved.transaction)
