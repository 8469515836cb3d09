"""Everything here needs real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.execution import spark as spark_sessions
from mirror_pipeline.execution.spark import build_session
from tests.integration.secured import Secured, secured
from tests.integration.worlds import NAMES, SECURED, World
from tests.integration.worlds import world as make_world

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session", autouse=True)
def delta_for_all() -> Iterator[None]:
    """Whichever test starts this process's Java, those after it may need Delta, which a running one cannot be given."""
    with pytest.MonkeyPatch.context() as patch:
        ours = spark_sessions._settings
        patch.setattr(spark_sessions, "_settings", lambda engine, _: ours(engine, True))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests of a process (a second one with other settings would silently be the first)."""
    session = build_session(EngineConfig(spark_master="local[4]"), app_name="mirror-tests", with_delta=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def secured_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Two clusters with TLS, SASL and an authorizer, for the whole session; the mirror's principal begins without rights."""
    with secured(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture(params=[pytest.param(name, marks=[] if name == "prefix" else pytest.mark.long) for name in NAMES])
def world(request: pytest.FixtureRequest) -> World:
    """Each set-up under which MirrorMaker's cases run."""
    if request.param in SECURED:
        return make_world(request.param, None, request.getfixturevalue("secured_clusters"))
    return make_world(request.param, request.getfixturevalue("clusters"), None)
