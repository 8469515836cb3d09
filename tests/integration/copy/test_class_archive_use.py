"""Spark's Java process maps the archive of its classes that this installation has made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirror_pipeline.execution.class_archive import archive_path

PROGRAM = """
import psutil
from mirror_pipeline.config import EngineConfig
from mirror_pipeline.execution.spark import build_session
build_session(EngineConfig())
(java,) = [child for child in psutil.Process().children(recursive=True) if child.name() == "java"]
print("\\n".join(mapped.path for mapped in java.memory_maps()))
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="a process's mappings are read in /proc")
def test_spark_uses_the_archive_that_was_made_for_it() -> None:
    subprocess.run([sys.executable, "-m", "mirror_pipeline.execution.class_archive"], check=True, timeout=280)  # `make` has made it
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=240)
    assert str(archive_path()) in done.stdout.splitlines()
