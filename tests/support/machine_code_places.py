"""A cache folder for compiled machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KERNEL = """
import numba
SIGNATURE = numba.types.int64(numba.types.CPointer(numba.types.uint8), numba.types.int64)

@numba.njit(error_model="numpy")
def _times(number, by):
    return number * by

def total(data, size):
    found = 0
    for place in range(size):
        found += _times(data[place], 2)
    return found

def quotient(data, size):
    if size > 5:
        raise ValueError("too many")
    return 7
"""
PROGRAM = """
import logging, sys
from ctypes import CFUNCTYPE, c_char_p, c_int64
from mirror_pipeline.kafka.records.machine_code import machine_code
logging.basicConfig(format="%(message)s")
total = CFUNCTYPE(c_int64, c_char_p, c_int64)(machine_code("kernel", sys.argv[1]))
print(total(bytes([1, 2, 18]), 3), "numba" in sys.modules)
"""


class Place:
    """A folder with a kernel, a cache folder and a temporary folder beside it."""

    def __init__(self, path: Path) -> None:
        self.folder, self.cache, temporary = path / "package", path / "cache", path / "tmp"
        self.temporary_cache = temporary / f"mirror-pipeline-{os.geteuid()}"
        self.folder.mkdir()
        temporary.mkdir()
        (self.folder / "kernel.py").write_text(KERNEL)

    def run(self, function: str = "total") -> tuple[str, str]:
        own = {"PYTHONPATH": f"{self.folder}:{os.getcwd()}", "MIRROR_CACHE": str(self.cache), "PYTHONDONTWRITEBYTECODE": "1"}
        own["TMPDIR"] = str(self.temporary_cache.parent)
        program = [sys.executable, "-c", PROGRAM, function]
        done = subprocess.run(program, env={**os.environ, **own}, timeout=100, capture_output=True, text=True)
        return done.stdout, done.stderr

    def kept(self) -> list[Path]:
        return sorted(self.folder.parent.rglob("kernel.*.o*"))
