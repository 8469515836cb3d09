"""The check of every target asset: what it asks, what it says, and that lanes do not wait for it."""

from __future__ import annotations

import threading
from pathlib import Path

import dagster as dg
import pytest

from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.checks import verify_checks
from mirror_pipeline.orchestration.definitions import build
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, NoSpark, known, write_project

TOPICS = ("closed", "new", "orders", "pay")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMirror:
    made = FakeMirror()
    monkeypatch.setattr(FakeMirrors, "fakes", {NAME: made})
    return made


def check(*, raise_on_error: bool = True, selection: dg.AssetSelection | None = None) -> dg.ExecuteInProcessResult:
    checks = verify_checks(known(*TOPICS))
    job = dg.define_asset_job("verify", selection=selection or dg.AssetSelection.checks(checks))
    defs = dg.Definitions(asset_checks=[checks], jobs=[job], resources={"mirror_project": FakeMirrors(), "mirror_spark": NoSpark()})
    with dg.DagsterInstance.ephemeral() as instance:
        return defs.resolve_job_def("verify").execute_in_process(instance=instance, raise_on_error=raise_on_error)


def test_each_topic_gets_its_own_verdict(fake: FakeMirror) -> None:
    found = {names.topic_of(e.asset_key): e for e in check().get_asset_check_evaluations()}
    said = {topic: (e.passed, e.severity.value, e.description) for topic, e in found.items()}
    assert said == {
        "closed": (False, "WARN", "the source topic cannot be read"),
        "new": (True, "WARN", "no record was copied yet"),
        "orders": (False, "ERROR", ""),
        "pay": (True, "WARN", ""),
    }
    assert found["orders"].metadata["differences"].value == 1
    assert found["orders"].metadata["first_differences"].value[0]["kind"] == "missing"  # type: ignore[index,call-overload]
    assert "first_differences" not in found["pay"].metadata


def test_all_topics_are_one_verification_in_a_thread_that_spark_may_have(fake: FakeMirror) -> None:
    check()
    (call,) = fake.calls
    assert (call["topics"], call["since_verified"], call["session"]()) == (None, True, "session")  # started by whoever needs it
    assert call["thread"] is not threading.main_thread()


def test_only_the_selected_topics_are_compared(fake: FakeMirror) -> None:
    keys = [dg.AssetCheckKey(names.target_key(NAME, topic), names.SAME_CHECK) for topic in ("orders", "pay")]
    result = check(selection=dg.AssetSelection.checks(*keys))
    assert fake.calls[0]["topics"] == ["orders", "pay"]
    assert {names.topic_of(e.asset_key) for e in result.get_asset_check_evaluations()} == {"orders", "pay"}


def test_an_unreachable_cluster_fails_the_run_and_says_so(fake: FakeMirror) -> None:
    fake.run_error = ClusterUnreachable("west", "west does not answer", hint="start it")
    result = check(raise_on_error=False)
    assert not result.success
    assert result.get_asset_check_evaluations() == []
    (failed,) = result.get_step_failure_events()
    assert "west does not answer" in str(failed.event_specific_data)


def test_lanes_do_not_run_the_checks_and_a_schedule_does(tmp_path: Path) -> None:
    defs = build(write_project(tmp_path, ["orders"]))
    jobs = {job.name: job for job in defs.resolve_all_job_defs()}
    verify = next(job for name, job in jobs.items() if name.startswith("verify_job_"))
    lane = next(job for name, job in jobs.items() if name.startswith("lane_job_"))
    assert [node.name for node in verify.nodes] == ["verify_east_to_west"]
    assert [node.name for node in lane.nodes] == ["lane_east_to_west_0"]
    schedule = next(s for s in defs.schedules or () if s.name.startswith("verify_hourly"))
    assert schedule.job_name == verify.name  # type: ignore[union-attr]
