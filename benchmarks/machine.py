"""The machine under the comparison: what it is, which versions run on it, and getting its memory ready."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks import mm2
from mirror_pipeline.execution.java import find_java, java_version
from mirror_pipeline.local.embedded.settings import DEFAULT_VERSION
from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters

GB = 1 << 30
PAGE = 4096
TOUCH_STEP = 64 << 20
TOUCH_SHARE = 0.85  # of the memory that is entirely free, not even page cache
KEEP_BYTES = 1 * GB  # left alone whatever happens
BROKER_HEAP = "1g"  # what bin/kafka-server-start.sh gives a broker
SERVER_JIT = "-XX:TieredStopAtLevel=4"  # embedded brokers stop at the client compiler; a real broker does not
BROKER_CONFIG = {
    "log.segment.delete.delay.ms": "1000",  # removed topics shall be gone before the next round, not a minute later
    "log.initial.task.delay.ms": "1000",
}


def touch_memory(share: float = TOUCH_SHARE) -> int:
    """Write to most of the free memory once and give it back; returns bytes.

    In a virtual machine the first use of a page is a fault of the host as well, which costs more than the copy into
    it: without this, the first gigabytes of each page cache would pay for it and later ones not.
    """
    size = int(psutil.virtual_memory().free * share)
    process = multiprocessing.get_context("spawn").Process(target=_touch, args=(size,))
    process.start()
    process.join()
    return size if process.exitcode == 0 else 0


def _touch(size: int) -> None:
    held = []
    while size >= TOUCH_STEP and psutil.virtual_memory().available > KEEP_BYTES:
        held.append(mmap.mmap(-1, TOUCH_STEP))
        held[-1][::PAGE] = b"\1" * (TOUCH_STEP // PAGE)
        size -= TOUCH_STEP


def two_clusters(folder: Path) -> tuple[LocalCluster, LocalCluster]:
    """Source and target, one broker each, with the JVM's server compiler and a real broker's heap."""
    source, target = start_clusters(
        folder, names=["source", "target"], heap=BROKER_HEAP, jvm_options=(SERVER_JIT,), config=BROKER_CONFIG
    )
    return source, target


def facts() -> dict[str, Any]:
    """What the figures depend on; nothing that names a host or a user."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {re.match(r'[0-9.]*', platform.release()).group(0)}",  # type: ignore[union-attr]
    }


def versions() -> dict[str, Any]:
    """Of everything that takes part."""
    return {
        "mirror_pipeline": version("mirror-pipeline"),
        "commit": _commit(),
        "kafka": DEFAULT_VERSION,
        "mirrormaker": mm2.JARS.removeprefix("mm2-"),
        "python": platform.python_version(),
        "java": java_version(find_java()),
        **{name: version(name) for name in ("pyspark", "deltalake", "pyarrow", "confluent-kafka")},
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _commit() -> str:
    """The checkout's commit, with the suffix ``+`` when files differ from it; empty outside a repository."""
    root = Path(__file__).parent.parent
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=20)
    except OSError:
        return ""
    return answer.stdout.strip()
