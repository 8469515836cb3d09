"""Everything here needs real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.execution.spark import build_session

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests of a process (a second one with other settings would silently be the first)."""
    session = build_session(EngineConfig(spark_master="local[4]"), app_name="mirror-tests", with_delta=True)
    yield session
    session.stop()
