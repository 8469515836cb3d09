"""Which spans of a topic the buffer still holds, by offset or time: in the archive by Delta's and Parquet's statistics, and in the buffer.

No payload is read here, and no index entry of a file, or of a row group, whose statistics say that it holds nothing of what is asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import pyarrow.parquet as pq

from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.index import refs_of
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import ARCHIVE, SPANS
from mirror_pipeline.model import SpanRef, topic_id_of

_STATISTICS = ("partition", "start_offset", "end_offset", "max_timestamp")
# The files of the archive have the columns of those of the buffer.
_AT = {name: SPANS.file_schema.names.index(name) for name in _STATISTICS}


@dataclass(frozen=True, slots=True)
class KeptSpan:
    """A span that the buffer still holds, and the table it is in."""

    store: LaneStore
    table: str
    ref: SpanRef


@dataclass(frozen=True, slots=True)
class SpanSegment:
    """Source offsets ``[start, end)`` and the span that holds them."""

    start: int
    end: int
    span: KeptSpan


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for: spans with a record at or after ``since`` (milliseconds), or that overlap a partition's ``ranges``."""

    since: int | None = None
    ranges: Mapping[int, tuple[int, int]] | None = None

    def may_hold(self, partitions: tuple[int, int], offsets: tuple[int, int], newest: int) -> bool:
        """Whether something with these least and greatest values may be wanted; the end of ``offsets`` is exclusive."""
        if self.since is not None and newest < self.since:
            return False
        if self.ranges is None:
            return True
        near = (bounds for number, bounds in self.ranges.items() if partitions[0] <= number <= partitions[1])
        return any(offsets[0] < end and start < offsets[1] for start, end in near)


class KeptTopic:
    """The spans of one generation of a topic in the archives and buffers of its mirror's lanes.

    Args:
        stores: the mirror's continuous lanes.
        topic: source topic.
        topic_id: its id on the source: spans of a topic that had this name before are not its own.
    """

    def __init__(self, stores: Sequence[LaneStore], topic: str, topic_id: str) -> None:
        self._archives = [archive for store in stores if (archive := Archive(store)).exists()]
        self._buffers = [(store, table) for store in stores if (table := SpanTable(store)).exists()]
        self._topic = topic
        self._topic_id = topic_id

    @property
    def archived(self) -> bool:
        """Whether there is any archive."""
        return bool(self._archives)

    def first_since(self, since: int | None, partitions: Collection[int]) -> dict[int, KeptSpan]:
        """By partition the first span with a record at or after ``since`` (milliseconds), or simply the first one.

        A lane stages the offsets of a partition in order, so that no later day has an earlier one.
        """
        wanted, found = Wanted(since=since), dict[int, KeptSpan]()
        for archive in self._archives:
            files = sorted(self._files(archive, wanted), key=lambda file: file.values)
            for _, day in groupby(files, key=lambda file: file.values):
                if set(partitions) <= found.keys():
                    break
                _earliest(found, self._read(archive, day, wanted))
        _earliest(found, self._live(wanted))
        return {number: span for number, span in found.items() if number in partitions}

    def segments(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, list[SpanSegment]]:
        """What holds the offsets of these partitions, in order; offsets that no segment names are not there."""
        wanted = Wanted(ranges=ranges)
        spans = [*self._live(wanted)]
        for archive in self._archives:
            spans += self._read(archive, self._files(archive, wanted), wanted)
        by_partition: dict[int, list[KeptSpan]] = {number: [] for number in ranges}
        for span in spans:
            by_partition.setdefault(span.ref.partition, []).append(span)
        return {number: list(covering(by_partition[number], *bounds)) for number, bounds in ranges.items()}

    def _files(self, archive: Archive, wanted: Wanted) -> list[LiveFile]:
        rows = archive.log.actions()
        if not rows.num_rows:
            return []
        bounds = [f"{which}.{name}" for name in ("partition", "start_offset", "end_offset") for which in ("min", "max")]
        names = ["path", "size_bytes", "modification_time", "partition.topic", "partition.day", *bounds, "max.max_timestamp"]
        found = []
        for path, size, at, topic, day, low, high, start, _, _, end, newest in zip(*(rows[n].to_pylist() for n in names), strict=True):
            if topic == self._topic and wanted.may_hold((low, high), (start, end), newest):
                found.append(LiveFile(path, size, at, 0, (topic, day)))
        return found

    def _read(self, archive: Archive, files: Iterable[LiveFile], wanted: Wanted) -> Iterator[KeptSpan]:
        for file in files:
            for ref in _matching(archive.store, file, wanted):
                if topic_id_of(ref.incarnation) == self._topic_id:
                    yield KeptSpan(archive.store, ARCHIVE.name, ref)

    def _live(self, wanted: Wanted) -> Iterator[KeptSpan]:
        for store, table in self._buffers:
            for ref in table.spans():
                mine = ref.topic == self._topic and topic_id_of(ref.incarnation) == self._topic_id
                if mine and wanted.may_hold((ref.partition, ref.partition), (ref.start, ref.end), ref.max_timestamp):
                    yield KeptSpan(store, SPANS.name, ref)


def _earliest(found: dict[int, KeptSpan], spans: Iterable[KeptSpan]) -> None:
    for span in spans:
        number = span.ref.partition
        if number not in found or span.ref.start < found[number].ref.start:
            found[number] = span


def _matching(store: LaneStore, file: LiveFile, wanted: Wanted) -> Iterator[SpanRef]:
    """The wanted spans of a file: its description says which row groups to look at. Raises BufferUnusable."""
    filesystem, base = store.filesystem()
    uri = store.table(ARCHIVE.name)
    with explained(f"{uri}/{file.path}"), filesystem.open_input_file(f"{base}/{ARCHIVE.name}/{file.path}") as source:
        part = pq.ParquetFile(source)
        chosen = [number for number in range(part.metadata.num_row_groups) if _may_hold(part.metadata.row_group(number), wanted)]
        refs = refs_of(file, part, uri, chosen)
    yield from refs


def _may_hold(group: Any, wanted: Wanted) -> bool:
    values = [group.column(_AT[name]).statistics for name in _STATISTICS]
    if any(each is None or not each.has_min_max for each in values):
        return True
    partition, start, end, newest = (each.max for each in values)
    return wanted.may_hold((partition, partition), (start, end), newest)


@lru_cache(maxsize=4096)
def generation_of(incarnation: str) -> int:
    """1 for a topic's first copy, 2 for the next one under the same topic id, which overrides it where both have an offset."""
    return int(incarnation.partition("/")[2] or 1)


def covering(spans: Iterable[KeptSpan], start: int, end: int) -> Iterator[SpanSegment]:
    """The spans that hold ``[start, end)`` between them, each offset once: the later generation, then what reaches further."""
    waiting = sorted(spans, key=lambda span: span.ref.start)
    active: list[tuple[int, int, int]] = []
    at, index = start, 0
    last: SpanSegment | None = None
    while at < end:
        while index < len(waiting) and waiting[index].ref.start <= at:
            ref = waiting[index].ref
            heapq.heappush(active, (-generation_of(ref.incarnation), -ref.end, index))
            index += 1
        while active and -active[0][1] <= at:
            heapq.heappop(active)
        following = waiting[index].ref.start if index < len(waiting) else end
        if not active:
            at = min(end, following)
            continue
        span = waiting[active[0][2]]
        stop = min(span.ref.end, following, end)
        if last is not None and last.span is span and last.end == at:
            last = SpanSegment(last.start, stop, span)
        else:
            if last is not None:
                yield last
            last = SpanSegment(at, stop, span)
        at = stop
    if last is not None:
        yield last


def missing(segments: Iterable[SpanSegment], start: int, end: int) -> list[tuple[int, int]]:
    """Offsets of ``[start, end)`` that no segment holds, as ranges."""
    gaps, at = [], start
    for segment in segments:
        if segment.start > at:
            gaps.append((at, segment.start))
        at = max(at, segment.end)
    return [*gaps, (at, end)] if at < end else gaps
