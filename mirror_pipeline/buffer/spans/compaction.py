"""Small part files of spans become larger ones: fewer files for the same spans, each still in its own row group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.tables.index import rewritten
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.buffer.tables.schema import SPANS
from mirror_pipeline.model import PartFile, SpanRef

# A joined file grows to about this size.
JOINED_BYTES = 64 * 2**20
# ... and to this many spans: the description of a row group takes about 2 KB of the file's end.
JOINED_SPANS = 500
# Joining fewer files than this would write the same bytes again and again for little.
FEWEST = 8


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A live file that may be joined: how many spans it holds, and how large it is."""

    file: LiveFile
    spans: int


def groups(files: Iterable[SmallFile], *, most_bytes: int = JOINED_BYTES, most_spans: int = JOINED_SPANS) -> list[list[LiveFile]]:
    """Which files to join with which, oldest first: pure.

    Files that are at least half full are not rewritten, so a span is rewritten only a few times.
    """
    small = [f for f in files if 2 * f.file.size < most_bytes and 2 * f.spans < most_spans]
    oldest = sorted(small, key=lambda f: (f.file.micro_batch, f.file.path))
    return [group for group in filled(oldest, most_bytes=most_bytes, most_spans=most_spans) if len(group) >= FEWEST]


def filled(files: Iterable[SmallFile], *, most_bytes: int, most_spans: int) -> Iterator[list[LiveFile]]:
    """Files in turn, in groups that are no larger than one file may become."""
    group: list[LiveFile] = []
    size = spans = 0
    for each in files:
        if group and (size + each.file.size > most_bytes or spans + each.spans > most_spans):
            yield group
            group, size, spans = [], 0, 0
        group.append(each.file)
        size, spans = size + each.file.size, spans + each.spans
    if group:
        yield group


def write_joined(
    store: LaneStore, group: Sequence[LiveFile], spans: Mapping[str, Sequence[SpanRef]], *, durable: bool = True
) -> PartFile:
    """Write the spans of ``group`` into one new file, in order; it is invisible until it is committed.

    The file stands under the newest micro-batch of its parts. Memory use is that of the largest span.

    Args:
        store: the lane.
        group: the files.
        spans: of each file by its path, in its order.
        durable: bring the file to the disk (local paths).

    Raises:
        BufferDamaged: another program has rewritten a file.
        BufferUnusable: a file cannot be read, or the new one not be written (it is removed then).
    """
    writer = PartFileWriter(store, max(file.micro_batch for file in group), "joined", durable=durable)
    try:
        with SpanReader(store, open_files=1) as reader:
            for file in group:
                refs, times = spans[file.path], reader.staged_at(file.path)
                if len(refs) != len(times):
                    raise rewritten(store.table(SPANS.name), file.path)
                for ref, at in zip(refs, times, strict=True):
                    writer.copy(ref, reader.payload(ref), at)
        part = writer.close()
    except BaseException:
        writer.abort()
        raise
    assert part is not None  # noqa: S101 - no file is without spans
    return part
