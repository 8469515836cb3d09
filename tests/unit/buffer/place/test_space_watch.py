"""What staging and housekeeper know of the room while both look."""

from __future__ import annotations

from typing import Any

import pytest

from mirror_pipeline.buffer.place import space
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.space import SpaceWatch


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
