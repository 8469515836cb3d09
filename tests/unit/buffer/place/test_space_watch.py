"""What staging and housekeeper know of the room while both look."""

from __future__ import annotations

from typing import Any

import pytest

from mirror_pipeline.buffer.place import space
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.space import (
    LONGEST_LOOK_SECONDS,
    OTHERS_BYTES_PER_SECOND,
    SPACE_LOOK_SECONDS,
    SPARE_BYTES,
    BufferSpace,
    SpaceWatch,
)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> SpaceWatch:
    monkeypatch.setattr(space, "buffer_use", lambda store: {})
    monkeypatch.setattr(space, "free_bytes", lambda store: 10**12)
    return SpaceWatch(LaneStore("/nowhere"), cap=10_000, micro_batch=1_000)


def test_what_is_staged_while_somebody_looks_is_not_forgotten(watch: SpaceWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(store: LaneStore) -> dict[str, Any]:
        if not staged:
            staged.append(watch.cached(700))
        return {}

    watch.measure()
    staged: list[Any] = []
    monkeypatch.setattr(space, "buffer_use", slow)
    assert watch.measure().used == 700
    assert watch.cached(0).used == 700


def test_a_larger_micro_batch_counts_at_once(watch: SpaceWatch) -> None:
    watch.measure()
    assert watch.cached(100).reserve == 1_250
    assert watch.cached(2_000).reserve == 2_500


def test_a_measurement_counts_the_longer_the_more_space_is_left() -> None:
    cap = 10**12
    assert BufferSpace(0, cap, cap, 10**6).look_seconds == LONGEST_LOOK_SECONDS
    second = OTHERS_BYTES_PER_SECOND
    assert BufferSpace(cap - 3 * second, cap, cap, 0).look_seconds == 3.0
    assert BufferSpace(0, cap, 3 * second + SPARE_BYTES, 0).look_seconds == 3.0
    assert BufferSpace(cap, cap, cap, 10**6).look_seconds == SPACE_LOOK_SECONDS


def test_a_fresh_measurement_of_an_empty_buffer_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "free_bytes", lambda store: 10**12)
    looks: list[LaneStore] = []
    monkeypatch.setattr(space, "buffer_use", lambda store: looks.append(store) or {})
    watch = SpaceWatch(LaneStore("/nowhere"), cap=10**12, micro_batch=1_000)
    watch.measure()
    watch._at -= LONGEST_LOOK_SECONDS / 2
    assert watch.cached(10).used == 10
    assert len(looks) == 1
    watch._at -= LONGEST_LOOK_SECONDS
    watch.cached(0)
    assert len(looks) == 2


def test_a_batch_that_was_larger_than_planned_does_not_fill_a_small_disk_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = 44 * 2**20
    monkeypatch.setattr(space, "buffer_use", lambda store: {})
    monkeypatch.setattr(space, "free_bytes", lambda store: disk)
    watch = SpaceWatch(LaneStore("/nowhere"), cap=10**12, micro_batch=1_000_000)
    watch.measure()
    watch.cached(32 * 2**20)
    now = watch.measure()
    assert now.why_full == "" and now.reserve + SPARE_BYTES < disk
