"""How much space the buffer takes: on its disk, as the file system counts it, or in its bucket, by a listing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mirror_pipeline.buffer.place.bucket import Listed, Objects
from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.lock import LANE_LOCK
from mirror_pipeline.buffer.place.place import ARCHIVE_FOLDER, SPANS_FOLDER, LaneStore

LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class LaneUse:
    """Bytes on disk of one lane: part files of spans (evicted ones that are still there included), the ledger's files,
    the Delta logs of both, everything else; how many files its logs have; whether a run holds it; the archive with its log."""

    spans: int = 0
    ledger: int = 0
    logs: int = 0
    other: int = 0
    log_files: int = 0
    running: bool = False
    archive: int = 0

    @property
    def total(self) -> int:
        """Everything in the lane's folder but the archive, which `buffer.max_bytes` does not limit."""
        return self.spans + self.ledger + self.logs + self.other


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        return


def _size(entry: os.DirEntry[str]) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    return max(status.st_size, status.st_blocks * 512)  # a small file takes a whole block; a new one may have none yet


def lane_use(store: LaneStore) -> LaneUse:
    """Measure one lane; files that appear or disappear meanwhile may be counted or not. Raises BufferUnusable."""
    with explained(store.uri):
        return _folder_use(store.uri) if store.local else _listed_use(store.objects().listed())


def _listed_use(objects: Iterable[Listed]) -> LaneUse:
    spans = ledger = logs = other = log_files = archive = 0
    running = False
    for each in objects:
        table, _, rest = each.name.partition("/")
        if not rest:
            other += each.size
            running = running or (table == LANE_LOCK and each.size > 0)
        elif table == ARCHIVE_FOLDER:
            archive += each.size
        elif rest.startswith(f"{LOG}/"):
            logs, log_files = logs + each.size, log_files + 1
        elif table == SPANS_FOLDER:
            spans += each.size
        else:
            ledger += each.size
    return LaneUse(spans, ledger, logs, other, log_files, running, archive)


def _folder_use(folder: str | Path) -> LaneUse:
    spans = ledger = logs = other = log_files = archive = 0
    running = False
    for table in _entries(folder):
        if not table.is_dir(follow_symlinks=False):
            other += _size(table)
            running = running or (table.name == LANE_LOCK and _size(table) > 0)
            continue
        data, sizes = 0, list[int]()
        for entry in _entries(table.path):
            if entry.name == LOG:
                sizes = [_size(file) for file in _entries(entry.path)]
            else:
                data += _size(entry)
        if table.name == ARCHIVE_FOLDER:
            archive += data + sum(sizes)
            continue
        logs, log_files = logs + sum(sizes), log_files + len(sizes)
        if table.name == SPANS_FOLDER:
            spans += data
        else:
            ledger += data
    return LaneUse(spans, ledger, logs, other, log_files, running, archive)


def buffer_use(store: LaneStore) -> dict[str, LaneUse]:
    """All lanes of all mirrors in the buffer that ``store`` is a lane of, by ``mirror/lane``. Raises BufferUnusable."""
    if not store.local:
        return _bucket_use(Objects(store.root, store.options))
    with explained(store.uri):
        return {
            f"{mirror.name}/{lane.name}": _folder_use(lane.path)
            for mirror in _entries(store.root)
            if mirror.is_dir(follow_symlinks=False)
            for lane in _entries(mirror.path)
            if lane.is_dir(follow_symlinks=False)
        }


def _bucket_use(root: Objects) -> dict[str, LaneUse]:
    with explained(root.uri):
        listed = root.listed()
    lanes: dict[str, list[Listed]] = {}
    for each in listed:
        mirror, lane, rest = (*each.name.split("/", 2), "", "")[:3]
        if rest:
            lanes.setdefault(f"{mirror}/{lane}", []).append(Listed(rest, each.size, each.modified))
    return {name: _listed_use(objects) for name, objects in lanes.items()}


def free_bytes(store: LaneStore) -> int:
    """Bytes that an unprivileged user may still write to the buffer's disk; a bucket is unlimited."""
    if not store.local:
        return sys.maxsize
    disk = os.statvfs(store.uri)
    return disk.f_bavail * disk.f_frsize


def total_bytes(stores: list[LaneStore]) -> int:
    """What all mirrors of the buffer that these lanes are in take on its disk, backfills included."""
    return sum(use.total for use in buffer_use(stores[0]).values()) if stores else 0
