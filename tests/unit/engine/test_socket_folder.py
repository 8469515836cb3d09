"""The sockets of Spark's Python workers lie in a closed folder that does not outlive its process for long."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from mirror_pipeline.engine.socket_folder import PREFIX

_PROGRAM = """
import sys, time
from mirror_pipeline.engine.socket_folder import socket_folder
print(socket_folder(), flush=True)
assert socket_folder() == socket_folder()
sys.stdin.read()
"""


def begin(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    own = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], how: signal.Signals | None = None) -> None:
    if how is not None:
        process.send_signal(how)
    process.communicate()


def test_it_is_closed_and_gone_with_its_process(tmp_path: Path) -> None:
    process, folder = begin(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    end(process)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_in_use_stays(tmp_path: Path) -> None:
    living, used = begin(tmp_path)
    killed, left = begin(tmp_path)
    (left / ".socket").touch()
    end(killed, signal.SIGKILL)
    (tmp_path / f"{PREFIX}link").symlink_to(used)
    assert left.exists()
    last, newest = begin(tmp_path)
    assert not left.exists()
    assert used.exists() and newest.exists()
    end(living)
    end(last)
    assert list(tmp_path.iterdir()) == [tmp_path / f"{PREFIX}link"]
