"""The lag sensor while the source does not answer: lanes with something staged are started all the same."""

from __future__ import annotations

import dagster as dg
import pytest

from mirror_pipeline.errors import BufferUnusable, ClusterUnreachable
from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.sensors import lag_sensor as module
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, known, mirror_lag

SILENT = ClusterUnreachable("east", "no broker answers", hint="is it up?")


def tick(instance: dg.DagsterInstance, cursor: str | None = "kept") -> dg.SensorResult | dg.SkipReason:
    with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
        return module.tick(context, known("orders", "users"), FakeMirrors())


@pytest.mark.parametrize("problem", [SILENT, TimeoutError("it takes too long")])
def test_what_is_staged_is_delivered(fake: FakeMirror, instance: dg.DagsterInstance, problem: Exception) -> None:
    fake.lag_answer, fake.staged = problem, mirror_lag(orders=7, users=0)
    result = tick(instance)
    assert isinstance(result, dg.SensorResult) and result.run_requests is not None
    (request,) = result.run_requests
    assert request.asset_selection == [names.target_key(NAME, "orders")]


def said(result: dg.SensorResult | dg.SkipReason) -> str:
    """Why nothing is started."""
    assert isinstance(result, dg.SensorResult) and not result.run_requests and result.skip_reason is not None
    return result.skip_reason.skip_message or ""


def test_with_nothing_staged_nothing_is_started(
    fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.lag_answer, fake.staged = SILENT, mirror_lag(orders=0, users=0)
    told, cursor = [], None
    for now in (0.0, 29.0, 31.0, 41.0):
        monkeypatch.setattr(step_thread, "wall_clock", lambda now=now: 1_000_000.0 + now)
        result = tick(instance, cursor=cursor)
        assert said(result) == "source cluster east unreachable: no broker answers (is it up?)"
        assert isinstance(result, dg.SensorResult)
        cursor = result.cursor
        told.append(result.asset_events)
    assert [len(events) for events in told] == [0, 0, 2, 0], "once it lasts, and not at every tick"
    (glance, check) = told[2]
    assert isinstance(check, dg.AssetCheckEvaluation) and not check.passed
    assert str(glance.metadata["state"].value).startswith("**not known: source cluster east unreachable")


def test_a_silent_target_or_an_unreadable_buffer_starts_nothing(
    fake: FakeMirror, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.lag_answer, fake.staged = ClusterUnreachable("west", "no broker answers"), mirror_lag(orders=7)
    assert said(tick(instance)) == "target cluster west unreachable: no broker answers"
    fake.lag_answer = SILENT

    def unreadable() -> MirrorLag:
        raise BufferUnusable("not readable")

    monkeypatch.setattr(fake, "undelivered", unreadable)
    result = tick(instance)
    assert "source cluster east unreachable" in said(result)
