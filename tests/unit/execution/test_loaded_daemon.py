"""The daemon that Java starts gives its pipes to one that has loaded already, and loads by itself where there is none."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from mirror_pipeline.execution import loaded_daemon
from mirror_pipeline.execution.spark import DAEMON_MODULE

SECONDS = 30.0


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder with a short path: a socket's has at most 107 bytes. Another test's session in this process may have a daemon, too."""
    earlier = len(loaded_daemon._started)
    yield str(tmp_path_factory.mktemp("d"))
    for child in loaded_daemon._started[earlier:]:
        child.kill()
        child.communicate()
    del loaded_daemon._started[earlier:]


def java_starts(folder: str, address: str | None) -> subprocess.Popen[bytes]:
    """Spark's daemon as Java starts it."""
    own = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": folder, "SPARK_REUSE_WORKER": "1"}
    given = {} if address is None else {loaded_daemon.VARIABLE: address}
    command = [sys.executable, "-m", DAEMON_MODULE, "pyspark.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **own, **given})


def answered_by(daemon: subprocess.Popen[bytes]) -> psutil.Process:
    """Ask for a worker as Java does; the process that forked it."""
    assert daemon.stdout is not None
    (size,) = struct.unpack(">i", daemon.stdout.read(4))
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(SECONDS)
        line.connect(daemon.stdout.read(size).decode())
        (worker,) = struct.unpack(">i", line.recv(4))
        parent = psutil.Process(worker).parent()
    assert parent is not None
    return parent


def end(daemon: subprocess.Popen[bytes]) -> None:
    """Java ends a daemon by closing its pipe."""
    daemon.communicate(timeout=SECONDS)


def test_the_loaded_one_forks_the_workers_and_ends_with_javas_pipe(folder: str) -> None:
    address = loaded_daemon.start_loading(DAEMON_MODULE, folder)
    daemon = java_starts(folder, address)
    forks = answered_by(daemon)
    assert forks.pid == loaded_daemon._started[-1].pid
    end(daemon)
    loaded_daemon._started[-1].wait(SECONDS)


def test_a_second_daemon_of_the_same_java_loads_by_itself(folder: str) -> None:
    address = loaded_daemon.start_loading(DAEMON_MODULE, folder)
    first = java_starts(folder, address)
    answered_by(first)
    second = java_starts(folder, address)
    assert answered_by(second).pid == second.pid
    end(first)
    end(second)


def test_one_that_died_while_it_loaded_is_not_waited_for(folder: str) -> None:
    address = loaded_daemon.start_loading(DAEMON_MODULE, folder)
    loaded_daemon._started[-1].kill()
    daemon = java_starts(folder, address)
    assert answered_by(daemon).pid == daemon.pid
    end(daemon)


def test_one_that_died_with_the_pipes_of_a_waiting_daemon_is_replaced(folder: str) -> None:
    address = loaded_daemon.start_loading(DAEMON_MODULE, folder)
    loading = psutil.Process(loaded_daemon._started[-1].pid)
    loading.suspend()
    daemon = java_starts(folder, address)
    while not psutil.Process(daemon.pid).net_connections("unix"):
        assert daemon.poll() is None
    loading.kill()
    assert answered_by(daemon).pid == daemon.pid
    end(daemon)


def test_it_ends_with_the_process_that_started_it(folder: str) -> None:
    loaded_daemon.start_loading(DAEMON_MODULE, folder)
    child = loaded_daemon._started[-1]
    assert child.stdin is not None
    child.stdin.close()
    child.stdin = None
    assert child.wait(SECONDS) == 0


def test_without_an_address_a_daemon_loads_by_itself(folder: str) -> None:
    daemon = java_starts(folder, None)
    assert answered_by(daemon).pid == daemon.pid
    end(daemon)
