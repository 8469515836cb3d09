"""The sockets of Spark's Python workers lie in a closed folder that does not outlive its process for long."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_pipeline.execution.socket_folder import PREFIX

_PROGRAM = """
import sys, time
from mirror_pipeline.execution.socket_folder import socket_folder
print(socket_folder(), flush=True)
assert socket_folder() == socket_folder()
sys.stdin.read()
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary folder with room for the paths of sockets, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as name:
        yield Path(name)


def begin(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    own = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], how: signal.Signals | None = None) -> None:
    if how is not None:
        process.send_signal(how)
    process.communicate()


def test_it_is_closed_and_gone_with_its_process(short: Path) -> None:
    process, folder = begin(short)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    end(process)
    assert list(short.iterdir()) == []


def test_a_long_path_does_not_break_the_sockets(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    process, folder = begin(deep)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(str(folder / f".{uuid.uuid4()}.sock"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    end(process)
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_in_use_stays(short: Path) -> None:
    living, used = begin(short)
    killed, left = begin(short)
    (left / ".socket").touch()
    end(killed, signal.SIGKILL)
    (short / f"{PREFIX}link").symlink_to(used)
    assert left.exists()
    last, newest = begin(short)
    assert not left.exists()
    assert used.exists() and newest.exists()
    end(living)
    end(last)
    assert list(short.iterdir()) == [short / f"{PREFIX}link"]
