"""A Spark standalone cluster on this machine, started from the pip package: a master and workers, each a process."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pyspark

from mirror_pipeline.execution.java import find_java
from mirror_pipeline.execution.spark import DAEMON_MODULE
from mirror_pipeline.local.embedded.ports import free_port
from tests.integration.processes import wait_until

START_SECONDS = 120.0
HOST = "127.0.0.1"


class SparkCluster:
    """Use it as a context manager.

    Args:
        folder: for logs and the workers' own files.
        workers: how many.
        cores: task slots of each worker.
    """

    def __init__(self, folder: Path, *, workers: int, cores: int) -> None:
        self._folder = folder
        self._count, self._cores = workers, cores
        self._port = free_port()
        self._page = free_port({self._port})
        self.url = f"spark://{HOST}:{self._port}"
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SparkCluster:
        place = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._page)]
        self._master = self._start("master", "org.apache.spark.deploy.master.Master", *place)
        self._await("master", "I have been elected leader")
        for number in range(self._count):
            name = f"worker-{number}"
            own = ["--host", HOST, "--webui-port", "0", "--cores", str(self._cores), "--memory", "1g"]
            own += ["--work-dir", str(self._folder / name)]
            self.workers.append(self._start(name, "org.apache.spark.deploy.worker.Worker", *own, self.url))
            self._await(name, "Successfully registered with master")
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers, self._master):
            if process is not None:
                kill_family(process)

    def kill_worker(self, number: int) -> int:
        """``kill -9`` for a worker with its executor and that one's Python processes; how many processes that were."""
        return kill_family(self.workers[number])

    def executors(self, number: int) -> int:
        """How many Python workers the worker's executors have."""
        return sum(DAEMON_MODULE in _command(member) for member in psutil.Process(self.workers[number].pid).children(recursive=True))

    def _start(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        keep["JAVA_HOME"] = str(find_java().resolve().parent.parent)
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(home / "bin" / "spark-class"), kind, *arguments],
                cwd="/", env={**keep, **own}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _await(self, name: str, said: str) -> None:
        log = self._folder / f"{name}.log"
        wait_until(lambda: said in log.read_text(errors="replace"), START_SECONDS, f"Spark's {name}; see {log}")


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie, too
        return ""


def kill_family(process: subprocess.Popen[bytes]) -> int:
    """``kill -9`` for a process and everything below it."""
    try:
        root = psutil.Process(process.pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait(30)
    psutil.wait_procs(family, timeout=30)
    return len(family)
