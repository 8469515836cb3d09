"""Neighbouring spans as one, and files of similar size as one: pure choices about what the archive looks like."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby

from mirror_pipeline.buffer.spans.compaction import SmallFile, filled
from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.model import NO_TIMESTAMP, LeafDigest, SpanRef

# A span in the archive grows to about this size: each has a row group, whose description takes about 2 KB.
MERGED_FILE_BYTES = 8 * 2**20
MERGED_HOLES = 10_000
# A file in the archive grows to about this size, and to this many spans: the description of them all is read to find one.
FILE_BYTES = 256 * 2**20
FILE_SPANS = 500
# So many files of similar size are joined; a span is then rewritten once each time its file grows by that factor.
FILES_TOGETHER = 8
SMALLEST_BYTES = 64 * 1024
# Digests are added modulo this.
DIGEST_LIMIT = 1 << 128


def day_of(milliseconds: int) -> str:
    """The UTC day of a time, as the archive's partitions name it: ``2026-11-24``."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d}"


def place_of(ref: SpanRef) -> tuple[int, str, int, int]:
    """The order of spans inside a file."""
    return ref.partition, ref.incarnation, ref.start, -ref.end


def merged(spans: Iterable[SpanRef], *, most_bytes: int = MERGED_FILE_BYTES) -> Iterator[tuple[SpanRef, ...]]:
    """Spans of one topic in the order of :func:`place_of`, and which of them become one: each continues the one before it."""
    chosen: list[SpanRef] = []
    size = holes = 0
    for ref in sorted(spans, key=place_of):
        last = chosen[-1] if chosen else None
        follows = last is not None and (last.partition, last.incarnation, last.end) == (ref.partition, ref.incarnation, ref.start)
        alike = last is not None and bool(last.digests or not last.records) == bool(ref.digests or not ref.records)
        if chosen and not (follows and alike and size + ref.bytes <= most_bytes and holes + len(ref.holes) <= MERGED_HOLES):
            yield tuple(chosen)
            chosen, size, holes = [], 0, 0
        chosen.append(ref)
        size, holes = size + ref.bytes, holes + len(ref.holes)
    if chosen:
        yield tuple(chosen)


def draft_of(spans: Sequence[SpanRef]) -> SpanDraft:
    """What spans that follow one another are together. Their digests are sums, so they add up."""
    first = spans[0]
    times = [ref for ref in spans if ref.max_timestamp != NO_TIMESTAMP]
    return SpanDraft(
        first.topic, first.partition, first.incarnation, first.start, spans[-1].end,
        records=sum(ref.records for ref in spans), batches=sum(ref.batches for ref in spans),
        min_timestamp=min((ref.min_timestamp for ref in times), default=NO_TIMESTAMP),
        max_timestamp=max((ref.max_timestamp for ref in times), default=NO_TIMESTAMP),
        holes=tuple(hole for ref in spans for hole in ref.holes), digests=summed(digest for ref in spans for digest in ref.digests),
    )  # fmt: skip


def summed(digests: Iterable[LeafDigest]) -> tuple[LeafDigest, ...]:
    """Digests of parts of leaves as those of the leaves."""
    sums: dict[int, int] = {}
    records: dict[int, int] = {}
    for each in digests:
        sums[each.leaf] = sums.get(each.leaf, 0) + int.from_bytes(each.digest, "big")
        records[each.leaf] = records.get(each.leaf, 0) + each.records
    return tuple(LeafDigest(leaf, (sums[leaf] % DIGEST_LIMIT).to_bytes(16, "big"), records[leaf]) for leaf in sorted(sums))


class ArchivedFile(SmallFile):
    """A live file of the archive and the number of its spans."""

    @property
    def tier(self) -> int:
        """Files of one tier differ in size by less than ``TOGETHER`` times."""
        return int(math.log(max(self.file.size, SMALLEST_BYTES) / SMALLEST_BYTES, FILES_TOGETHER))


def joinable(files: Iterable[ArchivedFile], *, over: str) -> list[list[LiveFile]]:
    """Which files to join with which: those of one topic and day.

    Args:
        files: the live files.
        over: nothing is added any more to days before this one: what is small in them becomes one file. In later days
            ``TOGETHER`` files of similar size are joined.
    """
    small = [f for f in files if 2 * f.file.size < FILE_BYTES and 2 * f.spans < FILE_SPANS]
    keyed = sorted(small, key=lambda f: (f.file.values, 0 if f.file.values[1] < over else 1 + f.tier, f.file.modified, f.file.path))
    groups = []
    for (values, _), members in groupby(keyed, key=lambda f: (f.file.values, 0 if f.file.values[1] < over else 1 + f.tier)):
        fewest = 2 if values[1] < over else FILES_TOGETHER
        groups += [group for group in filled(members, most_bytes=FILE_BYTES, most_spans=FILE_SPANS) if len(group) >= fewest]
    return groups
