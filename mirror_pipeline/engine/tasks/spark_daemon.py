"""Spark's Python daemon with the tasks' code loaded before it forks workers (``spark.python.daemon.module``).

A worker of Spark's own daemon imports everything anew: 1.6 s of CPU time each, and memory that workers cannot share. And it collects
garbage after every task, which takes as long as the objects of all modules are many; frozen ones are not looked at.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

from mirror_pipeline.execution import loaded_daemon

# Before numpy and pyarrow are loaded: a fork copies no thread, and neither of them may have one by then.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def load() -> None:
    """Import what read and write tasks need, and Spark's worker."""
    import_module("pyspark.worker")
    import_module("mirror_pipeline.engine.tasks.read.task")
    import_module("mirror_pipeline.engine.tasks.write.task")
    gc.collect()
    gc.freeze()


def serve() -> None:
    """Serve workers to the JVM until it ends."""
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    loaded_daemon.run(sys.argv[1:], load, serve)
