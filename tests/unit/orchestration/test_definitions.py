"""The asset graph as Dagster loads it, without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from mirror_pipeline.orchestration import definitions, names
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.project import read_project
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from tests.support.orchestration_fakes import NAME, write_project

ROOT = Path(__file__).parents[3]


def graph(defs: dg.Definitions) -> dict[str, tuple[str, list[str]]]:
    """Key to group and parents."""
    found = defs.resolve_asset_graph()
    return {
        key.to_user_string(): (found.get(key).group_name, sorted(parent.to_user_string() for parent in found.get(key).parent_keys))
        for key in found.get_all_asset_keys()
    }


def test_the_graph_of_a_mirror_with_two_lanes(tmp_path: Path) -> None:
    defs = build(write_project(tmp_path, ["a.b", "orders"], lanes=2))
    dg.Definitions.validate_loadable(defs)
    assert graph(defs) == {
        "east-to-west/source/a.b": ("east_to_west/from_east", []),
        "east-to-west/source/orders": ("east_to_west/from_east", []),
        "east-to-west/target/a.b": ("east_to_west/lane_1", ["east-to-west/source/a.b"]),
        "east-to-west/target/orders": ("east_to_west/lane_0", ["east-to-west/source/orders"]),
        "east-to-west/backfill/a.b": ("backfill/east_to_west", ["east-to-west/source/a.b"]),
        "east-to-west/backfill/orders": ("backfill/east_to_west", ["east-to-west/source/orders"]),
        "east-to-west/overview": ("east_to_west/overview", []),
    }
    found = defs.resolve_asset_graph()
    assert found.get(names.source_key(NAME, "orders")).is_external
    target = found.get(names.target_key(NAME, "orders"))
    assert target.kinds == {"kafka", "delta", "pyspark"}
    assert "`east.orders` on cluster `west`" in (target.description or "")
    assert found.get(names.backfill_key(NAME, "orders")).is_partitioned


def test_topics_that_differ_in_punctuation_alone_are_different_assets(tmp_path: Path) -> None:
    defs = build(write_project(tmp_path, ["a.b", "a_b", "a-b", "x" * 249], lanes=1))
    dg.Definitions.validate_loadable(defs)
    targets = {key for key in graph(defs) if "/target/" in key}
    assert targets == {f"east-to-west/target/{name}" for name in ("a.b", "a_b", "a-b", "x" * 249)}
    parents = {key: parents for key, (_, parents) in graph(defs).items() if "/target/" in key}
    assert parents["east-to-west/target/a.b"] == ["east-to-west/source/a.b"]


def test_names_with_a_hash_do_not_clash() -> None:
    assert names.unique("lane", "a.b", "c") != names.unique("lane", "a_b", "c")
    assert names.unique("lane", "a", "b_c") != names.unique("lane", "a_b", "c")


def test_jobs_carry_tags_that_bound_and_name_their_runs(tmp_path: Path) -> None:
    defs = build(write_project(tmp_path, ["orders"]))
    jobs = {job.name: job for job in defs.resolve_all_job_defs()}
    lane = next(job for name, job in jobs.items() if name.startswith("lane_job_"))
    tags = {**lane.tags, **lane.run_tags}
    assert tags["dagster/max_runtime"] == "2100"
    assert tags["mirror/lane"] == "east-to-west/0"
    assert tags["mirror/name"] == NAME
    backfill = next(job for name, job in jobs.items() if name.startswith("backfill_"))
    assert {**backfill.tags, **backfill.run_tags}["mirror/kind"] == "backfill"
    assert {"mirror_evict", "mirror_prune"} <= set(jobs)
    assert defs.executor is None, "a project that these definitions are merged into keeps its own"
    assert {job.executor_def for job in jobs.values() if not job.name.startswith("__")} == {dg.in_process_executor}


def test_everything_that_must_run_by_itself_is_on(tmp_path: Path) -> None:
    defs = build(write_project(tmp_path, ["orders"]))
    sensors = {sensor.name.rsplit("_east", 1)[0]: sensor for sensor in defs.sensors or ()}
    assert set(sensors) == {"lag", "catalogue", "mirror_reaper", "mirror_file"}
    assert all(sensor.default_status is dg.DefaultSensorStatus.RUNNING for sensor in sensors.values())
    assert all(schedule.default_status is dg.DefaultScheduleStatus.RUNNING for schedule in defs.schedules or ())
    schedules = sorted(schedule.name.rsplit("_east", 1)[0] for schedule in defs.schedules or ())
    assert schedules == ["mirror_evict_hourly", "mirror_prune_nightly", "verify_hourly"]


def test_without_a_configuration_a_sensor_says_so(tmp_path: Path) -> None:
    defs = build(read_project(tmp_path / "mirror.yaml"))
    dg.Definitions.validate_loadable(defs)
    (sensor,) = defs.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    assert "no such file" in (sensor.description or "")
    with dg.build_sensor_context() as context:
        result = sensor(context, **{"mirror_project": MirrorsResource(config_path=str(tmp_path / "mirror.yaml"))})
    assert isinstance(result, dg.SkipReason)
    assert "mirror init" in (result.skip_message or "")


def test_without_a_catalogue_everything_loads_and_the_sensor_says_so(tmp_path: Path) -> None:
    project = write_project(tmp_path, None)
    assert project.mirrors[0].topics is None
    defs = build(project)
    dg.Definitions.validate_loadable(defs)
    lag = next(sensor for sensor in defs.sensors or () if sensor.name.startswith("lag_"))
    with dg.build_sensor_context() as context:
        result = lag(context, mirror_project=MirrorsResource(config_path=str(project.path)))
    assert isinstance(result, dg.SkipReason)
    assert "no catalogue of topics yet" in (result.skip_message or "")


def test_backfills_may_be_daily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_BACKFILL_PARTITION", "daily")
    monkeypatch.setenv("MIRROR_BACKFILL_START", "2026-01-01")
    defs = build(write_project(tmp_path, ["orders"]))
    parts = defs.resolve_asset_graph().get(names.backfill_key(NAME, "orders")).partitions_def
    assert isinstance(parts, dg.TimeWindowPartitionsDefinition)
    assert parts.get_first_partition_key() == "2026-01-01"
    monkeypatch.setenv("MIRROR_BACKFILL_PARTITION", "weekly")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="use hourly or daily"):
        build(write_project(tmp_path, ["orders"]))


def test_the_module_loads_in_a_process_of_its_own_without_a_network(tmp_path: Path) -> None:
    """As Dagster loads it; a look at a cluster would fail here: nothing listens on the addresses."""
    write_project(tmp_path, ["orders"])
    code = "from mirror_pipeline.orchestration.definitions import defs; print(len(list(defs.assets)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "4"


def test_workspace_file_names_the_module_and_location() -> None:
    (entry,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    module = entry["python_module"]
    assert module == {"module_name": definitions.__name__, "attribute": "defs", "location_name": names.LOCATION}


@dg.op
def _nothing() -> None: ...


def _job(name: str) -> dg.JobDefinition:
    return dg.JobDefinition(name=name, graph_def=dg.GraphDefinition(name=name, node_defs=[_nothing]))


def host_project() -> dg.Definitions:
    """A project of others: its own executor, resources, jobs, schedules and sensors, with the plainest names there are."""
    jobs = {name: _job(name) for name in ("evict", "prune", "evict_buffers", "prune_runs", "reaper", "copy")}

    @dg.sensor(name="reaper", job=jobs["reaper"])
    def reaper_of_others() -> None: ...

    @dg.sensor(name="mirrors_missing", job=jobs["reaper"])
    def missing_of_others() -> None: ...

    schedules = [dg.ScheduleDefinition(name=f"{name}_hourly", job=jobs[name], cron_schedule="1 * * * *") for name in ("evict", "prune")]
    schedules.append(dg.ScheduleDefinition(name="prune_nightly", job=jobs["prune"], cron_schedule="1 3 * * *"))
    return dg.Definitions(
        jobs=list(jobs.values()),
        sensors=[reaper_of_others, missing_of_others],
        schedules=schedules,
        resources={"spark": "their session", "mirrors": "their mirrors", "io_manager": dg.FilesystemIOManager()},
        executor=dg.multiprocess_executor,
    )


@pytest.mark.parametrize("first", [True, False], ids=["mirrors first", "host first"])
def test_a_project_that_these_definitions_are_merged_into_keeps_what_it_has(tmp_path: Path, first: bool) -> None:
    host, ours = host_project(), build(write_project(tmp_path, ["orders"], lanes=2))
    merged = dg.Definitions.merge(ours, host) if first else dg.Definitions.merge(host, ours)
    dg.Definitions.validate_loadable(merged)
    assert merged.executor is host.executor
    assert {key: (merged.resources or {})[key] for key in host.resources or {}} == host.resources
    jobs = {job.name: job for job in merged.resolve_all_job_defs()}
    theirs = {job.name for job in host.jobs or ()}
    assert {jobs[name].executor_def for name in theirs} == {dg.multiprocess_executor}
    ours_only = {job.name for job in ours.resolve_all_job_defs() if not job.name.startswith("__")}
    assert not theirs & ours_only
    assert {jobs[name].executor_def for name in ours_only} == {dg.in_process_executor}


def test_the_mirrors_upkeep_in_a_project_of_others_deletes_none_of_its_runs(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    merged = dg.Definitions.merge(build(write_project(tmp_path, ["orders"])), host_project())
    theirs = {merged.resolve_job_def(name).execute_in_process(instance=instance).run_id for name in ("prune", "evict", "copy")}
    theirs.add(instance.create_run_for_job(merged.resolve_job_def("copy"), status=dg.DagsterRunStatus.STARTED).run_id)
    everything = {"ops": {names.PRUNE_OP: {"config": {"older_than_days": 0.0, "upkeep_older_than_days": 0.0}}}}
    prune = merged.resolve_job_def(names.PRUNE_JOB)
    first, second = (prune.execute_in_process(instance=instance, run_config=everything).run_id for _ in range(2))
    left = {run.run_id for run in instance.get_runs()}
    assert left == theirs | {second} and first not in left
