"""The times of a lane's status are told by the reader's clock, whatever the clock of the host that wrote them says."""

from __future__ import annotations

import json
import os
import time

import pytest

from mirror_pipeline.buffer.place.lane_file import STATUS, LaneFile, read_lane_file, write_lane_file
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.reports import Progress, TopicProgress

HOURS = 7200.0


def written(store: LaneStore, *, ahead: float, age: float) -> None:
    """A status of some seconds ago, of a host whose clock is ahead."""
    moment = time.time() - age
    write_lane_file(store, LaneFile(state="running", host="other", heartbeat=moment + ahead, started=moment + ahead - 60))
    os.utime(store.file(STATUS), (moment, moment))


@pytest.mark.parametrize("ahead", [HOURS, -HOURS, 0.0])
@pytest.mark.parametrize("age", [0.0, 100.0])
def test_a_heartbeat_is_as_old_as_it_is(store: LaneStore, ahead: float, age: float) -> None:
    written(store, ahead=ahead, age=age)
    file = read_lane_file(store)
    assert file.heartbeat is not None and file.started is not None
    assert abs(file.age - age) < 8
    assert file.heartbeat - file.started == pytest.approx(60)
    assert (file.target_down_since, file.running, file.stale) == (None, age == 0.0, age > 0.0)
    time.sleep(0.05)
    assert read_lane_file(store) == file, "one heartbeat reads the same each time"


def test_what_is_written_is_read_and_what_is_not_there_has_its_default(store: LaneStore) -> None:
    topic = TopicProgress(
        "east.t", 1, 2, 3, {0: 4}, {0: 5}, "halted", "r", "h", "trimmed", 0, (6, 7), "life", 8, {0: (9, 10, 11)}, True, 12.5
    )  # fmt: skip
    file = LaneFile(Progress("m", "lane-0", 1, topics={"t": topic}), "failed", "why", 3, house={"error": "none"}, time_up=True)
    write_lane_file(store, file)
    assert read_lane_file(store) == file
    older = {"state": "finished", "heartbeat": 1.0, "topics": {"t": {"target_topic": "east.t"}}, "of a newer version": 1}
    store.write_file(STATUS, json.dumps(older))
    assert read_lane_file(store) == LaneFile(Progress("", "", topics={"t": TopicProgress("east.t")}), "finished", heartbeat=1.0)


def test_what_was_said_of_a_topic_is_not_said_of_another_of_its_name() -> None:
    file = LaneFile(Progress("m", "lane-0", topics={"t": TopicProgress("t", end={0: 5}, incarnation="old")}))
    assert file.topic("t", "old").end == {0: 5}
    assert file.topic("t", "new").end == {}
    assert file.topic("other", "old").end == {}


def test_another_user_leaves_no_file_that_the_owner_could_not_write(store: LaneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    before = set(os.listdir(store.uri))
    assert abs(store.now() - time.time()) < 5
    assert set(os.listdir(store.uri)) == before
