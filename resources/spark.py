"""The Spark session of one run, as a thin layer over dagster-pyspark."""

# No `from __future__ import annotations`: Dagster reads the field types at run time.
import dataclasses
import threading
from typing import Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr

from mirror_pipeline.config import EngineConfig, FrozenMap

from .bound import BoundResource


class SparkSessionResource(BoundResource, LazyPySparkResource):
    """Builds the session on first use, with the engine's settings, and stops it with the run.

    ``spark_config`` adds Spark properties to those of mirror.yaml's ``engine.spark``; it wins over an equal key.
    Both belong to the deployment: a run cannot change them.
    Get the session in the thread that uses it, not in the step's main thread: pyspark would replace Dagster's
    signal handler, and "terminate" in the UI would no longer stop the run cleanly.
    """

    spark_config: dict[str, Any] = Field(default={}, description="Further Spark properties for this deployment.")
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def session_for(self, engine: EngineConfig) -> Any:
        """The process's Spark session, started with these settings if there is none yet.

        Raises:
            UsageError: Java is missing or too old.
        """
        from mirror_pipeline.execution.spark import build_session

        with self._lock:
            if self._spark_session is None:
                extra = {key: str(value) for key, value in self.spark_config.items()}
                self._spark_session = build_session(dataclasses.replace(engine, spark=FrozenMap({**engine.spark, **extra})))
            return self._spark_session

    def _init_session(self) -> None:
        # `.spark_session` of the base class: for user-defined assets that share the resource.
        self.session_for(EngineConfig())

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop the session; Python and JVM workers end with it."""
        with self._lock:
            if self._spark_session is not None:
                self._spark_session.stop()
                self._spark_session = None
