"""The only module that knows pyspark: the session, and running plain functions as Spark tasks."""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from mirror_pipeline.config import EngineConfig
from mirror_pipeline.errors import MirrorError, SparkGone, TaskLost, UsageError
from mirror_pipeline.execution import loaded_daemon
from mirror_pipeline.execution.class_archive import archive_options
from mirror_pipeline.execution.daemon_pool import DaemonPool
from mirror_pipeline.execution.socket_folder import socket_folder
from mirror_pipeline.execution.spark_host import environment, folders, jars_of, log_in

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

# Reading and writing share the slots: half of them each.
SHARES = 2
# Spark's Python workers are forks of this process.
DAEMON_MODULE = "mirror_pipeline.engine.tasks.spark_daemon"

# A failed write task must not run again before the target's tail was read; the user cannot change this.
RUN_ONCE = {"spark.task.maxFailures": "1", "spark.speculation": "false"}
MOST_JOBS = 256
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
# How long a warm-up task stays, so that each of them gets its own worker.
WARM_SECONDS = 0.2


def build_context(engine: EngineConfig, *, app_name: str = "mirror", with_delta: bool = False) -> SparkContext:
    """Start (or get) the process's Spark context, which is all that the data path needs; a session costs another half second.

    The data path runs Python functions only, so it needs no Delta jars; ``with_delta`` adds them for SQL over
    the buffer and the ledger.

    Raises:
        UsageError: no Java, or a Java too old.
        MirrorError: the Delta jars cannot be had, or Spark does not start.
    """
    settings = _settings(engine, with_delta)
    with environment(local=_is_local(settings["spark.master"])):
        return _start(settings, app_name)


def _start(settings: dict[str, str], app_name: str) -> SparkContext:
    from pyspark import SparkConf, SparkContext

    _convert_numpy(False)
    started = settings | _load_beside(settings)
    with _quiet_java(started):
        context = SparkContext.getOrCreate(SparkConf().setAppName(app_name).setAll(list(started.items())))
    context.setLogLevel("ERROR")
    return context


def _load_beside(settings: dict[str, str]) -> dict[str, str]:
    """Start to load the tasks' code before Java starts, and the property by which Spark's daemon finds it; nothing on a cluster."""
    from pyspark import SparkContext

    ours = settings["spark.python.daemon.module"] == DAEMON_MODULE
    if not ours or not _is_local(settings["spark.master"]) or SparkContext._gateway is not None:
        return {}
    return {f"spark.executorEnv.{loaded_daemon.VARIABLE}": loaded_daemon.start_loading(DAEMON_MODULE, socket_folder())}


def _convert_numpy(wanted: bool) -> None:
    """Whether py4j asks of each argument if it is a NumPy array; pyspark imports its testing tools and pandas for the answer, 0.4 s."""
    from py4j.protocol import INPUT_CONVERTER
    from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

    others = [each for each in INPUT_CONVERTER if not isinstance(each, NumpyArrayConverter | NumpyScalarConverter)]
    INPUT_CONVERTER[:] = [NumpyArrayConverter(), *others, NumpyScalarConverter()] if wanted else others


def build_session(engine: EngineConfig, *, app_name: str = "mirror", with_delta: bool = False) -> SparkSession:
    """Start (or get) the process's Spark session, on the context of :func:`build_context`. Arguments and errors as there.

    Raises:
        UsageError: Spark runs already, without Delta, which is wanted now.
    """
    from pyspark.sql import SparkSession

    settings = _settings(engine, with_delta)
    with environment(local=_is_local(settings["spark.master"])):
        _start(settings, app_name)
        _convert_numpy(True)
        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    if with_delta and not _knows_delta(session):
        handed = "ask in a process of its own, or hand one session with Delta to whatever uses Spark here"
        raise UsageError("this process started its Spark without Delta, and a running Java cannot be given it", hint=handed)
    return session


def _knows_delta(session: SparkSession) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        session._jvm.org.apache.spark.util.Utils.classForName(_DELTA_EXTENSION, True, True)  # type: ignore[union-attr]
    except Py4JJavaError:
        return False
    return True


@contextmanager
def _quiet_java(settings: dict[str, str]) -> Iterator[None]:
    """Start the JVM with its standard error in a file, for its whole run; show it when Spark does not start."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    handle, path = tempfile.mkstemp(prefix="mirror-spark-", suffix=".log")
    atexit.register(Path(path).unlink, missing_ok=True)
    try:
        if SparkContext._gateway is None:  # the public API gives the JVM this process's standard error
            conf = SparkConf().setAll(list(settings.items()))
            gateway = launch_gateway(conf, {"stderr": handle})  # type: ignore[no-untyped-call]
            if _is_local(settings["spark.master"]):
                log_in(gateway)
            SparkContext._ensure_initialized(gateway=gateway)
        yield
    except Exception as error:
        said = Path(path).read_text(errors="replace").splitlines()
        cause = [line for sign in ("xception", "rror") for line in said if sign in line]
        raise MirrorError(
            f"Spark did not start: {cause[0].strip() if cause else error}", hint=f"full output of Java: {_kept_log(path)}"
        ) from error
    finally:
        os.close(handle)


def _kept_log(path: str) -> str:
    kept = path.replace("mirror-spark-", "mirror-spark-failed-")
    Path(path).rename(kept)
    return kept


def refuse_retries(context: SparkContext) -> None:
    """Check a session that somebody else has started.

    Raises:
        UsageError: Spark would run a failed or slow write task again, before the target's log was read.
    """
    master, conf = str(context.master), context.getConf()
    local = re.fullmatch(r"local(?:\[[^,]+(?:,\s*(\d+))?\])?", master)  # counts failures by the master alone
    failures = str(local[1] or 1) if local else conf.get("spark.task.maxFailures", "4")
    wrong = [f"{master if local else 'spark.task.maxFailures'} allows {failures} failures of a task"] if failures != "1" else []
    if str(conf.get("spark.speculation", "false")).lower() == "true":
        wrong.append("spark.speculation is on")
    if wrong:
        needed = "start it with spark.task.maxFailures=1 and spark.speculation=false; a write task must not run twice"
        raise UsageError(f"the Spark session that was handed in cannot be used: {' and '.join(wrong)}", hint=needed)


def default_master() -> str:
    """``local[N]``: all cores of this machine, and one more slot for maintenance beside the copy."""
    return f"local[{max(SHARES, os.cpu_count() or 1) + 1}]"


def _settings(engine: EngineConfig, with_delta: bool) -> dict[str, str]:
    """Spark's properties: ours, over them the user's, over them those that may not be changed."""
    master = engine.spark_master or default_master()
    return {"spark.master": master, **_defaults(with_delta), **(_local() if _is_local(master) else {}), **dict(engine.spark), **RUN_ONCE}


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _defaults(with_delta: bool) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        # The JVM schedules a few tasks a second and sees no payload: optimising compilation costs more than it gains.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.python.daemon.module": DAEMON_MODULE,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.scheduler.mode": "FAIR",
        "spark.log.level": "ERROR",
    }
    if with_delta:
        from mirror_pipeline.execution.jars import ensure_jars

        settings |= {
            **jars_of(ensure_jars("delta")),
            "spark.sql.extensions": _DELTA_EXTENSION,
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": f"file://{socket_folder()}/warehouse",  # Spark's default is made in the current folder
            # Ledger and span table are small: Spark's defaults of 200 and 50 tasks would cost minutes.
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        }
    return settings


def _local() -> dict[str, str]:
    """Of a local session: closed to other users of this machine (Spark generates the secret in memory), in folders that its user has."""
    properties, options = folders()
    return {
        **properties,
        "spark.driver.defaultJavaOptions": archive_options() + options,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.authenticate": "true",
        "spark.python.unix.domain.socket.dir": socket_folder(),
    }


class SparkRunner:
    """Runs functions as RDD jobs; a kept base RDD saves half of a small job's time.

    Each task is a separate job: Spark fails a job at its first lost worker and abandons that job's other tasks, which
    would continue sending while the driver already examines what they sent.
    """

    def __init__(self, context: SparkContext, *, tasks: int | None = None) -> None:
        self._context = context
        self._base = self._context.parallelize(range(1), 1)
        self._threads = DaemonPool(MOST_JOBS, "spark-job")
        self._tasks = tasks

    @property
    def tasks(self) -> int:
        """Half of the current slots: reading and writing share them, and executors come and go."""
        return self._tasks or max(1, self._slots() // SHARES)

    @property
    def one_machine(self) -> bool:
        """True for a local session; a cluster gives a task to any executor."""
        return str(self._context.master).startswith("local") and not str(self._context.master).startswith("local-cluster")

    def _slots(self) -> int:
        with _spark_answers():
            return self._context.defaultParallelism

    def warm(self) -> None:
        """Start Spark's Python daemons, which load the tasks' code: one here, and one on every machine of a cluster."""
        here = self.one_machine  # where a further worker is a fork of the daemon, a matter of milliseconds
        self.run(time.sleep, [0.0] if here else [WARM_SECONDS] * SHARES * self.tasks, name="start Python workers")

    def run(self, function: Callable[[T], R], specs: Sequence[T], *, name: str) -> list[R]:
        """One task for each spec; the driver's thread waits. Raises what the first failing task raised, TaskLost or SparkGone."""
        answers = self.run_each(function, specs, name=name)
        for answer in answers:
            if isinstance(answer, TaskLost):
                raise answer
        return cast("list[R]", answers)

    def run_each(self, function: Callable[[T], R], specs: Sequence[T], *, name: str) -> list[R | TaskLost]:
        """One Spark job for each spec, all at once: a worker that dies loses its own task and no other."""
        if len(specs) < 2:
            return [self._run_one(function, spec, name) for spec in specs]
        jobs = [self._threads.submit(partial(self._run_one, function, spec, name)) for spec in specs]
        wait(jobs)
        return [job.result() for job in jobs]

    def _run_one(self, function: Callable[[T], R], spec: T, name: str) -> R | TaskLost:
        def one(_: object) -> list[R | _Raised]:
            if _tried_before():
                return [_Raised(TaskLost("its executor was lost"))]
            try:
                return [function(spec)]
            except Exception as error:  # noqa: BLE001 - raised by the driver, as it is; whatever Spark itself reports is a lost worker
                return [_Raised(error)]

        try:
            with _spark_answers():
                self._context.setLocalProperty("spark.job.description", name)
                (answer,) = self._base.mapPartitions(one).collect()
        except TaskLost as lost:
            return lost
        if isinstance(answer, _Raised):
            if isinstance(answer.error, TaskLost):
                return answer.error
            raise answer.error
        return answer


@contextmanager
def _spark_answers() -> Iterator[None]:
    """For calls to the JVM: raises TaskLost when a worker died, SparkGone when the JVM itself is gone."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    try:
        yield
    except Py4JJavaError as error:
        causes = re.findall(r"Exception: ([^.\n]*)", str(error.java_exception).partition("\n")[0])
        raise TaskLost(f"a Spark worker died: {causes[-1] if causes else error.java_exception}") from error
    except (Py4JNetworkError, Py4JError, OSError) as error:
        raise SparkGone("Spark's Java process is gone", hint="run again: it continues where the target's log ends") from error


def _tried_before() -> bool:
    """Whether Spark runs this task a second time; it does so by itself when a machine of its cluster is lost."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception that a task raised, as returned to the driver."""

    error: Exception
