"""A mirror.yaml that stops loading takes no definition away."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.project import Project, read_project
from mirror_pipeline.orchestration.resource_types import MirrorsResource
from mirror_pipeline.orchestration.sensors.catalogue_sensor import file_tick
from tests.support.orchestration_fakes import NAME, NoSpark, write_project


def broken(path: Path) -> str:
    """Put a typo into the file; return what it said before."""
    text = path.read_text()
    path.write_text(text.replace("topics:", "topcis:"))
    return text


def jobs(project: Project) -> set[str]:
    return {job.name for job in build(project).resolve_all_job_defs()}


def look(project: Project) -> dg.SkipReason:
    sensor = next(s for s in build(project).sensors or () if isinstance(s, dg.SensorDefinition) and s.name == names.MIRROR_FILE)
    with dg.build_sensor_context() as context:
        result = sensor(context, **{names.MIRRORS_RESOURCE: MirrorsResource(config_path=str(project.path))})
    assert isinstance(result, dg.SkipReason)
    return result


def test_definitions_are_those_of_the_file_that_loaded_last(tmp_path: Path) -> None:
    good = write_project(tmp_path, ["orders"], lanes=2)
    before = broken(good.path)
    bad = read_project(good.path)
    assert "topcis" in bad.problem
    assert bad.mirrors == good.mirrors
    assert jobs(bad) == jobs(good) > {"mirror_prune", "lane_job_east_to_west_0"}
    bad.path.write_text(before)
    assert read_project(bad.path) == good


def test_a_file_of_another_name_has_its_own_memory(tmp_path: Path) -> None:
    good = write_project(tmp_path, ["orders"])
    (tmp_path / "other.yaml").write_text("mirrors: wrong")
    assert read_project(tmp_path / "other.yaml").mirrors == ()
    good.path.unlink()
    assert read_project(good.path).mirrors == good.mirrors, "a mounted file may be missing for a moment"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    path = write_project(tmp_path, None).path
    (tmp_path / ".mirror" / "mirror.yaml.loaded").unlink()
    (tmp_path / ".mirror").rmdir()
    (tmp_path / ".mirror").write_text("not a folder")
    assert [mirror.name for mirror in read_project(path).mirrors] == [NAME]


def test_the_page_says_that_the_file_does_not_load_and_when_it_does_again(tmp_path: Path) -> None:
    good = write_project(tmp_path, ["orders"])
    assert look(good).skip_message == f"{good.path} loads"
    before = broken(good.path)
    with pytest.raises(dg.Failure, match=r"mirror.yaml:5: .*topcis.*; lanes that run keep their settings, no run starts until"):
        look(good)
    bad = read_project(good.path)
    good.path.write_text(before)
    assert "is valid now: reload the code location" in (look(bad).skip_message or "")


def test_a_mirror_that_is_added_to_the_file_is_loaded_without_a_restart(tmp_path: Path) -> None:
    before = write_project(tmp_path, ["orders"])
    text = before.path.read_text()
    before.path.write_text(text + "# a comment\n")
    assert look(before).skip_message == f"{before.path} loads"
    second = "  - {name: second, source: east, target: west, topics: {include: [orders]}}\n"
    before.path.write_text(text.replace("mirrors:\n", f"mirrors:\n{second}"))
    assert (look(before).skip_message or "").startswith(f"{before.path} has changed: reload the code location")
    with dg.build_sensor_context() as context:
        said = [file_tick(context, before, MirrorsResource(config_path=str(before.path))).skip_message or "" for _ in range(2)]
    assert ["a reload was requested and is in progress" in each for each in said] == [False, True]
    after = read_project(before.path)
    assert {mirror.name for mirror in after.mirrors} == {NAME, "second"}
    assert look(after).skip_message == f"{before.path} loads"


def test_a_run_that_starts_meanwhile_says_why_it_cannot(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    path = write_project(tmp_path, ["orders"]).path
    broken(path)
    job = build(read_project(path), resources={names.SPARK_RESOURCE: NoSpark()}).resolve_job_def("lane_job_east_to_west_0")
    done = job.execute_in_process(instance=instance, raise_on_error=False)
    (failed,) = [event for event in done.all_events if event.is_step_failure]
    assert "lane east-to-west/0: " in str(failed.step_failure_data.error) and "topcis" in str(failed.step_failure_data.error)
