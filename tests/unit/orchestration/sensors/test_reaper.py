"""The catalogue sensor, the reaper, the upkeep jobs, the backfill asset."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pytest
from dagster._core.utils import make_new_run_id

from mirror_pipeline.errors import ClusterUnreachable, ConfigError, UsageError
from mirror_pipeline.orchestration import maintenance, names
from mirror_pipeline.orchestration.backfill import backfill_asset, partitions
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.run_tags import run_tags
from mirror_pipeline.orchestration.sensors import catalogue_sensor, reaper
from mirror_pipeline.reports import LaneStatus
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic
from tests.support.orchestration_fakes import NAME, PROJECT, FakeMirror, FakeMirrors, NoSpark, known, lane_status, write_project


def catalogue(*topics: str) -> Catalogue:
    return Catalogue(NAME, 1, "c", tuple(CatalogueTopic(t, f"east.{t}", 3, "id") for t in topics), ())


class Web(BaseHTTPRequestHandler):
    """Dagster's web server, as far as a reload goes."""

    asked: ClassVar[list[dict[str, Any]]] = []
    answer: ClassVar[dict[str, Any]] = {}

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = json.dumps({"data": {"reloadRepositoryLocation": self.answer}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Web, "asked", [])
    monkeypatch.setattr(
        Web, "answer", {"__typename": "WorkspaceLocationEntry", "locationOrLoadError": {"__typename": "RepositoryLocation"}}
    )
    server = HTTPServer(("127.0.0.1", 0), Web)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("MIRROR_UP_URL", f"http://127.0.0.1:{server.server_port}")
    yield Web
    server.shutdown()
    server.server_close()
    thread.join()


def refresh(instance: dg.DagsterInstance, *shown: str, cursor: str | None = None) -> tuple[str, str | None]:
    with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
        reason = catalogue_sensor.tick(context, known(*shown), FakeMirrors())
        return reason.skip_message or "", context.cursor


def test_an_unchanged_catalogue(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.catalogue = catalogue("orders", "users")
    assert refresh(instance, "orders", "users")[0] == "no change: 2 topics selected, 0 left out"


def test_a_new_topic_has_the_location_reloaded_once(fake: FakeMirror, instance: dg.DagsterInstance, web: type[Web]) -> None:
    fake.catalogue = catalogue("orders", "new")
    text, cursor = refresh(instance, "orders", "old")
    assert text == "topics changed (+new, -old): code location reloaded"
    assert web.asked[0]["variables"] == {"name": "mirror_pipeline"}
    text, _ = refresh(instance, "orders", "old", cursor=cursor)
    assert "in progress" in text
    assert len(web.asked) == 1


def test_a_reload_that_fails_is_named(
    fake: FakeMirror, instance: dg.DagsterInstance, web: type[Web], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "answer", {"__typename": "ReloadNotSupported", "message": "cannot reload"})
    fake.catalogue = catalogue("orders", "new")
    assert refresh(instance, "orders")[0].endswith("reload failed: cannot reload")


def test_without_an_address_the_user_is_told_to_reload(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.catalogue = catalogue("orders", "new")
    assert "reload the code location" in refresh(instance, "orders")[0]


def test_a_source_that_does_not_answer(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.catalogue = ClusterUnreachable("east", "nobody answers")
    assert "not refreshed: nobody answers (source cluster east)" in refresh(instance, "orders")[0]


# --- reaper ---------------------------------------------------------------------------------------------------------

HERE, ELSEWHERE = socket.gethostname(), "another-host"


def lane_run(instance: dg.DagsterInstance, **tags: str) -> dg.DagsterRun:
    """A started run of the lane; its process, on another host, has told its number."""

    @dg.job
    def nothing() -> None: ...

    run_id = make_new_run_id()
    ours = run_tags(PROJECT, names.KIND_LANE, 100, mirror=NAME, lane="east-to-west/0")
    process = {names.PROCESS_TAG: f"{run_id} {ELSEWHERE} 1 pid:[1]"}
    return instance.create_run_for_job(nothing, run_id=run_id, tags={**ours, **process, **tags}, status=dg.DagsterRunStatus.STARTED)


def beating(**facts: Any) -> tuple[LaneStatus, ...]:
    return (lane_status(**{"host": ELSEWHERE, "pid": 1, **facts}),)


def reap(instance: dg.DagsterInstance, cursor: str | None = None) -> tuple[str, str | None]:
    with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
        reason = reaper.tick(context, PROJECT, FakeMirrors())
        return reason.skip_message or "", context.cursor


def ticks(instance: dg.DagsterInstance, number: int, cursor: str | None = None) -> tuple[str, str | None]:
    """What the last of several ticks says."""
    text = ""
    for _ in range(number):
        text, cursor = reap(instance, cursor)
    return text, cursor


def status_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status.value


def test_a_run_whose_process_is_gone_is_failed_at_once(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    run = lane_run(instance)
    here = f"{run.run_id} {HERE} {2**22 + 1} {os.readlink('/proc/self/ns/pid')}"
    instance.add_run_tags(run.run_id, {names.PROCESS_TAG: here})
    assert "has died" in reap(instance)[0]
    assert status_of(instance, run) == "FAILURE"


@pytest.mark.parametrize(
    "process",
    [f"{{run}} {HERE} {2**22 + 1} pid:[1]", f"parent {HERE} {2**22 + 1} {os.readlink('/proc/self/ns/pid')}"],
    ids=["a container with this host's name", "the tag of the run that this one retries"],
)
def test_a_process_that_cannot_be_seen_from_here_is_not_dead(fake: FakeMirror, instance: dg.DagsterInstance, process: str) -> None:
    run = lane_run(instance)
    instance.add_run_tags(run.run_id, {names.PROCESS_TAG: process.format(run=run.run_id)})
    ticks(instance, reaper.START_TICKS)
    assert status_of(instance, run) == "STARTED"


@pytest.mark.parametrize("ahead", [0.0, 7200.0, -7200.0], ids=["true", "two hours fast", "two hours slow"])
def test_a_silent_run_is_failed_after_a_minute_whatever_its_clock_says(
    fake: FakeMirror, instance: dg.DagsterInstance, ahead: float
) -> None:
    run = lane_run(instance)
    fake.lanes_answer = beating(heartbeat=time.time() + ahead, started=time.time() + ahead)
    text, cursor = ticks(instance, reaper.SILENT_TICKS)
    assert "no new heartbeat" in text
    assert status_of(instance, run) == "STARTED"
    assert "failed: no heartbeat since" in reap(instance, cursor)[0]
    assert status_of(instance, run) == "FAILURE"


@pytest.mark.parametrize("ahead", [0.0, 7200.0, -7200.0], ids=["true", "two hours fast", "two hours slow"])
def test_a_run_that_beats_stays_whatever_its_clock_says(fake: FakeMirror, instance: dg.DagsterInstance, ahead: float) -> None:
    run, cursor = lane_run(instance), None
    for number in range(reaper.START_TICKS * 2):
        # "stale" is what a reader whose clock is ahead makes of it
        fake.lanes_answer = beating(heartbeat=time.time() + ahead + number, started=time.time() + ahead, state="stale")
        text, cursor = reap(instance, cursor)
    assert text == "1 lane runs, all with heartbeats"
    assert status_of(instance, run) == "STARTED"


def test_the_status_of_an_earlier_run_counts_for_no_later_one(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    run = lane_run(instance)
    fake.lanes_answer = beating(pid=2, heartbeat=time.time(), started=time.time() + 7200)
    _, cursor = ticks(instance, reaper.START_TICKS)
    assert status_of(instance, run) == "STARTED", "Python, Dagster and Spark take their time"
    assert "no heartbeat since its start" in reap(instance, cursor)[0]
    assert status_of(instance, run) == "FAILURE"


def test_a_run_that_ends_is_left_alone(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    run = lane_run(instance)
    fake.lanes_answer = beating(state="finished")
    ticks(instance, reaper.START_TICKS + 1)
    assert status_of(instance, run) == "STARTED"


def test_a_file_that_does_not_load_fails_no_run(fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    run = lane_run(instance)
    fake.lanes_answer = beating()
    _, cursor = reap(instance)

    def broken(self: FakeMirrors, name: str) -> Any:
        raise ConfigError("mirror.yaml:35: mirrors[0].namin: unknown key")

    monkeypatch.setattr(FakeMirrors, "mirror", broken)
    text, cursor = ticks(instance, reaper.START_TICKS * 2, cursor)
    assert text == "cannot judge: mirror.yaml:35: mirrors[0].namin: unknown key"
    assert status_of(instance, run) == "STARTED"


@pytest.mark.parametrize(
    "tags", [{names.PROJECT_TAG: "another"}, {names.SHARED_TAG: "true"}], ids=["another mirror.yaml", "a run that is not ours alone"]
)
def test_runs_of_others_are_not_judged(fake: FakeMirror, instance: dg.DagsterInstance, tags: dict[str, str]) -> None:
    run = lane_run(instance, **tags)
    fake.lanes_answer = beating()
    assert ticks(instance, reaper.START_TICKS * 2)[0] == "0 lane runs, all with heartbeats"
    assert status_of(instance, run) == "STARTED"


# --- upkeep ---------------------------------------------------------------------------------------------------------


def test_eviction_goes_over_all_mirrors(fake: FakeMirror, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    project = write_project(tmp_path, ["orders"])
    defs = build(project, resources={"mirror_project": FakeMirrors(), "mirror_spark": NoSpark()})
    assert defs.resolve_job_def("mirror_evict").execute_in_process(instance=instance).success
    assert fake.calls == [{"call": "evict"}]


def test_pruning_spares_runs_at_work_and_the_newest_materializations(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def thing() -> None: ...

    @dg.job
    def nothing() -> None: ...

    tags = run_tags(PROJECT, names.KIND_LANE, 1)
    old, newest = (dg.materialize([thing], instance=instance, tags=tags).run_id for _ in range(2))
    at_work = instance.create_run_for_job(nothing, tags=tags, status=dg.DagsterRunStatus.STARTED).run_id
    assert maintenance.prune(instance, PROJECT, 1.0) == 0, "nothing is a day old"
    assert maintenance.prune(instance, PROJECT, -1.0) == 1
    left = {run.run_id for run in instance.get_runs()}
    assert left == {newest, at_work}
    assert old not in left


def test_pruning_touches_no_run_of_others(instance: dg.DagsterInstance) -> None:
    @dg.job
    def nothing() -> None: ...

    def ended(**tags: str) -> str:
        return nothing.execute_in_process(instance=instance, tags=tags).run_id

    ours = run_tags(PROJECT, names.KIND_UPKEEP, 1)
    earlier = {names.KIND_TAG: names.KIND_LANE, names.MIRROR_TAG: NAME}
    gone = {ended(**ours), ended(**earlier)}
    theirs = {ended(), ended(**ours | {names.PROJECT_TAG: "another"}), ended(**ours | {names.SHARED_TAG: "true"}), ended(team="billing")}
    assert maintenance.prune(instance, PROJECT, -1.0, kinds=[names.KIND_UPKEEP]) == 1
    assert maintenance.prune(instance, PROJECT, -1.0) == 1
    assert {run.run_id for run in instance.get_runs()} == theirs
    assert not gone & theirs


# --- backfill -------------------------------------------------------------------------------------------------------


def _backfill(instance: dg.DagsterInstance, first: str, last: str, **config: Any) -> dg.ExecuteInProcessResult:
    mirror = known("orders")
    asset = backfill_asset(mirror, (mirror.topics or ())[0], partitions())
    job = dg.Definitions(
        assets=[asset],
        jobs=[dg.define_asset_job("job", [asset.key])],
        resources={"mirror_project": FakeMirrors(), "mirror_spark": NoSpark()},
        executor=dg.in_process_executor,
    ).resolve_job_def("job")
    return job.execute_in_process(
        instance=instance,
        tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
        run_config={"ops": {names.unique("backfill", NAME, "orders"): {"config": config}}},
        raise_on_error=False,
    )


def test_a_range_of_hours_is_one_call_with_its_bounds(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    result = _backfill(instance, "2026-03-01-05:00", "2026-03-02-04:00", into="orders.again")
    assert result.success
    (call,) = [call for call in fake.calls if call["call"] == "backfill"]
    assert (call["topic"], call["into"]) == ("orders", "orders.again")
    assert call["from"] == int(datetime(2026, 3, 1, 5, tzinfo=UTC).timestamp() * 1000)
    assert call["to"] == int(datetime(2026, 3, 2, 5, tzinfo=UTC).timestamp() * 1000)
    events = result.get_asset_materialization_events()
    assert len(events) == 24, "every hour of the range is marked as done"
    metadata = events[0].materialization.metadata
    assert metadata["offset_ranges"].value == {"0": [10, 30], "1": [4, 4]}
    assert metadata["target_topic"].value == "orders.again"


def test_without_into_the_mirror_says_which_topic_is_the_target(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    assert _backfill(instance, "2026-03-01-05:00", "2026-03-01-05:00").success
    assert (fake.calls[0]["into"], fake.calls[0]["source"]) == ("east.orders.backfill", "auto")


def test_the_run_configuration_says_where_records_come_from(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    assert _backfill(instance, "2026-03-01-05:00", "2026-03-01-05:00", source="buffer").success
    assert fake.calls[0]["source"] == "buffer"
    result = _backfill(instance, "2026-03-01-05:00", "2026-03-01-05:00", source="archive")
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    assert "source 'archive' is none of auto, buffer, cluster" in str(failed.step_failure_data.user_failure_data)
    assert len(fake.calls) == 1


def test_a_refused_backfill_says_why(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.run_error = UsageError("east.orders is mirrored live", hint="copy into another topic")
    result = _backfill(instance, "2026-03-01-05:00", "2026-03-01-05:00")
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data.user_failure_data
    assert data is not None
    assert "east.orders is mirrored live (copy into another topic)" in (data.description or "")
    assert not result.get_asset_materialization_events()
