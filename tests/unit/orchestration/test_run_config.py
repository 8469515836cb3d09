"""What a run may say of itself: who may start one can name neither brokers nor files, neither Spark settings nor secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.served import closed
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, NoSpark, write_project

OURS = {
    "budget_seconds", "idle_seconds", "report_interval", "whole_lane", "into", "source", "older_than_days", "upkeep_older_than_days",
    "mode", "topics", "wait", "accept_differences", "tail", "dry_run", "everything",
}  # fmt: skip
DAGSTER = {
    "execution/config/marker_to_close",
    "execution/config/retries/disabled",
    "execution/config/retries/enabled",
    "execution/config/step_dependency_config/require_upstream_step_success",
    "loggers/console/config/log_level",
    "loggers/console/config/name",
}
"""A word for the event log, what a failed step means for the next one, how much is logged: no file, no address, no code."""
EVIL: dict[str, dict[str, Any]] = {
    "mirror_spark": {"spark_config": {"spark.jars": "http://127.0.0.1:1/evil.jar", "spark.plugins": "Evil"}},
    "mirror_project": {"config_path": "/tmp/of-mine.yaml"},
    "io_manager": {"base_dir": "/tmp/of-mine"},
}


def jobs(folder: Path, **resources: Any) -> list[dg.JobDefinition]:
    """Every job that the web page can launch, the one behind an asset's "Materialize" included."""
    defs = closed(build(write_project(folder, ["orders", "pay"], lanes=2), resources=resources))
    return list(defs.get_repository_def().get_all_jobs())


def leaves(kind: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Where a value may stand, and of which type."""
    while hasattr(kind, "inner_type"):
        kind = kind.inner_type
    fields = getattr(kind, "fields", None)
    if not fields:
        yield path, kind
    for name, field in (fields or {}).items():
        yield from leaves(field.config_type, f"{path}/{name}".lstrip("/"))


def test_a_run_may_set_nothing_but_what_is_listed_here(tmp_path: Path) -> None:
    found = {f"{job.name}: {path}": kind for job in jobs(tmp_path) for path, kind in leaves(job.run_config_schema.config_type)}
    assert {name.split(": ")[0].split("_")[0] for name in found} >= {"lane", "backfill", "verify", "mirror", ""}
    for name, kind in found.items():
        path = name.split(": ")[1]
        if path.startswith("resources/"):
            assert path.count("/") == 2 and path.endswith("/config") and not kind.fields, name
        elif path.startswith("ops/"):
            word = path.rsplit("/", 1)[1]
            assert word in OURS or (word == "config" and not kind.fields), name
            # no {env: NAME} beside the literal value
            assert word == "config" or kind.kind.name in ("SCALAR", "ENUM"), name
        else:
            assert path in DAGSTER, name


@pytest.mark.parametrize("resource", EVIL)
def test_no_job_takes_configuration_for_a_resource(tmp_path: Path, resource: str) -> None:
    for job in jobs(tmp_path):
        for config in (EVIL[resource], {key: {"env": "HOME"} for key in EVIL[resource]}):
            with pytest.raises(dg.DagsterInvalidConfigError, match="unexpected config entry"):
                dg.validate_run_config(job, {"resources": {resource: {"config": config}}})


def test_such_a_run_does_not_start(tmp_path: Path, fake: FakeMirror) -> None:
    lane = next(job for job in jobs(tmp_path, mirror_project=FakeMirrors(), mirror_spark=NoSpark()) if job.name.startswith("lane_"))
    with pytest.raises(dg.DagsterInvalidConfigError):
        lane.execute_in_process(run_config={"resources": {"mirror_spark": {"config": EVIL["mirror_spark"]}}})
    assert fake.calls == []


def test_a_resource_is_bound_wherever_it_is_used(tmp_path: Path) -> None:
    @dg.asset
    def thing(mirror_project: FakeMirrors) -> None: ...

    with pytest.raises(dg.DagsterInvalidConfigError):
        config = {"resources": {"mirror_project": {"config": EVIL["mirror_project"]}}}
        dg.materialize([thing], resources={"mirror_project": FakeMirrors()}, run_config=config)


@pytest.mark.parametrize(("name", "config"), [("lane", {"whole_lane": {"env": "SECRET"}}), ("backfill", {"into": {"env": "SECRET"}})])
def test_a_setting_cannot_be_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, config: dict[str, Any]
) -> None:
    monkeypatch.setenv("SECRET", "true")
    op = names.unique("lane", NAME, "lane-0") if name == "lane" else names.unique("backfill", NAME, "orders")
    for job in jobs(tmp_path):
        if job.has_node_named(op):
            with pytest.raises(dg.DagsterInvalidConfigError):
                dg.validate_run_config(job, {"ops": {op: {"config": config}}})


def test_values_reach_the_step(tmp_path: Path, fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    lane = next(job for job in jobs(tmp_path, mirror_project=FakeMirrors(), mirror_spark=NoSpark()) if job.name.startswith("lane_"))
    op = next(node.name for node in lane.nodes)
    done = lane.execute_in_process(instance=instance, run_config={"ops": {op: {"config": {"budget_seconds": 7, "whole_lane": True}}}})
    assert done.success
    assert (fake.calls[0]["seconds"], fake.calls[0]["idle_seconds"], fake.calls[0]["topics"]) == (7.0, 300.0, None)
