"""What is read to find spans in a large archive, and which span stands for an offset that several have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirror_pipeline.buffer.archive.archive import Archive, NewFile
from mirror_pipeline.buffer.archive.merged import FILE_SPANS, day_of
from mirror_pipeline.buffer.archive.selection import KeptSpan, KeptTopic, SpanSegment, covering, missing
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter, SpanDraft
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.tables.schema import ARCHIVE
from mirror_pipeline.model import SpanRef
from tests.support.buffer_samples import LIFE, Settings

TOPICS, PARTITIONS, SPANS = 10, 5, 50_000
HOUR = 3_600_000
PAYLOAD = 4096
BEGAN = 1_760_000_000_000 // 86_400_000 * 86_400_000


def filled(store: LaneStore) -> tuple[Archive, int]:
    """An archive of 50,000 spans, in the files that the real writer makes: for each topic 100 hours, for each hour 10 spans a partition."""
    archive = Archive(store, durable=False)
    archive.ensure()
    files, size, version = list[NewFile](), 0, 0
    payload = os.urandom(PAYLOAD)
    each = SPANS // TOPICS
    for topic in range(TOPICS):
        writer = None
        for number in range(each):
            hour, turn = divmod(number, 50)
            partition, step = turn % PARTITIONS, turn // PARTITIONS
            start = 100 * (10 * hour + step)
            at = BEGAN + HOUR * hour + step * HOUR // 10
            if number % FILE_SPANS == 0:
                writer = PartFileWriter(store, 0, 0, durable=False, spec=ARCHIVE)
            assert writer is not None
            span = SpanDraft(f"topic-{topic}", partition, LIFE, start, start + 100, 100, 1, at, at + HOUR // 10 - 1)
            writer.add(span, payload, at)
            if number % FILE_SPANS == FILE_SPANS - 1:
                part = writer.close()
                assert part is not None
                size += part.size
                files.append(NewFile((f"topic-{topic}", day_of(at)), part, at))
    assert archive.add(files, version)
    return archive, size


def bytes_read() -> int:
    """What this process has read by system calls so far."""
    rows = Path("/proc/self/io").read_text().split("\n")
    return int(next(row for row in rows if row.startswith("rchar")).split()[1])


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes by /proc")
def test_one_hour_of_one_topic_is_found_among_50_000_spans_without_reading_other_payloads(tmp_path: Path) -> None:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    archive, size = filled(store)
    assert archive.totals().spans == SPANS
    hour = 57
    since, until = BEGAN + HOUR * hour, BEGAN + HOUR * (hour + 1)

    before = bytes_read()
    topic = KeptTopic([store], "topic-3", LIFE)
    low, high = (topic.first_since(at, range(PARTITIONS)) for at in (since, until))
    ranges = {number: (low[number].ref.start, high[number].ref.start) for number in range(PARTITIONS)}
    segments = topic.segments(ranges)
    looked = bytes_read() - before

    assert ranges == {number: (1000 * hour, 1000 * (hour + 1)) for number in range(PARTITIONS)}
    chosen = [segment for found in segments.values() for segment in found]
    assert len(chosen) == 50
    assert all(since <= segment.span.ref.min_timestamp and segment.span.ref.max_timestamp < until for segment in chosen)
    assert all(missing(segments[number], *bounds) == [] for number, bounds in ranges.items())
    print(f"{looked:,} bytes were read to choose among {size:,}")
    # Delta's log, and the descriptions of the two files that may hold something, each read for its start, its end and its spans.
    assert looked < size // 25
    # The payloads are mapped from the file: those of the chosen spans and no others.
    with SpanReader(store, table=ARCHIVE.name) as reader:
        assert sum(len(reader.payload(segment.span.ref)) for segment in chosen) == 50 * PAYLOAD


def kept(start: int, end: int, life: str = LIFE, table: str = ARCHIVE.name) -> KeptSpan:
    ref = SpanRef("t", 0, life, 0, start, end, end - start, 1, 10, 0, 0, (), "p", 0)
    return KeptSpan(LaneStore("/nowhere/m/lane-0"), table, ref)


def cut(found: list[SpanSegment]) -> list[tuple[int, int, int]]:
    return [(segment.start, segment.end, segment.span.ref.start) for segment in found]


def test_each_offset_comes_once_however_many_spans_have_it() -> None:
    joined, small = kept(0, 20), [kept(0, 10, table="spans"), kept(10, 20, table="spans"), kept(20, 30, table="spans")]
    assert cut(list(covering([*small, joined], 0, 30))) == [(0, 20, 0), (20, 30, 20)]
    assert cut(list(covering([*small, joined], 5, 25))) == [(5, 20, 0), (20, 25, 20)]
    assert list(covering([], 0, 10)) == []


def test_a_later_generation_overrides_an_earlier_one() -> None:
    """The log was truncated at 60 and continued with other records."""
    found = list(covering([kept(0, 100), kept(60, 80, f"{LIFE}/2"), kept(80, 120, f"{LIFE}/2")], 0, 120))
    assert cut(found) == [(0, 60, 0), (60, 80, 60), (80, 120, 80)]


def test_missing_offsets_are_named() -> None:
    assert missing(covering([kept(10, 20), kept(30, 40)], 0, 50), 0, 50) == [(0, 10), (20, 30), (40, 50)]
    assert missing(covering([kept(0, 50)], 10, 40), 10, 40) == []


def test_an_empty_archive_has_nothing(tmp_path: Path) -> None:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "lane-0")
    Archive(store, durable=False).ensure()
    topic = KeptTopic([store], "t", LIFE)
    assert topic.archived
    assert topic.first_since(None, [0]) == {}
    assert topic.segments({0: (0, 10)}) == {0: []}
