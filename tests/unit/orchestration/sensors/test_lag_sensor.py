"""What the lag sensor starts, and what it says when it starts nothing."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from mirror_pipeline.errors import BufferUnusable, ClusterUnreachable
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.sensors import lag_sensor as module
from mirror_pipeline.orchestration.sensors.lag_decision import LONGEST_PAUSE_SECONDS, LagMemory, decide
from mirror_pipeline.orchestration.sensors.lane_facts import LaneFacts, RunFact
from mirror_pipeline.reports import TopicState
from tests.support.orchestration_fakes import NAME, PROJECT, FakeMirror, FakeMirrors, known, lane_status, mirror_lag, topic_lag

TOPICS = ("orders", "payments", "users")


def tick(instance: dg.DagsterInstance, *topics: str, cursor: str | None = None) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
        result = module.tick(context, known(*(topics or TOPICS)), FakeMirrors())
    assert isinstance(result, dg.SensorResult)
    return result


def of_kind(result: dg.SensorResult, kind: type[Any]) -> list[Any]:
    return [event for event in result.asset_events if isinstance(event, kind)]


def glances(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, fake: FakeMirror, *ticks: tuple[float, Any]) -> list[Any]:
    """What the overview said at ticks, each with its time and what the look at the lag finds: the check's result, None for nothing."""
    found, cursor = list[Any](), None
    for now, answer in ticks:
        monkeypatch.setattr(step_thread, "wall_clock", lambda now=now: 1_000_000.0 + now)
        fake.lag_answer = answer
        result = tick(instance, "orders", cursor=cursor)
        cursor = result.cursor
        made = [event for event in of_kind(result, dg.AssetCheckEvaluation) if event.check_name == names.OVERVIEW_CHECK]
        found.append((made[0].passed, made[0].description) if made else None)
    return found


def skip(instance: dg.DagsterInstance, *topics: str) -> str:
    with dg.build_sensor_context(instance=instance) as context:
        result = module.tick(context, known(*(topics or TOPICS)), FakeMirrors())
    reason = result if isinstance(result, dg.SkipReason) else result.skip_reason
    assert reason is not None
    return reason.skip_message or ""


def in_flight(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    return instance.create_run_for_job(_job(), tags={names.PROJECT_TAG: PROJECT, names.LANE_TAG: "east-to-west/0"}, status=status)


def _job() -> dg.JobDefinition:
    @dg.job
    def nothing() -> None: ...

    return nothing


def facts(**given: Any) -> LaneFacts:
    values: dict[str, Any] = {"lane": "lane-0", "label": "east-to-west/0", "job": "job", "topics": frozenset(TOPICS)}
    return LaneFacts(**{**values, **given})


def why(now: float, *, behind: tuple[str, ...] = ("orders",), **given: Any) -> str:
    """The reason not to start, "" when the lane is started."""
    lag = mirror_lag(**{topic: 5 if topic in behind else 0 for topic in TOPICS})
    decision = decide(lag, [facts(**given)], homes=dict.fromkeys(TOPICS, "lane-0"), now=now)
    return "; ".join(decision.reasons)


# --- what it says ---------------------------------------------------------------------------------------------------


def test_no_lag(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = mirror_lag(orders=0, payments=0, users=0)
    assert skip(instance) == "no lag in 3 topics"


def test_a_running_lane(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = mirror_lag(orders=1000, payments=204, users=0)
    in_flight(instance, dg.DagsterRunStatus.STARTED)
    assert re.fullmatch(r"lane east-to-west/0 running since \d\d:\d\d, lag 1,204 in 2 topics", skip(instance))


def test_a_running_lane_whose_target_is_down() -> None:
    status = lane_status(target_down_since=time.time(), message="west: no broker answers")
    text = why(time.time(), run=RunFact("r", "STARTED", time.time()), status=status)
    assert re.fullmatch(r"lane .* running since \d\d:\d\d, lag 5 in 1 topic, target down since \d\d:\d\d: west: no broker answers", text)


@pytest.mark.parametrize(
    ("status", "word"), [("QUEUED", "queued"), ("NOT_STARTED", "starting"), ("STARTING", "starting"), ("CANCELING", "ending")]
)
def test_a_lane_between_states(status: str, word: str) -> None:
    text = why(time.time(), run=RunFact("r", status, time.time()))
    assert re.fullmatch(rf"lane east-to-west/0 {word} since \d\d:\d\d, lag 5 in 1 topic", text)


def test_a_lane_that_has_not_started_yet_is_not_started_twice(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = mirror_lag(orders=1)
    in_flight(instance, dg.DagsterRunStatus.NOT_STARTED)
    assert "starting since" in skip(instance)


def test_a_lane_that_somebody_runs_from_the_command_line(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = mirror_lag(orders=2)
    fake.lanes_answer = (lane_status(pid=4711, host="box"),)
    assert re.fullmatch(
        r"lane east-to-west/0 held by process 4711 on box since \d\d:\d\d \(not a run of this Dagster\), lag 2 in 1 topic", skip(instance)
    )


def test_an_unreachable_source(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = ClusterUnreachable("east", "no broker of 127.0.0.1:1 answers", hint="is it up?")
    assert skip(instance) == "source cluster east unreachable: no broker of 127.0.0.1:1 answers (is it up?)"


def test_a_buffer_that_cannot_be_read(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = BufferUnusable("buffer /b: not writable by this user")
    assert skip(instance) == "lag of mirror east-to-west unknown: buffer /b: not writable by this user"


def test_a_cluster_that_hangs_is_given_up_and_not_asked_twice_at_once(
    fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAG_LOOK_SECONDS", 0.1)
    release, asked = threading.Event(), []

    def hang() -> Any:
        asked.append(1)
        release.wait(20)
        return mirror_lag(orders=0)

    monkeypatch.setattr(fake, "lag", hang)
    try:
        assert skip(instance).startswith("lag of mirror east-to-west unknown: no answer within")
        assert "the previous lag request has not returned" in skip(instance)
        assert len(asked) == 1
    finally:
        release.set()
    deadline = time.monotonic() + 20
    while NAME in module._lag_requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert skip(instance) == "no lag in 1 topic"


def test_no_topics(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    with dg.build_sensor_context(instance=instance) as context:
        result = module.tick(context, known(), FakeMirrors())
    assert isinstance(result, dg.SkipReason)
    assert "selects no topic" in (result.skip_message or "")


def test_a_lane_that_does_not_move() -> None:
    now = time.time()
    running = RunFact("r", "STARTED", now - 600)
    decision = decide(mirror_lag(orders=5), [facts(run=running)], homes={"orders": "lane-0"}, now=now, stuck={"orders": now - 300})
    assert re.search(r"lag 5 in 1 topic, 1 topic not moving since \d\d:\d\d", decision.reasons[0])
    fresh = RunFact("r", "STARTED", now - 20)
    decision = decide(mirror_lag(orders=5), [facts(run=fresh)], homes={"orders": "lane-0"}, now=now, stuck={"orders": now - 300})
    assert "not moving" not in decision.reasons[0], "the run has only just begun"


# --- what it starts -------------------------------------------------------------------------------------------------


def test_lagging_topics_start_their_lane(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = mirror_lag(orders=3, payments=0, users=1)
    result = tick(instance)
    (request,) = result.run_requests or ()
    assert request.run_key is None, "a key is never started twice"
    assert request.tags["mirror/lane"] == "east-to-west/0"
    assert set(request.asset_selection or ()) == {names.target_key(NAME, "orders"), names.target_key(NAME, "users")}
    (config,) = request.run_config["ops"].values()
    assert config["config"]["whole_lane"] is True
    assert 0.9 * 1800 <= config["config"]["budget_seconds"] <= 1800


def test_only_the_lane_without_a_run_is_started(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = mirror_lag(orders=3, payments=4)
    in_flight(instance, dg.DagsterRunStatus.STARTED)
    with dg.build_sensor_context(instance=instance) as context:
        result = module.tick(context, known("orders", "payments", lanes=2), FakeMirrors())
    assert isinstance(result, dg.SensorResult)
    assert [request.tags["mirror/lane"] for request in result.run_requests or ()] == ["east-to-west/1"]


def test_a_topic_without_an_asset_starts_its_lane_too(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = mirror_lag(brand_new=3)
    (request,) = tick(instance).run_requests or ()
    assert request.asset_selection is None, "the whole lane: Dagster knows no asset of that topic yet"


def test_the_request_is_one_that_dagster_accepts(fake: FakeMirror, instance: dg.DagsterInstance, tmp_path: Any) -> None:
    from mirror_pipeline.orchestration.definitions import build
    from tests.support.orchestration_fakes import NoSpark, write_project

    fake.lag_answer = mirror_lag(orders=3, payments=0)
    defs = build(write_project(tmp_path, ["orders", "payments"]), resources={"mirror_project": FakeMirrors(), "mirror_spark": NoSpark()})
    sensor = next(s for s in defs.sensors or () if s.name.startswith("lag_"))
    assert isinstance(sensor, dg.SensorDefinition)
    with dg.build_sensor_context(instance=instance, definitions=defs, resources={"mirror_project": FakeMirrors()}) as context:
        data = sensor.evaluate_tick(context)
    (request,) = data.run_requests or ()
    job = defs.resolve_job_def(request.job_name or "")
    result = job.execute_in_process(
        run_config=request.run_config, tags=request.tags, instance=instance, asset_selection=list(request.asset_selection or ())
    )
    assert result.success
    assert [event.asset_key for event in result.get_asset_materialization_events()] == [names.target_key(NAME, "orders")]


# --- after a failure ------------------------------------------------------------------------------------------------


def test_a_lane_that_failed_waits_longer_each_time() -> None:
    now = time.time()
    broken = lane_status(state="failed", message="disk full")
    assert "failed once" in why(now, failures=1, ended=now - 29, status=broken)
    assert why(now, failures=1, ended=now - 31, status=broken) == ""
    text = why(now, failures=3, ended=now - 119, status=broken)
    assert re.search(r"failed 3 times in a row, last at \d\d:\d\d: disk full, lag 5 in 1 topic; next try at \d\d:\d\d", text)
    assert why(now, failures=3, ended=now - 121, status=broken) == ""
    assert why(now, failures=10, ended=now - LONGEST_PAUSE_SECONDS - 1, status=broken) == ""


def test_a_halted_topic_does_not_keep_the_others_waiting() -> None:
    now = time.time()
    halt = TopicState("orders", "halted", "gone", "do this", "t", 0, 0)
    ended = lane_status(state="finished", topics=(halt,))
    assert why(now, behind=("orders", "users"), failures=5, ended=now - 1, status=ended) == ""
    text = why(now, behind=("orders",), failures=1, ended=now - 1, status=ended)
    assert "orders halted: gone (do this)" in text


def test_a_halt_that_somebody_accepted_is_tried_again_at_once() -> None:
    now = time.time()
    halt = TopicState("orders", "halted", "gone", "do this", "t", 0, 0)
    before, after = (lane_status(state="finished", topics=(replace(halt, state=state),)) for state in ("halted", "accepted"))
    assert "orders halted" in why(now, behind=("orders",), failures=9, ended=now - 30, status=before)
    assert why(now, behind=("orders",), failures=9, ended=now - 30, status=after) == ""


@pytest.mark.parametrize("skew", [0.0, 7200.0, -7200.0], ids=["true", "two hours fast", "two hours slow"])
def test_pauses_go_by_the_sensors_own_clock(skew: float) -> None:
    """Workers may have other clocks."""
    cursor: str | None = None

    def tick(now: float, newest: str, ended: float | None) -> LaneFacts:
        nonlocal cursor
        memory = LagMemory(cursor)
        (paced,) = memory.pace([facts(newest=newest, ended=ended, status=lane_status(state="finished"))], now)
        cursor = memory.cursor()
        return paced

    assert tick(1000.0, "", None).ended is None
    assert tick(1010.0, "run 1", 1005.0 + skew).ended == 1010.0
    assert tick(1020.0, "run 1", 1005.0 + skew).ended == 1010.0
    assert tick(1040.0, "run 2", 1035.0 + skew).ended == 1040.0


def test_a_sensor_without_memory_goes_by_the_clock_there_is() -> None:
    (paced,) = LagMemory(None).pace([facts(newest="run 1", ended=1005.0, status=lane_status(state="finished"))], 2000.0)
    assert paced.ended == 1005.0


def test_a_terminated_run_pauses_and_says_how_to_stop_for_good() -> None:
    now = time.time()
    text = why(now, cancelled=True, ended=now - 5)
    assert "was terminated" in text and "stop this sensor" in text
    assert why(now, cancelled=True, ended=now - 61) == ""


# --- what it remembers ----------------------------------------------------------------------------------------------


def test_lag_is_observed_on_the_source_asset(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.lag_answer = mirror_lag(orders=3)
    event = of_kind(tick(instance, "orders"), dg.AssetObservation)[0]
    assert event.asset_key == names.source_key(NAME, "orders")
    values = {name: value.value for name, value in event.metadata.items()}
    assert values["lag_records"] == 3
    assert values["lag_seconds"] == 1.5
    assert values["end_offsets"] == {"0": 103}


def test_observations_are_spaced_and_follow_changes(
    fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr(step_thread, "wall_clock", lambda: now)
    fake.lag_answer = mirror_lag(orders=3)
    first = tick(instance, "orders")
    fake.lag_answer = mirror_lag(orders=4)
    now += 9
    second = tick(instance, "orders", cursor=first.cursor)
    assert second.asset_events == []
    now += 52
    third = tick(instance, "orders", cursor=second.cursor)
    assert [names.topic_of(event.asset_key) for event in third.asset_events if event.asset_key] == ["overview", "overview", "orders"]
    now += 600
    assert tick(instance, "orders", cursor=third.cursor).asset_events == [], "nothing changed: silent"


def test_new_records_of_a_healthy_mirror_are_no_trouble(
    fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, new = mirror_lag(orders=0), mirror_lag(orders=3)
    said = glances(instance, monkeypatch, fake, (0.0, quiet), (10.0, new), (20.0, quiet), (90.0, new), (100.0, new))
    assert [each and each[0] for each in said] == [True, None, None, True, None], "neither red, nor at once for a change of tone"
    assert said[3][1].startswith("a run is starting: 3 records wait")


def test_records_that_wait_for_a_run_that_does_not_begin_are_trouble(
    fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = in_flight(instance, dg.DagsterRunStatus.STARTING)
    (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id]))
    began = record.create_timestamp.timestamp() - 1_000_000.0
    new = mirror_lag(orders=3)
    said = glances(instance, monkeypatch, fake, (began + 10, new), (began + 400, new), (began + 440, new))
    assert [each and each[0] for each in said] == [True, None, False]
    assert said[2][1].startswith("not running: 3 records wait")


def test_a_look_that_fails_once_is_no_trouble_and_one_that_goes_on_is(
    fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, late = mirror_lag(orders=0), TimeoutError("no answer within 10 s")
    said = glances(instance, monkeypatch, fake, (0.0, quiet), (10.0, late), (20.0, quiet), (70.0, late), (90.0, late), (100.0, late))
    assert [each and each[0] for each in said] == [True, None, None, None, None, False]


def test_a_halt_is_told_at_once_and_so_is_its_end(fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.lanes_answer = (lane_status(),)
    halted = replace(mirror_lag(), topics=(replace(topic_lag("orders", 3), state="halted", code="trimmed", hint="do this"),))
    fine = mirror_lag(orders=0)
    said = glances(instance, monkeypatch, fake, (0.0, fine), (10.0, halted), (20.0, halted), (30.0, fine))
    assert [each and each[0] for each in said] == [True, False, None, True]


def test_the_cursor_knows_what_moved() -> None:
    memory = LagMemory(None)
    memory.see(mirror_lag(orders=5), 100.0)
    memory = LagMemory(memory.cursor())
    memory.see(mirror_lag(orders=9), 200.0)
    assert memory.stuck()["orders"] == 100.0
    moved = type(mirror_lag())(NAME, (topic_lag("orders", 5, position=104),), 1.0)
    memory.see(moved, 300.0)
    assert memory.stuck()["orders"] == 300.0


@pytest.mark.parametrize("cursor", ["", "nonsense", "[]", '{"version": 99}', '{"version": 1, "topics": {"a": {"x": 1}}}'])
def test_a_cursor_of_another_form_counts_as_none(cursor: str) -> None:
    assert LagMemory(cursor).stuck() == {}
