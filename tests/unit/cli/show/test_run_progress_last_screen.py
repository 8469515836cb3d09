"""The last screen and the exit code of a run, and its progress line, name what is not copied and why."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from mirror_pipeline.cli.show.progress import Lines
from mirror_pipeline.cli.show.run_progress import RunContent
from mirror_pipeline.reports import RunReport, TopicProgress, TopicState
from tests.support.cli_fakes import Cli, FakeMirror, progress

DOWN = "cluster west: no broker answers"
NOTHING = RunReport("m", "ok", 0, 0, 15.0, (TopicState("orders", "ok", target_topic="east.orders"),))
BEHIND = replace(
    NOTHING,
    state="behind",
    topics=(TopicState("orders", "behind", f"500 offsets are not on the target: {DOWN}"),),
    lag_records=500,
    target_down=DOWN,
)


@pytest.mark.parametrize(
    ("report", "code", "said"),
    [
        (NOTHING, 0, "m: nothing new to copy"),
        (BEHIND, 3, f"m: 0 records, 0 B in 15 s; 500 offsets not on the target yet; target down: {DOWN}"),
        (replace(NOTHING, lag_records=7), 0, "m: 0 records, 0 B in 15 s; 7 offsets not on the target yet"),
        (replace(NOTHING, source_down="east is silent"), 3, "m: 0 records, 0 B in 15 s; source down: east is silent"),
        (replace(NOTHING, target_down=DOWN), 0, f"m: 0 records, 0 B in 15 s; target down: {DOWN}"),
    ],
)
def test_what_is_not_copied_is_on_the_last_screen(cli: Cli, report: RunReport, code: int, said: str) -> None:
    ended = cli("run", "--for", "15s", mirrors=[FakeMirror(on_run=lambda **_: report)])
    assert ended.code == code and said in ended.out
    assert ("nothing new to copy" in ended.out) == (said.endswith("nothing new to copy"))


def line(**facts: Any) -> str:
    """The quiet progress line of a run without lag."""
    paper, now = io.StringIO(), [0.0]
    with Lines(Console(file=paper, width=140), "starting", RunContent(), lambda: now[0]) as view:
        for _ in range(2):
            view.observe(progress(records=500, total_records=500, lag_records=0, **facts))
            now[0] += 10.0
    return paper.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("facts", "end"),
    [
        ({}, "no lag, up to date"),
        ({"topics": {"pay": TopicProgress("east.pay", state="halted", reason="trimmed")}}, "no known lag, 1 topic halted"),
        ({"topics": {"pay": TopicProgress("", state="behind", reason="waits for the target")}}, "no known lag, 1 topic waiting"),
        ({"target_down": DOWN}, "no known lag, waiting for the target"),
        ({"source_down": "east is silent"}, "no known lag, waiting for the source"),
    ],
)
def test_up_to_date_is_said_only_when_all_is_well(facts: dict[str, Any], end: str) -> None:
    assert line(**facts).endswith(end)


def test_a_source_that_goes_and_comes_back_is_said_at_once() -> None:
    paper = io.StringIO()
    with Lines(Console(file=paper, width=140), "starting", RunContent()) as view:
        view.observe(progress(source_down="east is silent"))
        view.observe(progress())
    assert paper.getvalue().splitlines()[1:] == ["m: source down: east is silent", "m: source reachable again"]
