"""``mirror up``: start and stop Dagster's code server, web server and daemon together."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mirror_pipeline.config import Config, load_config
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.exporter import METRICS_HOST
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.project import CONFIG_ENV, UP_PID_ENV, UP_URL_ENV
from mirror_pipeline.orchestration.up.config_watch import ConfigWatch
from mirror_pipeline.orchestration.up.graphql import GraphQLError, location_problem
from mirror_pipeline.orchestration.up.home import LOGS, LONGEST_SOCKET_PATH, locked, prepare_home, write_workspace
from mirror_pipeline.orchestration.up.services import Service, wait_until
from mirror_pipeline.page.gate import HEALTH, PAGE_PREFIX
from mirror_pipeline.page.server import DEFAULT_PORT, choose_port
from mirror_pipeline.page.token import TOKEN_ENV, TOKEN_FILE_ENV, address, make_token, warning, write_token
from mirror_pipeline.text import plural

if TYPE_CHECKING:
    from dagster import DagsterRun

MODULE = "mirror_pipeline.orchestration.served"
CATALOGUE_SECONDS = 20.0
METRICS_PORT_FILE = "metrics.port"
# Three Python processes import Dagster, on a busy machine.
START_SECONDS = 180.0
# A lane ends after its current micro-batches. One that takes longer is killed, which loses nothing.
RUNS_END_SECONDS = 60.0
SERVICE_END_SECONDS = 15.0
SENSOR_SECONDS = "90"
Say = Callable[[str], None]


def run_up(
    config_path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    allow_hosts: Sequence[str] = (),
    with_token: bool = True,
    dagster_home: Path | None = None,
    metrics: bool = True,
) -> int:
    """Start everything, print the address with its token, run until interrupted; return the exit code.

    Args:
        config_path: the mirror.yaml.
        host: address to listen on. Beyond loopback the token crosses the network in clear text: see docs/security.md.
        port: 0 picks a free port; if the default port is taken, the next free one is used and printed.
        allow_hosts: additional host names that the page answers to, such as a proxy's.
        with_token: False lets every client in: for a page behind a proxy that authenticates.
        dagster_home: Dagster's folder; default ``.mirror/dagster_home`` next to mirror.yaml.
        metrics: also serve metrics for Prometheus, on this machine at port 9308 or the next free one.

    Raises:
        ConfigError: mirror.yaml is missing or wrong.
        UsageError: the port is taken, the folder cannot be used, or the environment's token is too short.
        ProblemFound: another ``mirror up`` runs in that folder.
    """
    config = load_config(config_path)
    os.environ |= _direct(host)
    token = make_token() if with_token else None
    home = prepare_home(dagster_home or config.state_folder / "dagster_home")
    chosen = choose_port(host, port)
    if port not in (0, chosen):
        _say(f"port {port} is taken, using {chosen}")
    if risk := warning(host, with_token):
        _say(risk)
    url = address(host, chosen)
    page = ["--host", host, "--port", str(chosen), *(part for name in allow_hosts for part in ("--allow-host", name))]
    with locked(home, url), _interrupts() as interrupted, ExitStack() as stack:
        refresh_catalogues(config)
        stack.callback(write_token, home, None)
        token_file = write_token(home, token)
        exporter = home / METRICS_PORT_FILE
        exporter.unlink(missing_ok=True)
        page += ["--config", str(config.path), *(("--metrics", str(exporter)) if metrics else ())]
        up = Up(config, home, url, token_file if token else None, interrupted, page=page)
        stack.callback(up.end)
        if not up.start():
            return 0 if interrupted.is_set() else 1
        key = f"?token={token}" if token else ""
        print(f"Dagster UI: {url}/{key}\nmirrors: {url}{PAGE_PREFIX}{key}", flush=True)
        if metrics:
            _say(f"metrics: http://{METRICS_HOST}:{exporter.read_text()}/metrics")
        return up.watch()


def refresh_catalogues(config: Config) -> None:
    """List the source topics of each mirror, so that the UI has its assets at once."""
    from mirror_pipeline import Mirror

    for mirror in config.mirrors:
        try:
            live = Mirror(config, mirror.name)
            catalogue = step_thread.bounded(live.refresh_catalogue, CATALOGUE_SECONDS, name=f"catalogue of {mirror.name}")
            _say(f"mirror {mirror.name}: {plural(len(catalogue.topics), 'topic')}")
        except (MirrorError, TimeoutError) as error:
            _say(f"mirror {mirror.name}: topics not refreshed, a sensor will retry: {error}")


class Up:
    """The services of one ``mirror up``: Dagster's, of which the web server also has this tool's page, metrics and messages."""

    def __init__(
        self, config: Config, home: Path, url: str, token: Path | None, interrupted: threading.Event, *, page: Sequence[str]
    ) -> None:  # fmt: skip
        self._home = home
        self._url = url
        self._page = page
        self._token = token.read_text().strip() if token else None
        self._interrupted = interrupted
        self._socket = _socket_path(home)
        self._workspace = write_workspace(home, self._socket, names.LOCATION)
        self._file = ConfigWatch(config.path, _say)
        self._code: Service | None = None
        self._web: Service | None = None
        self._daemon: Service | None = None
        self._env = {
            **{name: value for name, value in os.environ.items() if name not in (TOKEN_ENV, TOKEN_FILE_ENV)},
            **({TOKEN_FILE_ENV: str(token)} if token else {}),
            CONFIG_ENV: str(config.path),
            UP_URL_ENV: url,
            UP_PID_ENV: str(os.getpid()),
            "DAGSTER_HOME": str(home),
            "PYTHONSAFEPATH": "1",  # and nothing that they start imports a file of the current folder in place of a library
            "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS": os.environ.get("DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS", SENSOR_SECONDS),
        }

    def start(self) -> bool:
        """Start code server, then web server and daemon; False if one does not start (the reason is printed)."""
        if self._interrupted.is_set():
            return False
        self._socket.unlink(missing_ok=True)
        self._code = self._service(
            "code-server", "dagster", "code-server", "start", "--socket", str(self._socket), "--module-name", MODULE,
            "--attribute", "defs", "--location-name", names.LOCATION, "--log-level", "warning",
            "--working-directory", str(self._home),  # Dagster imports from there first, by default from the current folder
        )  # fmt: skip
        # The code server starts first: the daemon looks for a missing location only once a minute.
        if not self._wait(self._code, lambda: _listens(self._socket)):
            return False
        self._web = self._service(
            "webserver", "mirror_pipeline.orchestration.up.webserver", *self._page, "--workspace", str(self._workspace)
        )  # fmt: skip
        self._daemon = self._service("daemon", "dagster._daemon", "run", "--workspace", str(self._workspace), "--log-level", "warning")
        return self._wait(self._web, lambda: _answers(self._url)) and self._location_loads(self._web)

    def watch(self) -> int:
        """Wait until interrupted, or until a service ends by itself."""
        import dagster  # noqa: F401 - ending the runs needs it; importing it later would delay shutdown by seconds

        services = [service for service in (self._code, self._web, self._daemon) if service is not None]
        while not self._interrupted.wait(0.5):
            self._file.look()
            for service in services:
                if service.exit_code is not None:
                    _died(service)
                    return 1
        return 0

    def end(self) -> None:
        """Stop everything in order: the daemon, so that no run starts; running lanes after their micro-batch; the services."""
        if self._daemon is not None:
            self._daemon.end(SERVICE_END_SECONDS)
        if self._code is not None and self._code.exit_code is None:
            self._interrupted.clear()
            end_runs(self._home, self._socket, impatient=self._interrupted)
        for service in (self._web, self._code):
            if service is not None:
                service.terminate()
        for service in (self._web, self._code):
            if service is not None:
                service.end(SERVICE_END_SECONDS)
        self._socket.unlink(missing_ok=True)
        if self._socket.parent != self._home:
            self._socket.parent.rmdir()

    def _service(self, name: str, *arguments: str) -> Service:
        return Service(name, arguments, env=self._env, log=self._home / LOGS / f"{name}.log")

    def _wait(self, service: Service, condition: Callable[[], bool]) -> bool:
        if wait_until(condition, START_SECONDS, give_up=lambda: self._interrupted.is_set() or service.exit_code is not None):
            return True
        if service.exit_code is not None:
            _died(service)
        elif not self._interrupted.is_set():
            _say(f"{service.name} did not answer within {START_SECONDS:.0f} s, see {service.log}")
        return False

    def _location_loads(self, web: Service) -> bool:
        error: str | None = None

        def loaded() -> bool:
            nonlocal error
            with suppress(GraphQLError):
                error = location_problem(self._url, names.LOCATION, token=self._token)
            return error is not None

        if self._wait(web, loaded) and error:
            _say(f"the definitions do not load: {error}; see {self._home / LOGS / 'code-server.log'}")
        return error is not None


def end_runs(home: Path, socket: Path, *, impatient: threading.Event) -> None:
    """Terminate the runs of the code server at this socket and wait for them; queued ones are cancelled. Runs of others go on."""
    import dagster as dg

    from mirror_pipeline.orchestration.run_tags import IN_FLIGHT

    with dg.DagsterInstance.from_config(str(home)) as instance:
        in_flight = dg.RunsFilter(statuses=list(IN_FLIGHT))

        def ours() -> list[dg.DagsterRun]:
            return [run for run in instance.get_runs(in_flight) if _served_at(run) == str(socket)]

        runs = ours()
        if not runs:
            return
        _say(f"ending {plural(len(runs), 'run')}")
        for run in runs:
            # A worker that has died cannot be stopped; the reaper of the next start ends its run.
            with suppress(Exception):
                instance.run_coordinator.cancel_run(run.run_id)
        if not wait_until(lambda: not ours(), RUNS_END_SECONDS, give_up=impatient.is_set):
            _say("some runs take too long to stop and are killed; the next run continues where they stopped")


def _served_at(run: DagsterRun) -> str | None:
    """The socket of the code server that a run belongs to; None for runs of other places."""
    origin = run.remote_job_origin
    location = None if origin is None else origin.repository_origin.code_location_origin
    return getattr(location, "socket", None)


def _direct(host: str) -> dict[str, str]:
    """The variables that keep requests among the services away from this host's proxy."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = ",".join(part for part in (known, "127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host) if part)
    return {"no_proxy": names, "NO_PROXY": names}


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """SIGINT, SIGTERM and SIGHUP set the event. Outside the main thread no signal can be caught."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(_signal: int, _frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _socket_path(home: Path) -> Path:
    path = home / "code.sock"
    return path if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH else Path(tempfile.mkdtemp(prefix="mirror-up-")) / "code.sock"


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}{HEALTH}", timeout=5) as response:  # noqa: S310 - http, built here
            return bool(response.status == 200)
    except OSError:
        return False


def _died(service: Service) -> None:
    _say(f"{service.name} ended with exit code {service.exit_code}, see {service.log}\n{service.tail()}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
