"""The times of a lane's status are told by the reader's clock, whatever the clock of the host that wrote them says."""

from __future__ import annotations

import os
import time

import pytest

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.status import STATUS, TIMES, read_status, write_status

HOURS = 7200.0


def written(store: LaneStore, *, ahead: float, age: float) -> None:
    """A status of some seconds ago, of a host whose clock is ahead."""
    moment = time.time() - age
    body = {"state": "running", "host": "other", "target_down_since": None, "heartbeat": moment + ahead, "started": moment + ahead - 60}
    write_status(store, body)
    os.utime(store.file(STATUS), (moment, moment))


@pytest.mark.parametrize("ahead", [HOURS, -HOURS, 0.0])
@pytest.mark.parametrize("age", [0.0, 100.0])
def test_a_heartbeat_is_as_old_as_it_is(store: LaneStore, ahead: float, age: float) -> None:
    written(store, ahead=ahead, age=age)
    body = read_status(store)
    assert body is not None
    assert abs(time.time() - body["heartbeat"] - age) < 8
    assert body["heartbeat"] - body["started"] == pytest.approx(60)
    assert body["target_down_since"] is None and set(body) & set(TIMES) == {"heartbeat", "started", "target_down_since"}
    time.sleep(0.05)
    assert read_status(store) == body, "one heartbeat reads the same each time"


def test_another_user_leaves_no_file_that_the_owner_could_not_write(store: LaneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    before = set(os.listdir(store.uri))
    assert abs(store.now() - time.time()) < 5
    assert set(os.listdir(store.uri)) == before
