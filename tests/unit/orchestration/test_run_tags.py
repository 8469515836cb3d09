"""Which project a run belongs to, and whether it is its alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import dagster as dg
import pytest

from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.project import project_id
from mirror_pipeline.orchestration.run_tags import process_of, sees_process
from mirror_pipeline.orchestration.sensors.lane_facts import gather
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, NoSpark, write_project

FAKES = {names.MIRRORS_RESOURCE: FakeMirrors(), names.SPARK_RESOURCE: NoSpark()}


@dg.asset(deps=[names.target_key(NAME, "orders")])
def invoices() -> None: ...


def run_of(instance: dg.DagsterInstance, defs: dg.Definitions, *keys: dg.AssetKey) -> dg.DagsterRun:
    """A run of these assets, as the page starts it: with no tags of a job."""
    job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection=set(keys), asset_check_selection=set())
    done = job.execute_in_process(instance=instance)
    found = instance.get_run_by_id(done.run_id)
    assert found is not None and done.success
    return found


def test_a_run_from_the_page_says_whose_it_is_and_which_process_executes_it(
    tmp_path: Path, fake: FakeMirror, instance: dg.DagsterInstance
) -> None:
    project = write_project(tmp_path, ["orders"])
    run = run_of(instance, build(project, resources=FAKES), names.target_key(NAME, "orders"))
    assert run.tags[names.PROJECT_TAG] == project.id
    assert names.SHARED_TAG not in run.tags
    assert run.tags[names.MAX_RUNTIME_TAG] == "2100"
    assert process_of(run) == (socket.gethostname(), os.getpid())
    assert sees_process(run)
    retried = instance.create_run_for_job(build(project).resolve_job_def("mirror_prune"), tags=dict(run.tags))
    assert process_of(retried) is None


def test_a_worker_that_has_the_file_at_another_path_does_not_rename_the_project(
    tmp_path: Path, fake: FakeMirror, instance: dg.DagsterInstance
) -> None:
    job = build(write_project(tmp_path, ["orders"]), resources=FAKES).resolve_job_def("lane_job_east_to_west_0")
    done = job.execute_in_process(instance=instance, tags={names.PROJECT_TAG: "as the sensor asked for it"})
    run = instance.get_run_by_id(done.run_id)
    assert run is not None and run.tags[names.PROJECT_TAG] == "as the sensor asked for it"


def test_a_run_that_holds_steps_of_others_is_marked_and_gets_no_time_limit(
    tmp_path: Path, fake: FakeMirror, instance: dg.DagsterInstance
) -> None:
    project = write_project(tmp_path, ["orders"])
    defs = dg.Definitions.merge(build(project, resources=FAKES), dg.Definitions(assets=[invoices]))
    run = run_of(instance, defs, names.target_key(NAME, "orders"), invoices.key)
    assert run.tags[names.SHARED_TAG] == "true"
    assert names.MAX_RUNTIME_TAG not in run.tags
    assert run.tags[names.LANE_TAG] == "east-to-west/0", "the lag sensor still sees that the lane runs"


def test_mirrors_of_the_same_name_in_two_files_do_not_see_each_others_runs(
    tmp_path: Path, fake: FakeMirror, instance: dg.DagsterInstance
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = write_project(tmp_path / "one", ["orders"]), write_project(tmp_path / "two", ["orders"])
    assert one.id != two.id
    job = build(one, resources=FAKES).resolve_job_def("lane_job_east_to_west_0")
    instance.create_run_for_job(job, tags=dict(job.run_tags or job.tags), status=dg.DagsterRunStatus.STARTED)
    assert gather(instance, one.mirrors[0], None)[0].run is not None
    assert gather(instance, two.mirrors[0], None)[0].run is None
    pools = [
        {pool for job in build(project).resolve_all_job_defs() for node in job.nodes for pool in node.definition.pools}
        for project in (one, two)
    ]
    assert pools[0] and not pools[0] & pools[1]


def test_the_project_is_the_path_or_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert project_id(Path("mirror.yaml")) == project_id(tmp_path / "x" / ".." / "mirror.yaml") != project_id(tmp_path / "other.yaml")
    monkeypatch.setenv("MIRROR_PROJECT", "billing")
    assert project_id(tmp_path / "other.yaml") == "billing"
