"""The daemon that forks Spark's Python workers: loaded, and without threads, which a fork does not copy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from mirror_pipeline.engine.tasks import spark_daemon
spark_daemon.load()
assert {"mirror_pipeline.engine.tasks.read.task", "mirror_pipeline.engine.tasks.write.task", "pyspark.worker"} <= set(sys.modules)
print(len(os.listdir("/proc/self/task")), sum(name in sys.modules for name in ("pandas", "dagster", "deltalake", "rich")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_the_daemon_has_the_tasks_loaded_and_no_thread_when_it_forks() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    threads, needless = done.stdout.split()
    assert (threads, needless) == ("1", "0")
