"""Machine code that is kept for the next process, and what happens when that cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_DOUBLED = """
import logging
from mirror_pipeline.wire.compiled import compiled, types

logging.basicConfig()

@compiled(types.int64(types.int64))
def doubled(number):
    return 2 * number

print(doubled(21))
"""


def _run(script: Path, kept: Path) -> tuple[str, str]:
    surroundings = {**os.environ, "NUMBA_CACHE_DIR": str(kept)}
    done = subprocess.run([sys.executable, script], env=surroundings, check=True, timeout=100, capture_output=True, text=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_damaged_cache_costs_time_and_nothing_else(tmp_path: Path, ending: str) -> None:
    script, kept = tmp_path / "doubled.py", tmp_path / "kept"
    script.write_text(_DOUBLED)
    assert _run(script, kept) == ("42\n", "")
    damaged = list(kept.rglob(f"*.{ending}"))
    assert damaged
    for path in damaged:
        path.write_bytes(path.read_bytes()[:20])
    said, warned = _run(script, kept)
    assert said == "42\n"
    assert "no kept machine code for doubled" in warned
