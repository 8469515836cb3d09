"""The parts of ``mirror up`` that need no Dagster process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster import DagsterInstance
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from mirror_pipeline.errors import ConfigError, ProblemFound, UsageError
from mirror_pipeline.orchestration.up import home as home_module
from mirror_pipeline.orchestration.up.home import locked, packaged_settings, prepare_home, write_workspace
from mirror_pipeline.orchestration.up.services import Service, wait_until
from mirror_pipeline.orchestration.up.supervisor import _socket_path, end_runs, run_up


def test_a_missing_configuration_is_said_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run_up(tmp_path / "mirror.yaml")
    assert list(tmp_path.iterdir()) == []


def test_the_home_is_made_with_settings_that_dagster_accepts(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "a" / "home")
    assert home.is_absolute()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (home / "dagster.yaml").read_text() == packaged_settings().read_text()
    with DagsterInstance.from_config(str(home)) as instance:
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1


def test_settings_that_are_there_stay(tmp_path: Path) -> None:
    home = prepare_home(tmp_path)
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    assert (prepare_home(tmp_path) / "dagster.yaml").read_text() == "telemetry: {enabled: false}\n"


def test_every_setting_has_its_reason() -> None:
    """Each top-level section of the shipped file carries a comment."""
    text = packaged_settings().read_text()
    sections = yaml.safe_load(text)
    blocks = text.split("\n\n")
    for name in sections:
        block = next(part for part in blocks if part.startswith(f"{name}:"))
        assert "#" in block, name


def test_a_home_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Dagster's folder"):
        prepare_home(tmp_path / "file" / "home")


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    home = prepare_home(tmp_path)
    with (
        locked(home, "http://127.0.0.1:1"),
        pytest.raises(ProblemFound, match=rf"process {os.getpid()}, http://127.0.0.1:1"),
        locked(home, "x"),
    ):
        pass
    with locked(home, "again"):
        pass


def test_a_long_path_does_not_break_the_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    path = _socket_path(deep)
    assert len(os.fsencode(path)) <= home_module.LONGEST_SOCKET_PATH
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.parent.rmdir()
    assert _socket_path(Path("/h")) == Path("/h/code.sock")


def test_the_workspace_names_the_code_server(tmp_path: Path) -> None:
    document = yaml.safe_load(write_workspace(tmp_path, tmp_path / "code.sock", "mirror_pipeline").read_text())
    assert document["load_from"][0]["grpc_server"]["location_name"] == "mirror_pipeline"


CHILD = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid, flush=True)
time.sleep(300)
"""


def service(tmp_path: Path, code: str) -> Service:
    (tmp_path / "child_module.py").write_text(code)
    return Service("child", ["child_module"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, log=tmp_path / "child.log")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_service_ends_with_all_its_descendants(tmp_path: Path) -> None:
    child = service(tmp_path, CHILD)
    assert wait_until(lambda: bool(child.tail()), 30)
    grandchild = int(child.tail())
    assert alive(grandchild)
    child.end(10)
    assert child.exit_code == -signal.SIGTERM
    assert wait_until(lambda: not alive(grandchild), 10)


def test_a_service_that_does_not_listen_is_ended_the_hard_way(tmp_path: Path) -> None:
    child = service(tmp_path, "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(300)\n")
    assert wait_until(lambda: child.tail() == "ready", 30)
    child.end(0.5)
    assert child.exit_code == -signal.SIGKILL


def test_a_service_ends_although_its_parent_ignores_the_signal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        child = service(tmp_path, CHILD)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert wait_until(lambda: bool(child.tail()), 30)
    child.end(10)
    assert child.exit_code == -signal.SIGTERM


def test_a_service_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom mirror_pipeline.orchestration.up.services import Service\n"
        "child = Service('child', ['http.server', '0', '--bind', '127.0.0.1'], env=os.environ, log=Path(sys.argv[1]))\n"
        "print(child.pid, flush=True)\ntime.sleep(300)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    try:
        assert alive(pid)
        parent.kill()
        parent.wait(10)
        assert wait_until(lambda: not alive(pid), 20)
    finally:
        parent.stdout.close()
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_the_log_of_the_time_before_is_kept(tmp_path: Path) -> None:
    for word in ("one", "two"):
        child = service(tmp_path, f"print('{word}', flush=True)\n")
        assert wait_until(lambda child=child: child.exit_code is not None, 30)  # type: ignore[misc]
    assert child.tail() == "two"
    assert (tmp_path / "child.log.1").read_text().strip() == "one"


def test_waiting_has_an_end() -> None:
    assert not wait_until(lambda: False, 0.3)
    assert not wait_until(lambda: False, 3000, give_up=lambda: True)


def origin(socket_path: Path) -> RemoteJobOrigin:
    location = GrpcServerCodeLocationOrigin(host="localhost", socket=str(socket_path), location_name="mirror_pipeline")
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), "job")


def test_the_end_touches_no_run_of_others(tmp_path: Path) -> None:
    """Runs in flight without an origin, and of another code server, in the instance whose `mirror up` ends."""

    @dg.job
    def job() -> None: ...

    home = prepare_home(tmp_path)
    tags = {"mirror/kind": "lane"}
    with DagsterInstance.from_config(str(home)) as instance:
        ours = instance.create_run_for_job(job, status=dg.DagsterRunStatus.QUEUED, remote_job_origin=origin(home / "code.sock"))
        others = [
            instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED),
            instance.create_run_for_job(job, status=dg.DagsterRunStatus.QUEUED, remote_job_origin=origin(tmp_path / "x.sock")),
            instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags),
        ]
        end_runs(home, home / "code.sock", impatient=threading.Event())
        runs = {run.run_id: run.status.value for run in instance.get_runs()}
    assert runs.pop(ours.run_id) == "CANCELED"
    assert runs == {run.run_id: run.status.value for run in others}
