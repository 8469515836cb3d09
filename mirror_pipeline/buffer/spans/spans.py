"""The span table as the driver sees it: what is staged, what is not yet on the target, what may be evicted.

Over 300 lines: every operation shares one table handle and one cache of live spans.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.compaction import JOINED_BYTES, SmallFile, groups, write_joined
from mirror_pipeline.buffer.spans.eviction import SpanKey, StagedBatch, choose, produced_batches
from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.files import READ_ATTEMPTS, FoundFile, found_files, removable_files, remove_files
from mirror_pipeline.buffer.tables.index import read_index, span_statistics
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import SPANS
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import PartFile, SpanRef, TopicPartition

SPANS_APP_ID = "mirror-spans"
# Seconds after which a file that was written but never committed counts as abandoned; no read task takes that long.
ORPHAN_AGE = 3600.0
# Live files beyond this number are evicted as soon as that is safe, whatever the retention: each adds about 12 µs to a commit.
MAX_SPAN_FILES = 1000
# The same for live spans: a run holds each of them in memory (about 1 KB).
MAX_SPANS = 50_000
# Live part files beyond this number are joined, as far as they are safe to forget.
JOIN_FILES = 64
READERS = 4


class SpanTable:
    """The spans of one lane; one object per process, safe to use from several threads.

    Args:
        store: the lane.
        durable: flush commits to the disk before they count (local paths).
    """

    def __init__(self, store: LaneStore, *, durable: bool = True) -> None:
        self._store = store
        self._durable = durable
        self._log = DeltaLog(store, SPANS, durable=durable)
        self._lock = threading.RLock()
        self._spans: dict[str, tuple[SpanRef, ...]] = {}
        self._evicted: dict[str, float] = {}

    def ensure(self) -> None:
        """Create the table if need be. Raises BufferUnusable."""
        self._log.ensure()

    def exists(self) -> bool:
        """Whether the table has been created; for commands that only read."""
        return self._log.exists()

    def commit(self, micro_batch: int, parts: Sequence[PartFile]) -> bool:
        """Make the part files of a micro-batch visible, in one transaction.

        Returns:
            True when these parts are in the table now; False when that micro-batch, or a later one, was committed before
            (these parts are then left for vacuum), or when there is nothing to commit.

        Raises:
            BufferUnusable: a part file is missing, or the commit cannot be written.
        """
        if not parts:
            return False
        self._check(parts)
        adds = [add_action(p.path, p.size, span_statistics(p.spans), {"micro_batch": str(micro_batch)}) for p in parts]
        landed = self._log.commit(adds, app_id=SPANS_APP_ID, version=micro_batch)
        if landed:
            with self._lock:
                self._spans.update((part.path, part.spans) for part in parts)
        return landed

    def _check(self, parts: Sequence[PartFile]) -> None:
        filesystem, base = self._store.filesystem()
        with explained(self._log.uri):
            infos = filesystem.get_file_info([f"{base}/{SPANS.name}/{part.path}" for part in parts])
        for part, info in zip(parts, infos, strict=True):
            if info.size != part.size:
                raise BufferUnusable(f"buffer {self._log.uri}: part file {part.path} is {info.size} bytes, {part.size} were written")

    def last_micro_batch(self) -> int:
        """Number of the micro-batch committed last, -1 before the first."""
        return self._log.transaction(SPANS_APP_ID)

    def holds(self, parts: Sequence[PartFile]) -> bool:
        """Whether all of these are in the table, for a commit whose outcome is not known. Raises BufferUnusable."""
        return {part.path for part in parts} <= self._log.files().keys()

    def fence(self) -> None:
        """Skip a number, so that an earlier holder of the lane that resumes in the middle of a commit can no longer commit.

        Raises:
            BufferUnusable: the commit cannot be written.
        """
        self._log.fence(SPANS_APP_ID, 0)

    def spans(self, above: int = -1) -> list[SpanRef]:
        """All live spans of micro-batches greater than ``above``, ordered by topic, partition and start. Reads no payload."""
        return sorted(self._live(above), key=lambda ref: (ref.topic, ref.partition, ref.start, ref.micro_batch))

    def _live(self, above: int = -1) -> list[SpanRef]:
        """The same in any order: a lane may have 50,000 of them, and a round of maintenance asks several times."""
        for attempt in range(READ_ATTEMPTS):
            files = self._log.files()
            try:
                return self._index(files, above)
            except BufferUnusable:  # evicted or joined, and removed, during this read: the newest version has other files
                if attempt == READ_ATTEMPTS - 1 or files.keys() <= self._log.files().keys():
                    raise
        raise AssertionError

    def _index(self, files: Mapping[str, LiveFile], above: int) -> list[SpanRef]:
        live = [file for file in files.values() if file.micro_batch > above]
        with self._lock:
            known = {file.path: self._spans[file.path] for file in live if file.path in self._spans}
        missing = [file for file in live if file.path not in known]
        if missing:
            with ThreadPoolExecutor(READERS, "span-index") as pool:
                known |= zip((file.path for file in missing), pool.map(self._read, missing), strict=True)
        with self._lock:
            self._spans = {path: spans for path, spans in self._spans.items() if path in files} | known
        return list(chain.from_iterable(known.values()))

    def _read(self, file: LiveFile) -> tuple[SpanRef, ...]:
        return read_index(self._store, file)

    def pending(
        self,
        after: Mapping[TopicPartition, int],
        *,
        above: int = -1,
        incarnations: Mapping[str, str] | None = None,
    ) -> list[SpanRef]:
        """Spans that the target does not have (completely) yet, ordered by topic, partition and start.

        Args:
            after: next source offset the target needs, by partition; a partition that is not named needs everything.
            above: micro-batches up to this one are known to be on the target and their files are not even opened.
            incarnations: the current incarnation by topic; spans of another generation of the topic are left out.
        """
        return [
            ref
            for ref in self.spans(above)
            if ref.end > after.get(ref.source, -1) and (incarnations is None or incarnations.get(ref.topic) == ref.incarnation)
        ]

    def bytes(self) -> int:
        """Bytes of the live files."""
        return sum(file.size for file in self._log.files().values())

    def bytes_of(self, micro_batches: Collection[int]) -> int:
        """Bytes of the live files of these micro-batches."""
        return sum(file.size for file in self._log.files().values() if file.micro_batch in micro_batches)

    def live_files(self) -> int:
        """How many part files the table refers to."""
        return len(self._log.files())

    def oldest(self) -> float | None:
        """When the oldest live span was staged (seconds since the epoch); a joined file counts from its newest."""
        return min((file.modified / 1000 for file in self._log.files().values()), default=None)

    def by_day(self, day_of: Callable[[int], str]) -> dict[str, int]:
        """Bytes of the live files by the day on which they were staged; ``day_of`` names the day of a time in milliseconds."""
        days: dict[str, int] = {}
        for file in self._log.files().values():
            day = day_of(file.modified)
            days[day] = days.get(day, 0) + file.size
        return days

    def disk_bytes(self) -> int:
        """Bytes that the table's data files take on disk: live, evicted but not yet removed, and abandoned ones."""
        return sum(file.size for file in found_files(self._store, SPANS.name))

    def produced(self, positions: Mapping[SpanKey, int]) -> set[int]:
        """Micro-batches all of whose spans end at or below ``positions`` (next source offset by topic, partition, incarnation)."""
        return produced_batches(self._live(), positions)

    def demanded(
        self,
        done: Collection[int],
        *,
        older_than: int | None = None,
        target_bytes: int | None = None,
        target_files: int | None = MAX_SPAN_FILES,
        target_spans: int | None = MAX_SPANS,
    ) -> list[int]:
        """What :meth:`evict` would take, with the same arguments."""
        return self._choose(done, self._log.files().values(), older_than, target_bytes, target_files, target_spans)

    def _choose(
        self, done: Collection[int], files: Iterable[LiveFile], older: int | None, size: int | None, most: int | None, spans: int | None
    ) -> list[int]:
        with self._lock:
            batches = _batches(files, {path: len(refs) for path, refs in self._spans.items()})
        return choose(batches, done, older_than=older, target_bytes=size, target_files=most, target_spans=spans)

    def evict(
        self,
        done: Collection[int],
        *,
        older_than: int | None = None,
        target_bytes: int | None = None,
        target_files: int | None = MAX_SPAN_FILES,
        target_spans: int | None = MAX_SPANS,
    ) -> list[int]:
        """Remove micro-batches from the table; a later :meth:`vacuum` removes the files.

        Args:
            done: micro-batches that are safe to forget: on the target, and verified there.
            older_than: evict those staged before this time (milliseconds since the epoch).
            target_bytes: evict further ones, oldest first, until at most this many bytes are live.
            target_files: the same for files; None for no limit.
            target_spans: the same for spans.

        Returns:
            The micro-batches evicted.
        """
        files = self._log.files().values()
        gone = set(self._choose(done, files, older_than, target_bytes, target_files, target_spans))
        chosen = [file for file in files if file.micro_batch in gone]
        if not chosen:
            return []
        removed = self._log.replace(chosen)
        self._gone(removed)
        return sorted({file.micro_batch for file in removed})

    def contents(self, micro_batches: Collection[int]) -> dict[LiveFile, tuple[SpanRef, ...]]:
        """The live files of these micro-batches with their spans. Reads no payload. Raises BufferUnusable."""
        refs = self.spans()
        by_path: dict[str, list[SpanRef]] = {}
        for ref in refs:
            by_path.setdefault(ref.path, []).append(ref)
        chosen = (file for file in self._log.files().values() if file.micro_batch in micro_batches)
        return {file: tuple(by_path.get(file.path, ())) for file in chosen}

    def remove(self, paths: Collection[str]) -> list[int]:
        """Remove these files from the table, as far as they are in it: they are stored elsewhere; the micro-batches removed."""
        chosen = [file for path, file in self._log.files().items() if path in paths]
        if not chosen:
            return []
        removed = self._log.replace(chosen)
        self._gone(removed)
        return sorted({file.micro_batch for file in removed})

    def _gone(self, files: Iterable[LiveFile]) -> None:
        with self._lock:
            for file in files:
                self._evicted[file.path] = time.monotonic()
                self._spans.pop(file.path, None)

    def join(self, done: Collection[int], *, most: int = JOIN_FILES, space: int = JOINED_BYTES) -> int:
        """Join small part files when more than ``most`` are live; returns how many were joined.

        Only files of ``done`` micro-batches are touched: no new task reads them, and a running one finds the old
        files until :meth:`vacuum`. Only for the holder of ``maintenance_lock``.

        Args:
            done: micro-batches that may be forgotten already.
            most: number of files that may stay small.
            space: bytes that may be written: until the old files are removed the disk holds their spans twice.
        """
        files = self._log.files()
        if len(files) <= most:
            return 0
        self._live()
        over = set(done)
        with self._lock:
            small = [SmallFile(f, len(self._spans.get(f.path, ()))) for f in files.values() if f.micro_batch in over]
        joined = 0
        for group in groups(small, most_bytes=min(JOINED_BYTES, space)):
            space -= sum(file.size for file in group)
            if space < 0:
                break
            joined += self._join(group)
        return joined

    def _join(self, group: Sequence[LiveFile]) -> int:
        with self._lock:
            known = {file.path: self._spans.get(file.path) for file in group}
        refs = {file.path: known[file.path] or self._read(file) for file in group}
        joined = write_joined(self._store, group, refs, durable=self._durable)
        partition, modified = {"micro_batch": str(joined.micro_batch)}, max(file.modified for file in group)
        action = add_action(joined.path, joined.size, span_statistics(joined.spans), partition, new=False, modified=modified)
        removed = self._log.replace(group, [action], data_change=False)
        if removed:
            self._gone(removed)
            with self._lock:
                self._spans[joined.path] = joined.spans
        else:
            remove_files(self._store, SPANS.name, [FoundFile(joined.path, joined.size, 0.0)])
        return len(removed)

    def discard_uncommitted(self, check_held: Callable[[], None] = lambda: None) -> int:
        """Remove part files of a micro-batch that was never committed; the bytes freed. Only while no task runs.

        Args:
            check_held: raises when the lane is no longer held. It is called after the files are listed, so files that another
                holder writes later are not among them.
        """
        files = found_files(self._store, SPANS.name)
        check_held()
        last, live = self.last_micro_batch(), self._log.files()
        return remove_files(self._store, SPANS.name, [f for f in files if _micro_batch(f.path) > last and f.path not in live])

    def vacuum(self, *, grace: float = 60.0, orphan_age: float = ORPHAN_AGE) -> int:
        """Remove files that the table does not refer to; the bytes freed.

        Files of micro-batches later than the last committed one may belong to running tasks and are never touched: the
        next run uses their number again, and they are removed once that is committed.

        Args:
            grace: seconds since this object evicted a file; readers of the previous table version may still open it.
            orphan_age: seconds since any other unreferred file was last written.
        """
        files = found_files(self._store, SPANS.name)
        last = self.last_micro_batch()
        settled = [file for file in files if _micro_batch(file.path) <= last]
        live = self._log.files()
        with self._lock:
            evicted = {path: time.monotonic() - at for path, at in self._evicted.items()}
        gone = removable_files(settled, live, now=self._store.now, orphan_age=orphan_age, evicted=evicted, grace=grace)
        freed = remove_files(self._store, SPANS.name, gone)
        with self._lock:
            for file in gone:
                self._evicted.pop(file.path, None)
            self._spans = {path: spans for path, spans in self._spans.items() if path in live}
        return freed


def _micro_batch(path: str) -> int:
    """The number in ``part-<micro batch>-…``; a name of another program counts as old."""
    number = os.path.basename(path).split("-")[1:2]
    return int(number[0]) if number and number[0].isdigit() else -1


def _batches(files: Iterable[LiveFile], spans: Mapping[str, int]) -> list[StagedBatch]:
    grouped: dict[int, list[LiveFile]] = {}
    for file in files:
        grouped.setdefault(file.micro_batch, []).append(file)
    return [
        StagedBatch(
            number, sum(f.size for f in group), max(f.modified for f in group), len(group), sum(spans.get(f.path, 1) for f in group)
        )
        for number, group in grouped.items()
    ]
