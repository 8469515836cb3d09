"""Everything here needs real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.execution.spark import build_session
from tests.integration.secured import Secured, secured
from tests.integration.worlds import NAMES, SECURED, World
from tests.integration.worlds import world as make_world

_HERE = Path(__file__).parent
_OURS: list[SparkSession] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests of a process (a second one with other settings would silently be the first)."""
    session = build_session(EngineConfig(spark_master="local[4]"), app_name="mirror-tests", with_delta=True)
    _OURS.append(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_session_of_its_own() -> Iterator[None]:
    """A test that starts Spark here without asking for ``spark`` takes Delta from all tests after it."""
    yield
    assert SparkContext._active_spark_context is None or _OURS, "this test must hand the fixture `spark` to its mirror, or use IN_PROCESS"


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
