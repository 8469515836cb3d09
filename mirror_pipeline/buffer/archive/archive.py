"""A lane's archive: spans that have left the buffer, by topic and day, for copies of records that the source no longer has.

Spans arrive by :mod:`mirror_pipeline.buffer.archive.move` and leave by age. Only the holder of ``maintenance_lock`` writes here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deltalake.transaction import AddAction

from mirror_pipeline.buffer.archive.merged import FILE_BYTES, FILE_SPANS, MERGED_FILE_BYTES, ArchivedFile, draft_of, joinable, merged
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.tables.delta import DeltaLog, add_action
from mirror_pipeline.buffer.tables.files import FoundFile, remove_files
from mirror_pipeline.buffer.tables.index import read_index, span_statistics
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import ARCHIVE
from mirror_pipeline.buffer.tables.upkeep import Upkeep, remove_dead_files
from mirror_pipeline.model import PartFile, SpanRef

ARCHIVE_APP_ID = "mirror-archive"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A complete file that is not in the table yet: its topic and day, and when the newest of its spans was staged (milliseconds)."""

    values: tuple[str, str]
    part: PartFile
    staged_at: int


@dataclass(slots=True)
class ArchiveTotals:
    """Bytes of an archive's files, their spans, and the oldest day; "" while it is empty."""

    bytes: int = 0
    spans: int = 0
    files: int = 0
    oldest_day: str = ""
    by_day: dict[str, int] = field(default_factory=dict)


class Archive:
    """The archive table of one lane; one object per process.

    Args:
        store: the lane.
        durable: flush files and commits to the disk before they count (local paths).
        merged_bytes: about how large spans may become.
    """

    def __init__(self, store: LaneStore, *, durable: bool = True, merged_bytes: int = MERGED_FILE_BYTES) -> None:
        self.store = store
        self.log = DeltaLog(store, ARCHIVE, durable=durable)
        self._durable = durable
        self._merged_bytes = merged_bytes

    def ensure(self) -> None:
        """Create the table if need be. Raises BufferUnusable."""
        self.log.ensure()

    def exists(self) -> bool:
        """Whether the table has been created. Raises BufferUnusable."""
        return self.log.exists()

    def files(self) -> dict[str, LiveFile]:
        """The live files by path; ``values`` are topic and day."""
        return self.log.files()

    def write(self, values: tuple[str, str], table: str, spans: Iterable[SpanRef], staged_at: int) -> list[NewFile]:
        """Write spans of one topic and day to new files, invisible until :meth:`add` names them; memory use is that of a merged span.

        Args:
            values: topic and day.
            table: where the spans are read from.
            spans: in any order.
            staged_at: when the newest of them was staged.

        Raises:
            BufferUnusable: a span cannot be read, or a file not be written (what was begun is removed).
        """
        written: list[NewFile] = []
        writer = self._writer()
        size = count = 0
        try:
            with SpanReader(self.store, table=table) as reader:
                for group in merged(spans, most_bytes=self._merged_bytes):
                    if size >= FILE_BYTES or count >= FILE_SPANS:
                        written += self._closed(writer, values, staged_at)
                        writer, size, count = self._writer(), 0, 0
                    writer.add(draft_of(group), [reader.payload(ref) for ref in group], staged_at)
                    size, count = size + sum(ref.bytes for ref in group), count + 1
            return [*written, *self._closed(writer, values, staged_at)]
        except BaseException:
            writer.abort()
            self.discard(written)
            raise

    def _writer(self) -> PartFileWriter:
        return PartFileWriter(self.store, 0, 0, durable=self._durable, spec=ARCHIVE)

    @staticmethod
    def _closed(writer: PartFileWriter, values: tuple[str, str], staged_at: int) -> list[NewFile]:
        part = writer.close()
        return [] if part is None else [NewFile(values, part, staged_at)]

    def add(self, files: Sequence[NewFile], version: int) -> bool:
        """Make files visible in one transaction; False if ``version`` was committed before, by anyone. Raises BufferUnusable."""
        return self.log.commit([self._action(file) for file in files], app_id=ARCHIVE_APP_ID, version=version)

    @staticmethod
    def _action(file: NewFile, *, new: bool = True) -> AddAction:
        values = dict(zip(ARCHIVE.partition_by, file.values, strict=True))
        stats = span_statistics(file.part.spans, ARCHIVE)
        return add_action(file.part.path, file.part.size, stats, values, new=new, modified=file.staged_at)

    def discard(self, files: Sequence[NewFile]) -> None:
        """Remove files that were never added."""
        remove_files(self.store, ARCHIVE.name, [FoundFile(file.part.path, file.part.size, 0.0) for file in files])

    def transaction(self) -> int:
        """The number of the last addition, -1 before the first."""
        return self.log.transaction(ARCHIVE_APP_ID)

    def fence(self, version: int) -> None:
        """Let an addition under this number, by a process that was only stopped, be refused. Raises BufferUnusable."""
        self.log.fence(ARCHIVE_APP_ID, version)

    def expire(self, before: int) -> int:
        """Take out files whose spans were all staged before this time (milliseconds since the epoch); the bytes."""
        return sum(file.size for file in self._take_out([file for file in self.files().values() if file.modified < before]))

    def drop_oldest(self, size: int) -> int:
        """Delete the oldest files at once, of at least ``size`` bytes together if there are as many; the bytes deleted."""
        chosen, total = [], 0
        for file in sorted(self.files().values(), key=lambda f: (f.modified, f.path)):
            if total >= size:
                break
            chosen.append(file)
            total += file.size
        gone = self._take_out(chosen)
        return remove_files(self.store, ARCHIVE.name, [FoundFile(file.path, file.size, 0.0) for file in gone])

    def _take_out(self, files: Sequence[LiveFile]) -> list[LiveFile]:
        return list(self.log.replace(files)) if files else []

    def maintain(self, *, over: str, orphan_age: float, space: int) -> Upkeep:
        """Remove dead files and join small ones.

        Args:
            over: days before this one (``2026-11-24``) get no more spans.
            orphan_age: seconds that files stay after they left the table.
            space: bytes that may be written.
        """
        removed, freed = remove_dead_files(self.log, orphan_age=orphan_age)
        joined = 0
        for group in joinable(self._counted(), over=over):
            space -= sum(file.size for file in group)
            if space < 0:
                break
            joined += self._join(group)
        if joined:
            self.log.checkpoint()
        return Upkeep(joined, removed, freed)

    def _counted(self) -> list[ArchivedFile]:
        rows = self.log.actions()
        counts = dict(zip(rows["path"].to_pylist(), rows["num_records"].to_pylist(), strict=True)) if rows.num_rows else {}
        return [ArchivedFile(file, int(counts.get(path) or 1)) for path, file in self.files().items()]

    def _join(self, group: Sequence[LiveFile]) -> int:
        spans = [ref for file in group for ref in read_index(self.store, file, ARCHIVE)]
        topic, day = group[0].values
        made = self.write((topic, day), ARCHIVE.name, spans, max(file.modified for file in group))
        removed = self.log.replace(group, [self._action(file, new=False) for file in made], data_change=False)
        if not removed:
            self.discard(made)
        return len(removed)

    def totals(self) -> ArchiveTotals:
        """What the archive holds; reads the log alone."""
        totals = ArchiveTotals()
        for each in self._counted():
            totals.bytes += each.file.size
            totals.spans += each.spans
            totals.files += 1
            day = each.file.values[1]
            totals.by_day[day] = totals.by_day.get(day, 0) + each.file.size
        totals.oldest_day = min(totals.by_day, default="")
        return totals

