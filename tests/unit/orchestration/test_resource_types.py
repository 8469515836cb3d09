"""The two resources as assets use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from mirror_pipeline.config.settings import EngineConfig, FrozenMap
from mirror_pipeline.errors import ConfigError, UsageError
from mirror_pipeline.execution import spark as engine_spark
from mirror_pipeline.orchestration.resource_types import MirrorsResource, SparkSessionResource
from tests.support.orchestration_fakes import NAME, write_project


class Session:
    def __init__(self, engine: EngineConfig) -> None:
        self.engine = engine
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """Every session that was built."""
    made: list[Session] = []

    def build(engine: EngineConfig) -> Session:
        made.append(Session(engine))
        return made[-1]

    monkeypatch.setattr(engine_spark, "build_session", build)
    return made


def test_mirrors_by_name(tmp_path: Path) -> None:
    mirrors = MirrorsResource(config_path=str(write_project(tmp_path, ["orders"], lanes=3).path))
    assert mirrors.mirror(NAME).lanes == ["lane-0", "lane-1", "lane-2"]
    assert mirrors.engine(NAME) == EngineConfig()
    assert set(mirrors.lanes_of(NAME, ["orders", "users"])) == {"orders", "users"}
    with pytest.raises(UsageError, match="no mirror"):
        mirrors.mirror("west-to-east")


def test_a_missing_file_is_an_error_only_when_it_is_asked_for(tmp_path: Path) -> None:
    mirrors = MirrorsResource(config_path=str(tmp_path / "mirror.yaml"))
    with pytest.raises(ConfigError, match="no such file"):
        mirrors.mirror(NAME)


def test_one_session_a_run_with_both_kinds_of_settings_stopped_at_its_end(sessions: list[Session]) -> None:
    seen: list[Any] = []
    engine = EngineConfig(spark=FrozenMap({"spark.a": "file", "spark.b": "file"}))

    @dg.asset
    def thing(spark: SparkSessionResource) -> None:
        seen.extend([spark.session_for(engine), spark.session_for(engine), spark.spark_session])
        assert not seen[0].stopped

    assert dg.materialize([thing], resources={"spark": SparkSessionResource(spark_config={"spark.b": "resource", "spark.c": 3})}).success
    (session,) = sessions
    assert seen == [session] * 3
    assert dict(session.engine.spark) == {"spark.a": "file", "spark.b": "resource", "spark.c": "3"}
    assert session.stopped


def test_no_session_is_started_for_those_who_do_not_ask(sessions: list[Session]) -> None:
    @dg.asset
    def thing(spark: SparkSessionResource) -> None: ...

    assert dg.materialize([thing], resources={"spark": SparkSessionResource()}).success
    assert sessions == []
