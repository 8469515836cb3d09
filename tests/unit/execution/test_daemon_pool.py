"""Calls in threads that are kept, run side by side, and never hold up the end of the process."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from operator import mul

import pytest

from mirror_pipeline.execution.daemon_pool import DaemonPool


def test_results_and_errors_come_back_and_threads_are_kept() -> None:
    pool = DaemonPool(4, "t")
    assert [pool.submit(partial(mul, n, 2)).result(10) for n in range(20)] == [n * 2 for n in range(20)]
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(10)
    assert len(pool._threads) <= 2


def test_as_many_as_allowed_run_at_once_and_the_rest_wait() -> None:
    pool = DaemonPool(3, "t")
    inside, go = threading.Semaphore(0), threading.Event()

    def call() -> bool:
        inside.release()
        return go.wait(10)

    futures = [pool.submit(call) for _ in range(5)]
    assert all(inside.acquire(timeout=10) for _ in range(3))
    assert not inside.acquire(timeout=0.1)
    go.set()
    assert all(future.result(10) for future in futures)
    assert len(pool._threads) == 3


def test_a_call_that_never_ends_does_not_keep_the_process() -> None:
    imports = "import threading; from mirror_pipeline.execution.daemon_pool import DaemonPool"
    text = f"{imports}; DaemonPool(1, 't').submit(threading.Event().wait)"
    subprocess.run([sys.executable, "-c", text], timeout=60, check=True)
