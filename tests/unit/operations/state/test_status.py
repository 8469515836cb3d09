"""What `status` says of a lane, from its own files."""

from __future__ import annotations

import time
from pathlib import Path

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.place.lane_file import LaneFile, write_lane_file
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.config.settings import BufferConfig
from mirror_pipeline.model import Decision, DecisionKind
from mirror_pipeline.operations.state.ledger_view import ledger_view
from mirror_pipeline.operations.state.status import lane_status
from mirror_pipeline.reports import LaneStatus, Progress, TopicProgress


def status(store: LaneStore) -> LaneStatus:
    (lane,) = ledger_view([store]).lanes
    return lane_status(lane)


def test_a_lane_from_its_first_day_to_a_decision(tmp_path: Path) -> None:
    store = open_lane(BufferConfig(str(tmp_path / "buffer"), durable=False), "m", "lane-0")
    assert (status(store).state, status(store).heartbeat, status(store).decided) == ("never run", None, None)
    halted = TopicProgress("east.t", state="halted", reason="trimmed", code="trimmed")
    write_lane_file(store, LaneFile(Progress("m", "lane-0", topics={"t": halted}), "running", heartbeat=time.time() - 90, decisions=-1))
    assert (status(store).state, status(store).topics[0].state) == ("stale", "halted")
    moment = int(time.time() * 1000)
    Decisions(store, durable=False).add([Decision("t", 0, "now", DecisionKind.GAP, 0, 5, "", "me", moment)])
    decided = status(store)
    assert (decided.decided, decided.topics[0].state) == (moment / 1000, "accepted")
    write_lane_file(store, LaneFile(Progress("m", "lane-0", topics={"t": halted}), "finished", heartbeat=time.time(), decisions=0))
    assert (status(store).state, status(store).topics[0].state) == ("finished", "halted"), "the run knew of the decision"
