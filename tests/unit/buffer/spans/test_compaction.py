"""Small part files joined: the same spans, fewer files, and nobody who reads is disturbed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.buffer.place.lock import last_maintenance, maintenance_lock, note_maintenance
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.usage import buffer_use, free_bytes, lane_use
from mirror_pipeline.buffer.spans.compaction import FEWEST, SmallFile, groups
from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.buffer.tables.local_log import LiveFile
from mirror_pipeline.errors import BufferDamaged
from mirror_pipeline.model import PartFile
from tests.support.buffer_samples import LIFE, draft

Stage = Callable[..., PartFile]
sizes = st.lists(st.tuples(st.integers(1, 100), st.integers(1, 20)), max_size=60)


@given(sizes)
def test_groups_hold_their_bounds(files: list[tuple[int, int]]) -> None:
    small = [SmallFile(LiveFile(f"p{n}", size, n, n), spans) for n, (size, spans) in enumerate(files)]
    found = groups(small, most_bytes=100, most_spans=30)
    by_path = {each.file.path: each for each in small}
    chosen = [file.path for group in found for file in group]
    assert len(chosen) == len(set(chosen))
    for group in found:
        assert len(group) >= FEWEST
        assert sum(file.size for file in group) <= 100
        assert sum(by_path[file.path].spans for file in group) <= 30
        assert [file.micro_batch for file in group] == sorted(file.micro_batch for file in group)
    assert all(2 * by_path[path].file.size < 100 and 2 * by_path[path].spans < 30 for path in chosen)


def test_joining_again_and_again_ends() -> None:
    """Every round makes fewer files or none: a span is not written again for ever."""
    files = [SmallFile(LiveFile(f"p{n}", 10, n, n), 1) for n in range(500)]
    rounds = 0
    while found := groups(files, most_bytes=1000, most_spans=100):
        rounds += 1
        gone = {file.path for group in found for file in group}
        made = [
            SmallFile(LiveFile(f"j{rounds}-{n}", sum(f.size for f in group), 0, group[-1].micro_batch), len(group))
            for n, group in enumerate(found)
        ]
        files = [f for f in files if f.file.path not in gone] + made
    assert rounds <= 3
    assert len(files) <= 2 * 500 * 10 / 1000 + FEWEST


def staged_times(spans: SpanTable) -> dict[tuple[int, int], object]:
    """When each span was staged, by partition and start."""
    rows = pq.ParquetDataset([f"{spans._log.uri}/{path}" for path in spans._log.files()]).read(["partition", "start_offset", "staged_at"])
    return {(row["partition"], row["start_offset"]): row["staged_at"] for row in rows.to_pylist()}


def test_a_file_that_another_program_has_rewritten_is_not_joined(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    fill(spans, stage, FEWEST)
    path = Path(store.table("spans"), min(spans._log.files()))
    pq.write_table(pq.read_table(path, partitioning=None).slice(0, 1), path)
    with pytest.raises(BufferDamaged, match="rewritten by another program"):
        spans.join(set(range(FEWEST)), most=1)
    assert not list(path.parent.glob("*-joined-*")), "nothing half-written"


def fill(spans: SpanTable, stage: Stage, count: int, payload: Callable[[int], bytes] = lambda n: b"%d" % n) -> None:
    for number in range(count):
        part = stage(number, [draft(number, number + 1), draft(number, number + 1, partition=1)], payload=payload(number))
        assert spans.commit(number, [part])


@pytest.mark.parametrize("known", [True, False], ids=["the writer", "another process"])
def test_joined_spans_are_the_same_spans(store: LaneStore, spans: SpanTable, stage: Stage, known: bool) -> None:
    fill(spans, stage, 20, lambda n: b"payload %d" % n)
    before = spans.spans()
    times = staged_times(spans)
    spans = spans if known else SpanTable(store)
    assert spans.join(set(range(18)), most=30) == 0
    assert spans.join(set(range(18)), most=1) == 18
    assert spans.live_files() == 3
    joined = next(Path(spans._log.uri).glob("*-joined-*"))
    assert pq.ParquetFile(joined).metadata.num_row_groups == 36, "one for each span"
    assert staged_times(spans) == times
    for table in (spans, SpanTable(store)):
        after = table.spans()
        assert [replace(r, path="", row_group=0, micro_batch=0) for r in after] == [
            replace(r, path="", row_group=0, micro_batch=0) for r in before
        ]
        with SpanReader(store) as reader:
            assert [bytes(reader.payload(ref)) for ref in after] == [b"payload %d" % (n % 20) for n in range(40)]
            # The old files are still there for whoever reads them.
            assert [bytes(reader.payload(ref)) for ref in before] == [b"payload %d" % (n % 20) for n in range(40)]
        assert table.last_micro_batch() == 19
    assert {ref.micro_batch for ref in spans.spans()} == {17, 18, 19}
    late = stage(19, [draft(99, 100)])
    assert spans.commit(19, [late]) is False
    assert spans.vacuum(grace=0) > 0
    assert spans.disk_bytes() == spans.bytes() + late.size
    assert [r.start for r in SpanTable(store).spans()] == [r.start for r in before]


def test_a_joined_file_keeps_the_time_of_its_newest_part(spans: SpanTable, stage: Stage) -> None:
    fill(spans, stage, 10)
    staged = max(file.modified for file in spans._log.files().values())
    assert spans.join(set(range(10)), most=1) == 10
    assert [file.modified for file in spans._log.files().values()] == [staged]
    assert spans.evict({9}, older_than=staged) == []
    assert spans.evict({9}, older_than=staged + 1) == [9]


def test_joining_what_somebody_else_evicted_writes_nothing(
    store: LaneStore, spans: SpanTable, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(spans, stage, 10)
    from mirror_pipeline.buffer.spans import spans as module

    really = vars(module)["write_joined"]

    def meanwhile(*args: object, **named: object) -> object:
        assert SpanTable(store, durable=False).evict({3}, target_bytes=0) == [3]
        return really(*args, **named)

    monkeypatch.setattr(module, "write_joined", meanwhile)
    assert spans.join(set(range(10)), most=1) == 0
    assert [ref.micro_batch for ref in SpanTable(store).spans() if ref.partition == 0] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert not [name for name in os.listdir(store.table("spans")) if "joined" in name]


def test_spans_are_listed_while_files_come_and_go(
    store: LaneStore, spans: SpanTable, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(spans, stage, 10)
    reader = SpanTable(store)
    files = reader._log.files()
    assert spans.join(set(range(10)), most=1) == 10
    assert spans.vacuum(grace=0) > 0
    really = type(reader._log).files
    calls: list[int] = []

    def late(log: object) -> object:
        calls.append(1)
        return files if len(calls) == 1 else really(log)  # type: ignore[arg-type]

    monkeypatch.setattr(type(reader._log), "files", late)
    assert len(reader.spans()) == 20
    assert len(calls) > 1


def test_what_was_never_committed_can_be_thrown_away(spans: SpanTable, stage: Stage) -> None:
    fill(spans, stage, 2)
    left = stage(2, [draft(5, 6)])
    assert spans.discard_uncommitted() == left.size
    assert spans.discard_uncommitted() == 0
    assert len(spans.spans()) == 4


def test_eviction_counts_spans_too(spans: SpanTable, stage: Stage) -> None:
    fill(spans, stage, 6)
    spans.spans()
    assert spans.demanded(set(range(6)), target_spans=12) == []
    assert spans.demanded(set(range(6)), target_spans=7) == [0, 1, 2]
    assert spans.evict({1, 2, 5}, target_spans=7) == [1, 2, 5]


def test_one_process_maintains_a_lane_at_a_time(store: LaneStore) -> None:
    assert last_maintenance(store) is None
    with maintenance_lock(store) as ours, maintenance_lock(store) as theirs:
        assert (ours, theirs) == (True, False)
    os.utime(store.file("house"), (5, 5))
    with maintenance_lock(store) as again:
        assert again
    assert last_maintenance(store) == 5
    note_maintenance(store)
    assert time.time() - (last_maintenance(store) or 0) < 60


def test_the_disk_is_counted_as_it_is(store: LaneStore, spans: SpanTable, stage: Stage) -> None:
    fill(spans, stage, 3, lambda n: b"x" * 100_000)
    use = lane_use(store)
    assert use.spans >= spans.disk_bytes() >= 600_000
    assert use.logs > 0 and use.log_files == 4
    assert not use.running
    Path(store.uri, "lock").write_text("{}")
    whole = buffer_use(store)
    assert list(whole) == ["east-to-west/lane-0"]
    assert whole["east-to-west/lane-0"].running
    assert use.total < whole["east-to-west/lane-0"].total < use.total + 10_000
    assert free_bytes(store) > 0
    assert lane_use(LaneStore(store.uri + "/nowhere")).total == 0


def test_produced_and_verified_together_decide(spans: SpanTable, stage: Stage) -> None:
    from mirror_pipeline.buffer.spans.eviction import safe_ends

    fill(spans, stage, 4)
    produced = {("orders", 0, LIFE): 4, ("orders", 1, LIFE): 3}
    assert spans.produced(safe_ends(produced, {})) == set()
    assert spans.produced(safe_ends(produced, {("orders", 0, LIFE): 4})) == set()
    assert spans.produced(safe_ends(produced, {("orders", 0, LIFE): 2, ("orders", 1, LIFE): 9})) == {0, 1}
    assert spans.produced(safe_ends(produced, {("orders", 0, LIFE): 9, ("orders", 1, LIFE): 9})) == {0, 1, 2}
