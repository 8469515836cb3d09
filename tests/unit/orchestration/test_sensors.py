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

from mirror_pipeline.errors import ClusterUnreachable, UsageError
from mirror_pipeline.orchestration import maintenance, names
from mirror_pipeline.orchestration.backfill import backfill_asset, partitions
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.sensors import catalogue_sensor, reaper
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, NoSpark, known, lane_status, write_project


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

HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("facts", "verdict", "sure"),
    [
        ({"heartbeat": 995.0, "started": 910.0}, "", False),
        ({"heartbeat": 930.0, "started": 910.0}, "no heartbeat", False),
        ({"heartbeat": 930.0, "started": 910.0, "state": "finished", "host": HERE, "pid": os.getpid()}, "", False),
        ({"heartbeat": 995.0, "started": 910.0, "host": HERE, "pid": 2**22 + 1}, "has died", True),
        ({"heartbeat": 100.0, "started": 90.0, "host": HERE, "pid": 2**22 + 1}, "", False),
    ],
    ids=["alive", "silent", "ended", "process gone", "status of an earlier run"],
)
def test_when_a_run_is_dead(facts: dict[str, Any], verdict: str, sure: bool) -> None:
    found, certain = reaper.judge(lane_status(**facts), started=900.0, now=1000.0)
    assert verdict in found and bool(found) == bool(verdict)
    assert certain is sure


def test_a_run_that_never_gave_a_sign() -> None:
    assert reaper.judge(None, started=900.0, now=1000.0) == ("", False)
    assert "since its start" in reaper.judge(None, started=100.0, now=1000.0)[0]


def _started(instance: dg.DagsterInstance) -> dg.DagsterRun:
    @dg.job
    def nothing() -> None: ...

    tags = {names.KIND_TAG: names.KIND_LANE, names.MIRROR_TAG: NAME, names.LANE_TAG: "east-to-west/0"}
    return instance.create_run_for_job(nothing, tags=tags, status=dg.DagsterRunStatus.STARTED)


def reap(instance: dg.DagsterInstance, cursor: str | None = None) -> tuple[str, str | None]:
    with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
        reason = reaper.tick(context, FakeMirrors())
        return reason.skip_message or "", context.cursor


def test_a_run_whose_process_is_gone_is_failed_at_once(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    run = _started(instance)
    fake.lanes_answer = (lane_status(host=HERE, pid=2**22 + 1),)
    text, _ = reap(instance)
    assert "has died" in text
    failed = instance.get_run_by_id(run.run_id)
    assert failed is not None and failed.status is dg.DagsterRunStatus.FAILURE


def test_a_silent_run_is_failed_at_the_second_look(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    run = _started(instance)
    fake.lanes_answer = (lane_status(heartbeat=time.time() - 100),)
    text, cursor = reap(instance)
    assert "checking once more" in text
    assert "failed" in reap(instance, cursor)[0]
    failed = instance.get_run_by_id(run.run_id)
    assert failed is not None and failed.status is dg.DagsterRunStatus.FAILURE


def test_a_living_run_stays(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    run = _started(instance)
    fake.lanes_answer = (lane_status(),)
    assert reap(instance) == ("1 lane runs, all with heartbeats", "[]")
    alive = instance.get_run_by_id(run.run_id)
    assert alive is not None and alive.status is dg.DagsterRunStatus.STARTED


# --- upkeep ---------------------------------------------------------------------------------------------------------


def test_eviction_goes_over_all_mirrors(fake: FakeMirror, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    project = write_project(tmp_path, ["orders"])
    defs = build(project, resources={"mirrors": FakeMirrors(), "spark": NoSpark()})
    assert defs.resolve_job_def("evict").execute_in_process(instance=instance).success
    assert fake.calls == [{"call": "evict"}]


def test_pruning_spares_runs_at_work_and_the_newest_materializations(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def thing() -> None: ...

    @dg.job
    def nothing() -> None: ...

    old, newest = (dg.materialize([thing], instance=instance).run_id for _ in range(2))
    at_work = instance.create_run_for_job(nothing, status=dg.DagsterRunStatus.STARTED).run_id
    assert maintenance.prune(instance, 1.0) == 0, "nothing is a day old"
    assert maintenance.prune(instance, -1.0) == 1
    left = {run.run_id for run in instance.get_runs()}
    assert left == {newest, at_work}
    assert old not in left


# --- backfill -------------------------------------------------------------------------------------------------------


def _backfill(instance: dg.DagsterInstance, first: str, last: str, **config: Any) -> dg.ExecuteInProcessResult:
    mirror = known("orders")
    asset = backfill_asset(mirror, (mirror.topics or ())[0], partitions())
    job = dg.Definitions(
        assets=[asset],
        jobs=[dg.define_asset_job("job", [asset.key])],
        resources={"mirrors": FakeMirrors(), "spark": NoSpark()},
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
