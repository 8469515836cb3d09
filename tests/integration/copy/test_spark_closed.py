"""What a Spark session in local mode leaves open to other users of the machine: nothing that it does not ask a secret for."""

from __future__ import annotations

import os
import stat
from operator import neg  # workers do not import from the current folder
from pathlib import Path

from pyspark.sql import SparkSession

from mirror_pipeline.execution.socket_folder import socket_folder
from mirror_pipeline.execution.spark import SparkRunner


def java_children() -> list[Path]:
    """The Java processes that this one started."""
    found = (Path("/proc") / child for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return [process for process in found if process.joinpath("cmdline").read_bytes().split(b"\0")[0].endswith(b"java")]


def test_every_port_asks_for_a_secret_that_nobody_can_look_up(spark: SparkSession) -> None:
    assert SparkRunner(spark.sparkContext).run(neg, [1, 2, 3], name="neg") == [-1, -2, -3]
    conf = dict(spark.sparkContext.getConf().getAll())
    assert conf["spark.authenticate"] == "true"
    assert "spark.authenticate.secret" not in conf
    manager = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().securityManager()  # type: ignore[union-attr]
    assert manager.isAuthenticationEnabled()
    secret = manager.getSecretKey()
    assert len(secret) >= 32
    processes = java_children()
    assert processes
    for process in processes:
        assert secret.encode() not in process.joinpath("cmdline").read_bytes() + process.joinpath("environ").read_bytes()


def test_sockets_lie_in_a_folder_of_this_user(spark: SparkSession) -> None:
    SparkRunner(spark.sparkContext).run(neg, [1, 2, 3], name="neg")
    folder = Path(socket_folder())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    listening = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if str(folder) in line]
    assert listening, "of the workers, or of the accumulators"
