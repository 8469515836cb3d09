"""Which offsets of a time range come from the buffer, and what is said of those that are nowhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.archive.move import move
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.buffer.spans.part_writer import PartFileWriter
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import BufferConfig
from mirror_pipeline.engine.tasks.read.rules import RangeRules
from mirror_pipeline.engine.tasks.read.span_builder import SpanBuilder
from mirror_pipeline.errors import UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.fetch import FetchedPartition
from mirror_pipeline.model import OffsetRange
from mirror_pipeline.operations.kept_ranges import KeptPlan, SourceLog
from mirror_pipeline.reports import RecordSource
from tests.support.buffer_samples import LIFE, life
from tests.support.source_batches import batch

EACH, SPANS = 10, 4
END = EACH * SPANS
BEGAN = 1000  # the time of offset 0; each offset is a millisecond later


def flow(folder: Path, *, lost: tuple[int, ...] = (), archive: int | None = 86_400, copied: int = SPANS) -> Flow:
    """A mirror that has copied offsets 0 to 39, ten in a span; all spans are in its archive but those that were lost."""
    config = BufferConfig(str(folder / "buffer"), durable=False, archive=archive)
    store = open_lane(config, "m", "lane-0")
    spans, kept, ledger = SpanTable(store, durable=False), Archive(store, durable=False), Ledger(store, durable=False)
    spans.ensure()
    ledger.ensure()
    if archive:
        kept.ensure()
    ledger.add_incarnation(life({0: 0}))
    for number in range(copied):
        start = EACH * number
        writer = PartFileWriter(store, number, 0, durable=False)
        planned = OffsetRange("orders", 0, start, start + EACH, 2**30, LIFE, hard_end=True)
        builder = SpanBuilder(RangeRules(planned, 10**6, holes_expected=False, record_gaps=False), writer.add)
        builder.take(FetchedPartition(0, -1, -1, -1, [], memoryview(batch(start, EACH))))
        builder.flush()
        part = writer.close()
        assert part is not None
        assert spans.commit(number, [part])
        if number in lost:
            spans.evict([number], target_bytes=0)
        elif archive:
            move(kept, spans, [number])
    return cast(Flow, SimpleNamespace(name="m", config=SimpleNamespace(buffer=config), lane_stores=lambda: [store]))


def log(first: int, at: int, to: int, *, end: int = END) -> SourceLog:
    """What a source says that still has the offsets from ``first`` on."""
    places = [min(max(first, time - BEGAN), end) for time in (at, to)]
    return SourceLog(LIFE, {0: first}, {0: end}, {0: (places[0], places[1])})


def planned(mirror: Flow, first: int, at: int, to: int, which: RecordSource = "auto", **more: Any) -> tuple[tuple[int, int], int | None]:
    found = KeptPlan(mirror, "orders", log(first, at, to, **more), which).ranges(at, to)
    return found.ranges[0], found.until.get(0)


@pytest.mark.parametrize(
    ("first", "at", "to", "which", "expected"),
    [
        (25, BEGAN + 3, BEGAN + 33, "auto", ((3, 33), 25)),
        (25, BEGAN + 3, BEGAN + 17, "auto", ((3, 17), 17)),
        (25, BEGAN + 28, BEGAN + 33, "auto", ((28, 33), None)),
        (0, BEGAN + 3, BEGAN + 33, "auto", ((3, 33), None)),
        (0, BEGAN + 3, BEGAN + 33, "buffer", ((3, 33), 33)),
        (25, BEGAN + 3, BEGAN + 33, "cluster", ((25, 33), None)),
        (END, 0, 10**9, "auto", ((0, END), END)),
        (END, 10**8, 10**9, "auto", ((END, END), None)),
        (25, 0, BEGAN, "auto", ((0, 0), None)),
    ],
)
def test_the_buffer_has_what_the_source_has_not(
    tmp_path: Path, first: int, at: int, to: int, which: RecordSource, expected: tuple[tuple[int, int], int | None]
) -> None:
    assert planned(flow(tmp_path), first, at, to, which) == expected


@pytest.mark.parametrize(
    ("lost", "first", "at", "to", "said"),
    [
        ((1,), 40, 0, 10**9, "10 to 19"),
        ((1,), 40, BEGAN + 15, BEGAN + 17, "10 to 19"),  # a record of that time may be among them
        ((0,), 40, 0, 10**9, "0 to 9"),
        ((0,), 40, BEGAN + 2, BEGAN + 5, "0 to 9"),
        ((3,), 35, BEGAN + 22, BEGAN + 39, "30 to 34"),
        ((3,), 35, BEGAN + 32, BEGAN + 39, "30 to 34"),
        ((0, 1, 2, 3), 40, 0, 10**9, "0 to 39"),
    ],
)
def test_what_is_nowhere_is_named_and_how_to_do_without_it(
    tmp_path: Path, lost: tuple[int, ...], first: int, at: int, to: int, said: str
) -> None:
    mirror = flow(tmp_path, lost=lost)
    with pytest.raises(UsageError) as raised:
        planned(mirror, first, at, to)
    assert raised.value.message.startswith(f"offsets {said} of orders[0] may belong to the time range and are neither on the source nor")
    assert raised.value.hint.startswith("--from-source copies what the source has; ")
    assert planned(mirror, first, at, to, "cluster")[1] is None


@pytest.mark.parametrize(("at", "to"), [(BEGAN + 22, BEGAN + 29), (BEGAN + 2, BEGAN + 8), (BEGAN + 36, BEGAN + 39)])
def test_what_is_lost_elsewhere_does_not_matter(tmp_path: Path, at: int, to: int) -> None:
    mirror = flow(tmp_path, lost=(1, 3))
    assert planned(mirror, 35, at, to)[0] == (at - BEGAN, to - BEGAN)


def test_an_archive_that_began_late_is_no_matter_while_the_source_has_the_records(tmp_path: Path) -> None:
    assert planned(flow(tmp_path, lost=(0, 1)), 0, BEGAN + 3, BEGAN + 33) == ((3, 33), None)


def test_the_buffer_alone_lacks_what_was_not_copied_yet(tmp_path: Path) -> None:
    mirror = flow(tmp_path, copied=3)
    with pytest.raises(UsageError, match=r"offsets 30 to 34 of orders\[0\] may belong to the time range and are not in the buffer"):
        planned(mirror, 0, BEGAN + 3, BEGAN + 35, "buffer")


def test_without_an_archive_nothing_changes(tmp_path: Path) -> None:
    mirror = flow(tmp_path, archive=None, lost=(0,))
    assert planned(mirror, 25, 0, 10**9) == ((25, END), None)
    with pytest.raises(UsageError, match=r"mirror m has no archive: buffer\.archive is not set"):
        planned(mirror, 25, 0, 10**9, "buffer")
