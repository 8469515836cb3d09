"""Each topic's asset, check and run say what is true of that topic: Dagster's own judgement, over a real instance."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mirror_pipeline.orchestration import names, outage, reporting
from mirror_pipeline.orchestration.checks import copying_key
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.project import with_words
from mirror_pipeline.orchestration.sensors.lag_decision import decide
from mirror_pipeline.orchestration.sensors.lag_sensor import _request
from mirror_pipeline.orchestration.sensors.lane_facts import LaneFacts, gather
from mirror_pipeline.reports import Progress, RunReport, TopicProgress, TopicState
from tests.support.orchestration_fakes import (
    NAME,
    PROJECT,
    FakeMirror,
    FakeMirrors,
    NoSpark,
    known,
    lane_status,
    mirror_lag,
    write_project,
)

TOPICS = ("a.b", "a_b", "bad", "quiet")
WHY = ("the source deleted offsets [3, 9)", "mirror resolve --accept trimmed")
DOWN = "west: no broker answers"
SINCE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """One with its own database, as `mirror up` has it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as made:
        yield made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMirror:
    made = FakeMirror(records={"a.b": 5, "a_b": 7, "quiet": 0}, halted={"bad": WHY})
    monkeypatch.setattr(FakeMirrors, "fakes", {NAME: made})
    monkeypatch.setenv("MIRROR_PROJECT", PROJECT)
    return made


@pytest.fixture
def run(tmp_path: Path, instance: dg.DagsterInstance, fake: FakeMirror) -> Callable[..., dg.ExecuteInProcessResult]:
    """A run of the lane as the lag sensor asks for it when these topics are behind."""
    project = write_project(tmp_path, TOPICS)
    defs = build(project, resources={"mirror_project": FakeMirrors(), "mirror_spark": NoSpark()})

    def start(*behind: str, facts: LaneFacts | None = None) -> dg.ExecuteInProcessResult:
        mirror = project.mirrors[0]
        lag, homes = mirror_lag(**dict.fromkeys(behind, 9)), dict.fromkeys(TOPICS, "lane-0")
        (chosen,) = decide(lag, [facts or gather(instance, mirror, None)[0]], homes=homes, now=1e12).starts
        request = _request(mirror, chosen)
        job = defs.resolve_job_def(str(request.job_name))
        subset = job.get_subset(
            asset_selection=set(request.asset_selection or ()),
            asset_check_selection=set(request.asset_check_keys or ()),
        )
        return subset.execute_in_process(
            instance=instance, run_config=request.run_config, raise_on_error=False, tags=dict(request.tags)
        )

    return start


def failed(instance: dg.DagsterInstance) -> set[str]:
    """The topics whose target asset is red in the asset graph: its newest run failed without making it."""
    red = set()
    for record in instance.get_asset_records([names.target_key(NAME, topic) for topic in TOPICS]):
        entry = record.asset_entry
        run = instance.get_run_by_id(entry.last_run_id or "")
        made_by = entry.last_materialization.run_id if entry.last_materialization else None
        if run is not None and run.is_failure and made_by != run.run_id:
            red.add(names.topic_of(entry.asset_key))
    return red


def made(instance: dg.DagsterInstance) -> set[str]:
    """The topics that were ever materialized."""
    return {t for t in TOPICS if instance.get_latest_materialization_event(names.target_key(NAME, t)) is not None}


def check(instance: dg.DagsterInstance, topic: str) -> tuple[bool, str, str | None] | None:
    """What the newest evaluation of a topic's check says."""
    key = copying_key(NAME, topic)
    records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    if not records or records[0].event is None or records[0].event.dagster_event is None:
        return None
    said = records[0].event.dagster_event.asset_check_evaluation_data
    return said.passed, said.severity.value, said.description


def test_only_the_halted_topic_is_red(run: Callable[..., Any], instance: dg.DagsterInstance) -> None:
    result = run("a.b", "bad", "quiet")
    assert not result.success
    assert failed(instance) == {"bad"}
    assert made(instance) == {"a.b", "a_b", "quiet"}, "what copied nothing because of a halt is not materialized"
    assert check(instance, "bad") == (False, "ERROR", f"halted: {WHY[0]} ({WHY[1]})")
    assert [check(instance, topic) for topic in ("a.b", "quiet")] == [(True, "ERROR", "")] * 2


def test_the_error_of_a_halt_is_one_line_without_a_stack_trace(run: Callable[..., Any], instance: dg.DagsterInstance) -> None:
    (event,) = run("a.b", "bad").get_step_failure_events()
    error = event.step_failure_data.error
    assert error is not None
    assert error.message == f"lane {NAME}/0: 1 topic halted, the others are copied. bad: {WHY[0]} ({WHY[1]})"
    assert list(error.stack) == [] and error.cause is None and error.context is None


def facts_of(instance: dg.DagsterInstance, fake: FakeMirror) -> LaneFacts:
    """What the lag sensor knows of the lane after a run."""
    status = lane_status(state="finished", topics=fake.report().topics)
    return gather(instance, with_words([known(*TOPICS)])[0], replace(fake.status(), lanes=(status,)))[0]


def test_the_lanes_later_runs_are_not_red_for_it_and_it_stays_red(
    run: Callable[..., Any], instance: dg.DagsterInstance, fake: FakeMirror
) -> None:
    run("a.b", "bad")
    for behind in (("a.b", "bad"), ("bad",)):
        later = run(*behind, facts=facts_of(instance, fake))
        assert later.success, later.get_step_failure_events()
        assert failed(instance) == {"bad"} and check(instance, "bad") == (False, "ERROR", f"halted: {WHY[0]} ({WHY[1]})")


def test_once_it_is_copied_again_it_is_green(run: Callable[..., Any], instance: dg.DagsterInstance, fake: FakeMirror) -> None:
    run("a.b", "bad")
    before = facts_of(instance, fake)
    fake.halted, fake.records = {}, {"a.b": 5, "bad": 9}
    assert run("a.b", "bad", facts=before).success
    assert failed(instance) == set()
    assert check(instance, "bad") == (True, "ERROR", "")


def test_a_halt_alone_is_tried_again_more_and_more_rarely(run: Callable[..., Any], instance: dg.DagsterInstance, fake: FakeMirror) -> None:
    run("a.b", "bad")
    pauses = []
    for _ in range(3):
        facts = facts_of(instance, fake)
        assert facts.ended is not None
        lag, homes = mirror_lag(bad=9), dict.fromkeys(TOPICS, "lane-0")
        waits = [s for s in (29, 31, 59, 61, 119, 121) if not decide(lag, [facts], homes=homes, now=facts.ended + s).starts]
        pauses.append(max(waits))
        run("bad", facts=facts)
    assert pauses == [29, 59, 119]


class Down(FakeMirror):
    """A mirror whose target is down: one topic waits, one has nothing to do."""

    reachable = False

    def picture(self, *, part: float = 1.0, seconds: float = 2.0) -> Progress:
        if self.reachable:
            return super().picture(part=part, seconds=seconds)
        reason = f"500 offsets are not on the target: {DOWN}"
        waits = TopicProgress("east.a.b", 0, 0, 500, {0: 0}, {0: 500}, "behind", reason, "what to do")
        topics = {"a.b": waits, "quiet": TopicProgress("east.quiet")}
        return Progress(NAME, "lane-0", target_down=DOWN, topics=topics, lag_records=500)

    def report(self) -> RunReport:
        if self.reachable:
            return super().report()
        states = tuple(TopicState(name, t.state, t.reason) for name, t in self.picture().topics.items())
        return RunReport(NAME, "behind", 0, 0, 2.0, states, lag_records=500, target_down=DOWN)


def test_with_the_target_down_what_waits_is_not_green(
    run: Callable[..., Any], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMirrors, "fakes", {NAME: Down()})
    result = run("a.b", "quiet")
    (event,) = result.get_step_failure_events()
    assert event.step_failure_data.error is not None
    assert event.step_failure_data.error.message == f"lane {NAME}/0: target down: {DOWN}"
    assert failed(instance) == {"a.b"} and made(instance) == {"quiet"}
    passed, severity, text = check(instance, "a.b") or (True, "", "")
    assert (passed, severity) == (False, "WARN")
    waits = rf"behind since {SINCE}: 500 offsets are not on the target: {re.escape(DOWN)} \(what to do\)"
    assert re.fullmatch(waits, text or "")


def test_an_outage_that_lasts_is_red_and_is_on_the_run_and_the_next_run_knows_since_when(
    run: Callable[..., Any], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = Down()
    seen: list[Any] = []

    def script(observer: Callable[[Progress], None], stop: threading.Event) -> None:
        for _ in range(200):
            observer(down.picture())
            stop.wait(0.05)
            (now,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
            if names.DOWN_TAG in now.tags and (said := check(instance, "a.b")) is not None and said[1] == "ERROR":
                seen.append((said, now.tags[names.DOWN_TAG]))
                return

    down.script = script
    monkeypatch.setattr(FakeMirrors, "fakes", {NAME: down})
    monkeypatch.setattr(reporting, "LASTING_SECONDS", 0.5)
    monkeypatch.setattr(outage, "LASTING_SECONDS", 0.5)
    run("a.b", "quiet")
    ((_, _, first), tag) = seen[0]
    assert re.fullmatch(rf"target west since {SINCE}", tag)
    began = re.match(rf"behind since ({SINCE})", first or "")
    run("a.b", "quiet")
    ((_, _, second), _) = seen[1]
    assert began is not None and (second or "").startswith(f"behind since {began.group(1)}: ")
    down.records, down.reachable = {"a.b": 500, "quiet": 0}, True
    down.script = None
    run("a.b", "quiet")
    assert check(instance, "a.b") == (True, "ERROR", "")


def test_a_halt_is_said_while_the_run_goes_on(run: Callable[..., Any], instance: dg.DagsterInstance, fake: FakeMirror) -> None:
    seen: list[Any] = []

    def script(observer: Callable[[Progress], None], stop: threading.Event) -> None:
        observer(fake.picture())
        for _ in range(200):
            if check(instance, "bad") is not None:
                break
            stop.wait(0.05)
        seen.append(check(instance, "bad"))

    fake.script = script
    run("a.b")
    assert seen == [(False, "ERROR", f"halted: {WHY[0]} ({WHY[1]})")]


def test_runs_of_the_lag_sensor_hold_no_verification(tmp_path: Path, instance: dg.DagsterInstance, fake: FakeMirror) -> None:
    """The verification's pool, held for as long as a lane runs, kept the hourly verification waiting."""
    project = write_project(tmp_path, TOPICS)
    mirror = project.mirrors[0]
    (chosen,) = decide(mirror_lag(**{"a.b": 9}), gather(instance, mirror, None), homes=dict.fromkeys(TOPICS, "lane-0"), now=1e12).starts
    request = _request(mirror, chosen)
    assert request.asset_check_keys == [copying_key(NAME, "a.b")]
    job = build(project).resolve_job_def(str(request.job_name))
    subset = job.get_subset(asset_selection=set(request.asset_selection or ()), asset_check_selection=set(request.asset_check_keys))
    assert [node.name for node in subset.nodes] == ["lane_east_to_west_0"]
    pools = {pool for node in subset.nodes for pool in node.definition.pools}
    assert pools == {names.pool(mirror.project, NAME, "0")}


def test_every_topic_has_its_checks_whatever_its_name(tmp_path: Path) -> None:
    graph = build(write_project(tmp_path, TOPICS)).resolve_asset_graph()
    keys = {(names.topic_of(key.asset_key), key.name) for key in graph.asset_check_keys}
    of_topics = {(topic, name) for topic in TOPICS for name in (names.COPYING_CHECK, names.FRESH_CHECK, names.SAME_CHECK)}
    assert keys == of_topics | {("overview", names.OVERVIEW_CHECK)}
