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
    """Builds the session when it is first asked for, with the engine's own settings, and stops it with the run.

    ``spark_config`` adds Spark properties to those of mirror.yaml's ``engine.spark``; on a clash it wins.
    Both are a matter of the deployment: a run cannot change them.
    Ask for the session from the thread that works with it, not from the step's main thread: pyspark would put
    its own handler in the place of Dagster's, and "terminate" in the UI would no longer end the run in order.
    """

    spark_config: dict[str, Any] = Field(default={}, description="Further Spark properties for this deployment.")
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def session_for(self, engine: EngineConfig) -> Any:
        """The process's Spark session, started with these settings if there is none yet.

        Raises:
            UsageError: no Java, or a Java too old.
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
