"""``mirror up``: Dagster's code server, web server and daemon as one thing that starts and ends together."""

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

from mirror_pipeline.config import Config, load_config
from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.orchestration import names, step_thread
from mirror_pipeline.orchestration.project import CONFIG_ENV, UP_PID_ENV, UP_URL_ENV
from mirror_pipeline.orchestration.up.gate import HEALTH
from mirror_pipeline.orchestration.up.graphql import GraphQLError, location_problem
from mirror_pipeline.orchestration.up.home import LOGS, LONGEST_SOCKET_PATH, locked, prepare_home, write_workspace
from mirror_pipeline.orchestration.up.page import TOKEN_ENV, TOKEN_FILE_ENV, address, keep_token, make_token, warning
from mirror_pipeline.orchestration.up.services import Service, wait_until

DEFAULT_PORT = 3000
PORTS_TRIED = 20
MODULE = "mirror_pipeline.orchestration.served"
CATALOGUE_SECONDS = 20.0
START_SECONDS = 180.0
"""Three Python processes that import Dagster, on a busy machine."""
RUNS_END_SECONDS = 60.0
"""A lane ends after its current micro-batches; one that takes longer is killed, which loses nothing."""
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
) -> int:
    """Start everything, print the address with its token, stay until interrupted; the exit code.

    Args:
        config_path: the mirror.yaml.
        host: address to listen on. Beyond loopback the token crosses the network as it is: see docs/security.md.
        port: 0 picks a free one; when the default is taken, the next free one is used and named.
        allow_hosts: further names that the page answers to, such as a proxy's.
        with_token: False lets in whoever reaches the port: for those behind a proxy that asks.
        dagster_home: Dagster's folder; default ``.mirror/dagster_home`` beside mirror.yaml.

    Raises:
        ConfigError: mirror.yaml is missing or wrong.
        UsageError: the port is taken, the folder cannot be used, or the environment's token is too short.
        ProblemFound: another ``mirror up`` is at work in that folder.
    """
    config = load_config(config_path)
    token = make_token() if with_token else None
    home = prepare_home(dagster_home or config.state_folder / "dagster_home")
    chosen = choose_port(host, port)
    if port not in (0, chosen):
        _say(f"port {port} is taken, using {chosen}")
    if said := warning(host, with_token):
        _say(said)
    url = address(host, chosen)
    page = ["--host", host, "--port", str(chosen), *(part for name in allow_hosts for part in ("--allow-host", name))]
    with locked(home, url), _interrupts() as interrupted, ExitStack() as stack:
        refresh_catalogues(config)
        stack.callback(keep_token, home, None)
        kept = keep_token(home, token)
        up = Up(config, home, url, kept if token else None, interrupted, page=page)
        stack.callback(up.end)
        if not up.start():
            return 0 if interrupted.is_set() else 1
        print(f"Dagster UI: {url}/?token={token}" if token else f"Dagster UI: {url}", flush=True)
        return up.watch()


def choose_port(host: str, port: int) -> int:
    """A free port: the wanted one, or the next when it is the default one.

    Raises:
        UsageError: it is taken.
    """
    last = port + PORTS_TRIED if port == DEFAULT_PORT else port
    for candidate in range(port, last + 1):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((host, candidate))
                return int(probe.getsockname()[1])
    raise UsageError(f"port {port} on {host} is taken", hint="--port names another, 0 picks a free one")


def refresh_catalogues(config: Config) -> None:
    """Ask the source of each mirror which topics there are, so that the UI has its assets at once."""
    from mirror_pipeline import Mirror

    for mirror in config.mirrors:
        try:
            live = Mirror(config, mirror.name)
            found = step_thread.bounded(live.refresh_catalogue, CATALOGUE_SECONDS, name=f"catalogue of {mirror.name}")
            _say(f"mirror {mirror.name}: {len(found.topics)} topics")
        except (MirrorError, TimeoutError) as error:
            _say(f"mirror {mirror.name}: topics not refreshed, a sensor tries again: {error}")


class Up:
    """The three services of one ``mirror up``."""

    def __init__(
        self, config: Config, home: Path, url: str, token: Path | None, interrupted: threading.Event, *, page: Sequence[str]
    ) -> None:
        self._home = home
        self._url = url
        self._page = page
        self._token = token.read_text().strip() if token else None
        self._interrupted = interrupted
        self._socket = _socket_path(home)
        self._workspace = write_workspace(home, self._socket, names.LOCATION)
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
            "PYSPARK_PYTHON": sys.executable,
            "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS": os.environ.get("DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS", SENSOR_SECONDS),
        }

    def start(self) -> bool:
        """Start code server, then web server and daemon; False when one does not come up (it was said why)."""
        if self._interrupted.is_set():
            return False
        self._socket.unlink(missing_ok=True)
        self._code = self._service(
            "code-server", "dagster", "code-server", "start", "--socket", str(self._socket), "--module-name", MODULE,
            "--attribute", "defs", "--location-name", names.LOCATION, "--log-level", "warning",
        )  # fmt: skip
        # The daemon looks for a location that it did not find only once a minute: so the code server comes first.
        if not self._wait(self._code, lambda: _listens(self._socket)):
            return False
        self._web = self._service(
            "webserver", "mirror_pipeline.orchestration.up.webserver", *self._page, "--workspace", str(self._workspace)
        )  # fmt: skip
        self._daemon = self._service("daemon", "dagster._daemon", "run", "--workspace", str(self._workspace), "--log-level", "warning")
        return self._wait(self._web, lambda: _answers(self._url)) and self._location_is_there(self._web)

    def watch(self) -> int:
        """Stay until interrupted, or until a service ends by itself."""
        import dagster  # noqa: F401 - ending the runs needs it; importing it later would delay shutdown by seconds

        services = [service for service in (self._code, self._web, self._daemon) if service is not None]
        while not self._interrupted.wait(0.5):
            for service in services:
                if service.exit_code is not None:
                    _died(service)
                    return 1
        return 0

    def end(self) -> None:
        """End everything in order: no new runs, running lanes after their micro-batch, then the services."""
        if self._daemon is not None:
            self._daemon.end(SERVICE_END_SECONDS)
        if self._code is not None and self._code.exit_code is None:
            self._interrupted.clear()
            end_runs(self._home, impatient=self._interrupted)
        for service in (self._web, self._code):
            if service is not None:
                service.ask_to_end()
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

    def _location_is_there(self, web: Service) -> bool:
        problem: str | None = None

        def loaded() -> bool:
            nonlocal problem
            with suppress(GraphQLError):
                problem = location_problem(self._url, names.LOCATION, token=self._token)
            return problem is not None

        if self._wait(web, loaded) and problem:
            _say(f"the definitions do not load: {problem}; see {self._home / LOGS / 'code-server.log'}")
        return problem is not None


def end_runs(home: Path, *, impatient: threading.Event) -> None:
    """Terminate the runs of an instance and wait for them; queued ones are cancelled."""
    import dagster as dg

    from mirror_pipeline.orchestration.lane_facts import IN_FLIGHT

    with dg.DagsterInstance.from_config(str(home)) as instance:
        flying = dg.RunsFilter(statuses=list(IN_FLIGHT))
        runs = instance.get_runs(flying)
        if not runs:
            return
        _say(f"ending {len(runs)} runs")
        for run in runs:
            # A worker that is gone cannot be told; the reaper of the next start sees to its run.
            with suppress(Exception):
                instance.run_coordinator.cancel_run(run.run_id)
        if not wait_until(lambda: not instance.get_runs(flying), RUNS_END_SECONDS, give_up=impatient.is_set):
            _say("some runs take too long to end and are cut off; the next run goes on where they stopped")


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event; outside the main thread there are no signals to catch."""
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
