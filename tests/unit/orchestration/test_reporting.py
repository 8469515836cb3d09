"""When a lane speaks: by time, soon after a change of state, and not about idle topics."""

from __future__ import annotations

from mirror_pipeline.lags import LASTING_SECONDS
from mirror_pipeline.orchestration.reporting import STATE_CHANGE_SPACING_SECONDS, LaneReporter, TopicReport
from mirror_pipeline.reports import Progress, TopicProgress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def picture(seconds: float = 1.0, **topics: TopicProgress) -> Progress:
    return Progress("m", "lane-0", seconds=seconds, micro_batches=int(seconds), topics=topics)


def copied(records: int, lag: int = 0, state: str = "ok", reason: str = "") -> TopicProgress:
    return TopicProgress("t", records, records * 10, lag, {0: records}, {0: records + lag}, state, reason)


def spoken(reporter: LaneReporter, progress: Progress) -> list[str]:
    return [report.topic for report in reporter.due(progress)]


def test_first_records_are_reported_at_once_then_once_an_interval() -> None:
    clock = Clock()
    reporter = LaneReporter(30.0, clock=clock)
    assert spoken(reporter, picture(a=copied(0, lag=9))) == []
    assert spoken(reporter, picture(a=copied(5, lag=4))) == ["a"]
    clock.now += 29
    assert spoken(reporter, picture(a=copied(9))) == []
    clock.now += 1
    assert spoken(reporter, picture(a=copied(9))) == ["a"]
    clock.now += 3600
    assert spoken(reporter, picture(a=copied(9))) == [], "nothing new: silent"


def test_a_halt_is_reported_at_once_and_marked() -> None:
    clock = Clock()
    reporter = LaneReporter(30.0, clock=clock)
    assert spoken(reporter, picture(a=copied(5))) == ["a"]
    clock.now += STATE_CHANGE_SPACING_SECONDS
    (report,) = reporter.due(picture(a=copied(5, 4, "halted", "gone")))
    assert (report.state, report.materializes, report.state_changed) == ("halted", False, True)
    assert report.metadata["reason"] == "gone"


def test_a_flickering_state_does_not_flood_the_event_log() -> None:
    clock = Clock()
    reporter = LaneReporter(30.0, clock=clock)
    count = 0
    for step in range(100):
        clock.now += 0.1
        count += len(reporter.due(picture(a=copied(1, 1, "behind" if step % 2 else "ok"))))
    assert count <= 1 + 10 / STATE_CHANGE_SPACING_SECONDS


def test_the_last_word_leaves_idle_topics_out_unless_asked() -> None:
    reporter = LaneReporter(30.0, clock=Clock())
    end = picture(idle=copied(0), busy=copied(3), ill=copied(0, 1, "behind", "target down"))
    assert [report.topic for report in reporter.final(end)] == ["busy", "ill"]
    asked = reporter.closing(end, "idle")
    assert asked is not None and asked.metadata["records"] == 0
    assert reporter.closing(end, "unknown") is None


def test_ranges_start_where_the_run_started_and_rates_cover_the_interval() -> None:
    clock = Clock()
    reporter = LaneReporter(10.0, clock=clock)
    first = TopicProgress("t", 0, 0, 10, {0: 100, 1: 7}, {0: 110, 1: 7})
    assert spoken(reporter, picture(a=first)) == []
    clock.now += 10
    (one,) = reporter.due(picture(seconds=10.0, a=TopicProgress("t", 5, 50, 5, {0: 105, 1: 7}, {0: 110, 1: 7})))
    assert one.metadata["offset_ranges"].value == {"0": [100, 105], "1": [7, 7]}
    assert one.metadata["records_per_second"] == 0.5
    clock.now += 10
    (two,) = reporter.due(picture(seconds=20.0, a=TopicProgress("t", 10, 100, 0, {0: 110, 1: 7}, {0: 110, 1: 7})))
    assert two.metadata["records_per_second"] == 0.5
    assert two.metadata["bytes_per_second"] == 5.0
    assert "lag_seconds" not in two.metadata, "not known is not zero"


def test_lag_in_seconds_is_the_lanes_and_zero_for_a_topic_without_lag() -> None:
    progress = picture(a=copied(3, lag=1), b=copied(3))
    progress.lag_seconds = 7.0
    assert [report.metadata["lag_seconds"] for report in LaneReporter(1.0, clock=Clock()).final(progress)] == [7.0, 0.0]


def test_what_waits_for_a_cluster_says_since_when_and_becomes_an_error_once_it_lasts() -> None:
    clock, wall = Clock(), Clock()
    reporter = LaneReporter(30.0, clock=clock, wall_clock=wall)
    assert spoken(reporter, picture(a=copied(5))) == ["a"]

    def later(seconds: float, topic: TopicProgress) -> list[TopicReport]:
        clock.now += seconds
        wall.now += seconds
        return reporter.due(picture(a=topic))

    assert later(1, copied(5, 4, "behind", "down")) == [], "the last report is too young"
    (first,) = later(STATE_CHANGE_SPACING_SECONDS, copied(5, 4, "behind", "down"))
    assert (first.lasting, first.metadata["since"].value) == (False, 1001.0), "the time of the outage, not of the report"
    (second,) = later(LASTING_SECONDS, copied(5, 4, "behind", "down"))
    assert (second.lasting, second.state_changed, second.metadata["since"].value) == (True, True, 1001.0)
    assert later(LASTING_SECONDS, copied(5, 4, "behind", "down")) == []
    (back,) = later(1, copied(9))
    assert (back.state, back.lasting, "since" in back.metadata) == ("ok", False, False)


def test_an_outage_is_as_old_as_the_run_before_knew() -> None:
    reporter = LaneReporter(30.0, clock=Clock(), wall_clock=Clock(), waited={"a": 400.0}.get)
    (report,) = reporter.due(picture(a=copied(0, 4, "behind", "down"), b=copied(0)))
    assert (report.lasting, report.metadata["since"].value) == (True, 400.0)
