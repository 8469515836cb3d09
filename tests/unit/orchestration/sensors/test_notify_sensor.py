"""The sensor that tells a host project what is wrong with a mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.orchestration import step_thread
from mirror_pipeline.orchestration.sensors.notify_sensor import notify_sensor
from tests.support.mirrors import write_config
from tests.support.orchestration_fakes import NAME, FakeMirrors


class Host:
    """A project that is told; it may be out of order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.broken = False

    def tell(self, title: str, text: str) -> None:
        if self.broken:
            raise OSError("no network")
        self.told.append(title)


@pytest.fixture
def host(tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch) -> Host:
    mirror = Mirror(load_config(write_config(tmp_path, "127.0.0.1:1", "127.0.0.1:2", [".*"])), "m")
    FakeMirrors.fakes[NAME] = cast(Any, mirror)
    return Host()


def test_a_cause_is_told_once_it_has_lasted_and_only_once(
    host: Host, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor, cursor, now = notify_sensor(NAME, host.tell, after=60.0), "", 1_000.0
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    monkeypatch.setattr(step_thread, "wall_clock", lambda: now)

    def tick() -> str:
        nonlocal cursor
        context = dg.build_sensor_context(instance, cursor=cursor, resources={"mirror_project": FakeMirrors()})
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        cursor = result.cursor or ""
        return str(cast(dg.SkipReason, result.skip_reason).skip_message)

    assert tick() == "nothing new to tell"
    now += 61
    host.broken = True
    assert tick() == "nothing new to tell"
    host.broken = False
    said = tick()
    (title,) = host.told
    assert said == title
    assert title.startswith(f"mirror {NAME}: ")
    now += 61
    tick()
    assert host.told == [title]


def test_the_sensor_is_part_of_a_project_of_others(host: Host) -> None:
    defs = dg.Definitions(sensors=[notify_sensor(NAME, host.tell)], resources={"mirror_project": FakeMirrors()})
    dg.Definitions.validate_loadable(defs)
