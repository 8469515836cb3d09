"""The span table as the driver sees it: what is staged, what is not yet on the target, what may go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pyarrow.parquet as pq

from mirror_pipeline.buffer.delta import DeltaLog, LiveFile, add_action
from mirror_pipeline.buffer.evict import SpanKey, StagedBatch, choose, produced_batches, removable_files
from mirror_pipeline.buffer.files import found_files, remove_files, statistics
from mirror_pipeline.buffer.schema import SPANS
from mirror_pipeline.buffer.store import LaneStore, explained
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.model import Hole, HoleCause, PartFile, SpanRef, TopicPartition

APP_ID = "mirror-spans"
ORPHAN_AGE = 3600.0
"""Seconds after which a file that was written and never committed is taken for abandoned; no stage task takes that long."""
MAX_FILES = 1000
"""Live files beyond this are evicted as soon as they may be, retention or not: a commit's cost grows with them (about 12 µs each)."""
READERS = 4
_SMALL = [name for name in SPANS.file_schema.names if name not in ("payload", "staged_at")]


class SpanTable:
    """The spans of one lane; one object per process, safe to use from several threads.

    Args:
        store: the lane.
        durable: bring commits to the disk before they count (local paths).
    """

    def __init__(self, store: LaneStore, *, durable: bool = True) -> None:
        self._store = store
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
        adds = [add_action(p.path, p.size, _statistics(p.spans), {"micro_batch": str(micro_batch)}) for p in parts]
        landed = self._log.commit(adds, app_id=APP_ID, version=micro_batch)
        if landed:
            with self._lock:
                self._spans.update((part.path, part.spans) for part in parts)
        return landed

    def _check(self, parts: Sequence[PartFile]) -> None:
        filesystem, base = self._store.filesystem()
        with explained(self._log.uri):
            found = filesystem.get_file_info([f"{base}/{SPANS.name}/{part.path}" for part in parts])
        for part, info in zip(parts, found, strict=True):
            if info.size != part.size:
                raise BufferUnusable(f"buffer {self._log.uri}: part file {part.path} is {info.size} bytes, {part.size} were written")

    def last_micro_batch(self) -> int:
        """Number of the micro-batch committed last, -1 before the first."""
        return self._log.transaction(APP_ID)

    def spans(self, above: int = -1) -> list[SpanRef]:
        """All live spans of micro-batches greater than ``above``, ordered by topic, partition and start. Reads no payload."""
        files = self._log.files()
        live = [file for file in files.values() if file.micro_batch > above]
        with self._lock:
            known = {file.path: self._spans[file.path] for file in live if file.path in self._spans}
        missing = [file for file in live if file.path not in known]
        with ThreadPoolExecutor(READERS, "span-index") as pool:
            known |= zip((file.path for file in missing), pool.map(self._read, missing), strict=True)
        with self._lock:
            self._spans = {path: spans for path, spans in self._spans.items() if path in files} | known
        return sorted(chain.from_iterable(known.values()), key=lambda ref: (ref.topic, ref.partition, ref.start, ref.micro_batch))

    def _read(self, file: LiveFile) -> tuple[SpanRef, ...]:
        filesystem, base = self._store.filesystem()
        with explained(f"{self._log.uri}/{file.path}"), filesystem.open_input_file(f"{base}/{SPANS.name}/{file.path}") as source:
            part = pq.ParquetFile(source)
            groups = part.metadata.num_row_groups
            table = part.read(columns=_SMALL, use_threads=False)
        if table.num_rows != groups:
            raise BufferUnusable(f"buffer {self._log.uri}: {file.path} was rewritten by another program", hint="see docs/buffer.md")
        columns = [table[name].to_pylist() for name in _SMALL]
        return tuple(_ref(file, index, row) for index, row in enumerate(zip(*columns, strict=True)))

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
            incarnations: the current incarnation by topic; spans of another life of the topic are left out.
        """
        return [
            ref
            for ref in self.spans(above)
            if ref.end > after.get(ref.source, -1) and (incarnations is None or incarnations.get(ref.topic) == ref.incarnation)
        ]

    def staged_ends(self, above: int = -1) -> dict[SpanKey, int]:
        """End of what is staged, by topic, partition and incarnation; evicted spans are not counted."""
        ends: dict[SpanKey, int] = {}
        for ref in self.spans(above):
            key = (ref.topic, ref.partition, ref.incarnation)
            ends[key] = max(ends.get(key, ref.end), ref.end)
        return ends

    def bytes(self) -> int:
        """Bytes of the live files."""
        return sum(file.size for file in self._log.files().values())

    def disk_bytes(self) -> int:
        """Bytes that the table's data files really take: live, evicted but not yet removed, and abandoned ones."""
        return sum(file.size for file in found_files(self._store, SPANS.name))

    def produced(self, positions: Mapping[SpanKey, int]) -> set[int]:
        """Micro-batches all of whose spans end at or below ``positions`` (next source offset by topic, partition, incarnation)."""
        return produced_batches(self.spans(), positions)

    def evict(
        self,
        done: Collection[int],
        *,
        older_than: int | None = None,
        target_bytes: int | None = None,
        target_files: int | None = MAX_FILES,
    ) -> list[int]:
        """Take micro-batches out of the table; the files go with a later :meth:`vacuum`.

        Args:
            done: micro-batches that are safe to forget (:meth:`produced`, and verified if that is wanted).
            older_than: evict those staged before this time (milliseconds since the epoch).
            target_bytes: evict further ones, oldest first, until at most this many bytes are live.
            target_files: the same for files; None for no limit.

        Returns:
            The micro-batches evicted.
        """
        files = self._log.files().values()
        gone = set(choose(_batches(files), done, older_than=older_than, target_bytes=target_bytes, target_files=target_files))
        chosen = [file for file in files if file.micro_batch in gone]
        if not chosen:
            return []
        removed = self._log.replace(chosen)
        with self._lock:
            for file in removed:
                self._evicted[file.path] = time.time()
                self._spans.pop(file.path, None)
        return sorted({file.micro_batch for file in removed})

    def vacuum(self, *, grace: float = 60.0, orphan_age: float = ORPHAN_AGE) -> int:
        """Remove files that the table does not refer to; the bytes freed.

        Files of micro-batches later than the last committed one may belong to tasks at work and are never touched: their
        number is used again by the next run, and they go once that is committed.

        Args:
            grace: seconds since this object evicted a file; readers of the table's version before may still open it.
            orphan_age: seconds since any other unreferred file was last written.
        """
        found = found_files(self._store, SPANS.name)
        last = self.last_micro_batch()
        settled = [file for file in found if _micro_batch(file.path) <= last]
        live = self._log.files()
        with self._lock:
            evicted = dict(self._evicted)
        gone = removable_files(settled, live, now=time.time(), orphan_age=orphan_age, evicted=evicted, grace=grace)
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


def _batches(files: Iterable[LiveFile]) -> list[StagedBatch]:
    grouped: dict[int, list[LiveFile]] = {}
    for file in files:
        grouped.setdefault(file.micro_batch, []).append(file)
    return [StagedBatch(n, sum(f.size for f in group), max(f.modified for f in group), len(group)) for n, group in grouped.items()]


def _statistics(spans: Sequence[SpanRef]) -> dict[str, object]:
    rows = [
        {
            "topic": span.topic,
            "partition": span.partition,
            "start_offset": span.start,
            "end_offset": span.end,
            "min_timestamp": span.min_timestamp,
            "max_timestamp": span.max_timestamp,
        }
        for span in spans
    ]
    return statistics(SPANS, len(rows), rows, rows)


def _ref(file: LiveFile, row_group: int, row: tuple[Any, ...]) -> SpanRef:
    topic, partition, incarnation, start, end, records, batches, size, low, high, listed = row
    holes = tuple(Hole(hole["start"], hole["end"], HoleCause(hole["cause"])) for hole in listed)
    batch = file.micro_batch
    return SpanRef(topic, partition, incarnation, batch, start, end, records, batches, size, low, high, holes, file.path, row_group)
