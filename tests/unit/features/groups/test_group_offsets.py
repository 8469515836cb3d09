"""The table of carried offsets: the latest row counts, also after its files were joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.buffer.tables import latest
from mirror_pipeline.features.groups.group_offsets import CarriedOffset, GroupOffsets, GroupPartition
from tests.support.buffer_samples import Settings


def row(group: str, partition: int, source: int, *, back: bool = False) -> CarriedOffset:
    key = GroupPartition(group, "orders", partition)
    return CarriedOffset(key, source, f"note {source}", source + 1_000, source + 999, back, 1_700_000_000_000 + source)


def test_the_latest_row_of_each_partition_counts(tmp_path: Path) -> None:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "groups")
    table = GroupOffsets(store, durable=False)
    assert table.read() == {}
    table.add([])
    table.add([row("a", 0, 1), row("a", 1, 2), row("b", 0, 3)])
    table.add([row("a", 0, 7, back=True)])
    expected = {r.key: r for r in (row("a", 0, 7, back=True), row("a", 1, 2), row("b", 0, 3))}
    assert table.read() == expected
    assert GroupOffsets(store).read() == expected  # another process


def test_joined_files_say_the_same_in_fewer_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_lane(Settings(str(tmp_path / "buffer")), "m", "groups")
    table = GroupOffsets(store, durable=False)
    for source in range(12):
        table.add([row("a", source % 3, source)])
    expected = table.read()
    monkeypatch.setattr(latest, "MAX_LATEST_FILES", 4)
    table.maintain()
    assert table.read() == expected
    assert {r.source_offset for r in expected.values()} == {9, 10, 11}
    from mirror_pipeline.buffer.tables.files import read_rows

    assert table._table is not None and read_rows(table._table._log).num_rows == 3
    table.add([row("a", 0, 99)])
    assert table.read()[GroupPartition("a", "orders", 0)].source_offset == 99


def test_before_the_first_round_nothing_is_there_and_nothing_can_be_added() -> None:
    table = GroupOffsets(None)
    assert table.read() == {}
    table.maintain()
    with pytest.raises(AssertionError):
        table.add([row("a", 0, 1)])
