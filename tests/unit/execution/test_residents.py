"""Resident processes: one for each key, reached from every worker, gone with the worker they work for, or when they are not needed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mirror_pipeline.errors import TaskLost
from mirror_pipeline.execution import residents
from mirror_pipeline.execution.residents import NoResident, call, start_keeper
from tests.support.resident_tasks import die, hang, refuse, whose

pytestmark = pytest.mark.skipif(not hasattr(socket, "SOCK_SEQPACKET"), reason="needs packets between processes")

PROGRAM = """
import sys
from mirror_pipeline.execution import residents
residents.RESIDENT_IDLE_SECONDS = {idle}
residents.start_keeper()
from tests.unit.execution import test_residents as here
here.{test}(*sys.argv[1:])
"""
END_SECONDS = 60.0


def in_daemon(test: Callable[..., None], *words: str, idle: float = 600.0) -> None:
    """Run a function in a process of its own that has started a keeper: a fork of this one would have its threads' locks."""
    program = PROGRAM.format(test=test.__name__, idle=idle)
    subprocess.run([sys.executable, "-c", program, *words], cwd=Path(__file__).parents[3], timeout=END_SECONDS, check=True)


def worker(work: Callable[[], Any]) -> int:
    """Fork a worker, as Spark's daemon does."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + END_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_without_a_keeper_there_is_no_resident() -> None:
    with pytest.raises(NoResident):
        call("a", whose, None)


def test_tasks_of_one_key_run_in_one_process_whichever_worker_asks() -> None:
    in_daemon(several_workers)


def several_workers() -> None:
    first = call("a", whose, None)
    assert first[0] not in (os.getpid(), call("b", whose, None)[0])
    pid = worker(lambda: os._exit(0 if call("a", whose, None) == (first[0], 2) else 1))
    assert os.waitpid(pid, 0)[1] == 0
    assert call("a", whose, None) == (first[0], 3)


def test_what_a_task_raises_is_raised_and_the_resident_stays() -> None:
    in_daemon(raising)


def raising() -> None:
    with pytest.raises(ValueError, match="no"):
        call("a", refuse, "no")
    with pytest.raises(ValueError, match="again"):
        call("a", refuse, "again")
    assert call("a", whose, None)[1] == 1


def test_a_resident_that_dies_is_a_lost_task_and_the_next_one_has_another() -> None:
    in_daemon(dying)


def dying() -> None:
    before = call("a", whose, None)[0]
    with pytest.raises(TaskLost):
        call("a", die, 3)
    assert call("a", whose, None)[0] != before


def test_a_task_ends_with_its_worker(tmp_path: Path) -> None:
    in_daemon(killed_worker, str(tmp_path / "marker"))


def killed_worker(marker: str) -> None:
    pid = worker(lambda: call("a", hang, marker))
    until(Path(marker).exists)
    resident = int(Path(marker).read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: gone(resident))
    assert call("a", whose, None)[0] != resident


def test_a_resident_without_tasks_ends_and_another_one_starts() -> None:
    in_daemon(idling, idle=1.0)


def idling() -> None:
    resident = call("a", whose, None)[0]
    until(lambda: gone(resident))
    assert call("a", whose, None)[1] == 1


def test_without_its_keeper_a_worker_runs_its_tasks_itself() -> None:
    in_daemon(killed_keeper)


def killed_keeper() -> None:
    resident = call("a", whose, None)[0]
    keeper = psutil.Process(resident).ppid()
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    with pytest.raises(NoResident):
        call("a", whose, None)
    until(lambda: gone(resident))


def test_keeper_and_residents_end_with_the_daemon_and_its_workers(tmp_path: Path) -> None:
    in_daemon(ending, str(tmp_path / "pids"))
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    until(lambda: all(gone(pid) for pid in pids))


def ending(file: str) -> None:
    pids = [call(key, whose, None)[0] for key in "ab"]
    Path(file).write_text(" ".join(map(str, [*pids, psutil.Process(pids[0]).ppid()])))


def test_a_keeper_keeps_nothing_of_residents_that_ended() -> None:
    in_daemon(many, idle=1.0)


def many() -> None:
    pids = [call(str(number), whose, None)[0] for number in range(5)]
    (keeper,) = psutil.Process().children()
    until(lambda: all(gone(pid) for pid in pids))
    call("one more", whose, None)
    assert keeper.num_fds() < 5 + 5
    assert not [child for child in keeper.children() if child.status() == psutil.STATUS_ZOMBIE]


def test_where_there_are_no_such_sockets_tasks_run_in_their_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket, "socketpair", none)
    start_keeper()
    assert residents._keeper is None
