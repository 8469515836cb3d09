from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from mirror_pipeline.cli.show.meter import Meter
from mirror_pipeline.cli.show.progress import Bars, Lines, view_for
from mirror_pipeline.cli.show.run_progress import RunContent
from mirror_pipeline.reports import TopicProgress
from tests.support.cli_fakes import progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.fixture
def paper() -> Console:
    return Console(file=io.StringIO(), width=100)


@pytest.fixture
def screen() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)


def test_speed_is_that_of_the_last_seconds() -> None:
    meter = Meter()
    meter.read(progress(records=0, bytes=0), 0.0)
    for second in (90.0, 100.0):
        meter.read(progress(records=0, bytes=0), second)
    sample = meter.read(progress(records=1000, bytes=50_000_000, total_records=3000, lag_records=2000), 110.0)
    assert (sample.bytes_per_second, sample.records_per_second) == (2_500_000.0, 50.0)
    assert sample.seconds_left == 40.0
    assert sample.fraction == pytest.approx(1 / 3)


def test_a_stall_is_shown_as_one() -> None:
    meter = Meter()
    for second in range(60):
        sample = meter.read(progress(records=min(second, 10)), float(second))
    assert sample.records_per_second == 0.0 and sample.seconds_left is None


def test_nothing_to_do_is_done() -> None:
    sample = Meter().read(progress(records=0, bytes=0, total_records=0, lag_records=0), 0.0)
    assert sample.fraction == 1.0 and sample.seconds_left == 0.0


def test_which_view(paper: Console, screen: Console) -> None:
    assert isinstance(view_for(paper, "", RunContent()), Lines)
    assert isinstance(view_for(screen, "", RunContent()), Bars)


def test_lines_are_quiet(paper: Console) -> None:
    clock = Clock()
    with Lines(paper, "starting", RunContent(), clock) as view:
        for _ in range(101):  # 20 s at five observations a second
            view.observe(progress(records=500, total_records=1000, lag_records=500))
            clock.now += 0.2
    lines = written(paper)
    assert lines[0] == "starting"
    assert len(lines) == 1 + 2
    assert lines[1] == "m: 500 records, 5.0 MB, 0.0 MB/s, lag 500, reading"


def test_lines_say_at_once_what_matters(paper: Console) -> None:
    clock = Clock()
    halted = {"pay": TopicProgress("east.pay", state="halted", reason="record too large")}
    with Lines(paper, "starting", RunContent(), clock) as view:
        view.observe(progress())
        view.observe(progress(target_down="west does not answer", staged_records=9))
        view.observe(progress(target_down="west does not answer", staged_records=99, topics=dict(halted)))
        view.observe(progress(topics=dict(halted)))
    assert written(paper)[1:] == [
        "m: target down: west does not answer; 9 records staged so far, staging continues",
        "m: pay halted: record too large",
        "m: target reachable again",
    ]


def test_bars(screen: Console) -> None:
    clock = Clock()
    view = Bars(screen, "starting Spark", RunContent(), clock)
    screen.print(view.render())
    assert "starting Spark, 0 s" in written(screen)[-1]
    view.observe(progress(records=0, bytes=0))
    clock.now += 5
    view.observe(
        progress(
            records=1_000_000, bytes=500_000_000, total_records=4_000_000, lag_records=3_000_000, lag_seconds=75.0, staged_records=1_200_000
        )
    )
    screen.print(view.render())
    head, facts = written(screen)[-2:]
    assert head.startswith("m ") and " 25%" in head and "15 s left" in head
    assert facts.strip() == "1,000,000 records, 500.0 MB, 100.0 MB/s, lag 3,000,000 (1 m 15 s), 200,000 of them staged"


def test_bars_show_trouble_and_not_too_much_of_it(screen: Console) -> None:
    view = Bars(screen, "", RunContent(), Clock())
    topics = {f"t{i}": TopicProgress(f"east.t{i}", state="halted", reason=f"cause {i}") for i in range(5)}
    view.observe(progress(target_down="west does not answer", topics=topics))
    screen.print(view.render())
    shown = "\n".join(written(screen))
    assert "target down: west does not answer" in shown and "t0 halted: cause 0" in shown
    assert "t3 halted" not in shown and "and 2 more topics halted" in shown


def test_one_bar_a_lane_named_apart_when_there_are_several(screen: Console) -> None:
    view = Bars(screen, "", RunContent(), Clock())
    for lane in ("0", "1"):
        seen = progress("m")
        seen.lane = lane
        view.observe(seen)
    view.observe(progress("other"))
    screen.print(view.render())
    heads = [line.split()[0] for line in written(screen) if not line.startswith("  ")]
    assert heads == ["m/0", "m/1", "other"]


@pytest.mark.parametrize("terminal", [True, False])
def test_observers_of_many_threads(terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    clock = Clock()
    view = Bars(console, "", RunContent(), clock) if terminal else Lines(console, "", RunContent(), clock, every=0.0)
    failures: list[BaseException] = []

    def watch(name: str) -> None:
        try:
            for number in range(200):
                view.observe(progress(name, records=number))
        except BaseException as failure:  # noqa: BLE001 - told below
            failures.append(failure)

    threads = [threading.Thread(target=watch, args=(f"m{i}",)) for i in range(6)]
    with view:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert failures == []
    if not terminal:
        said = [line for line in written(console) if line]
        assert len(said) == 1200 and all(line.startswith("m") and line.endswith("reading") for line in said)
