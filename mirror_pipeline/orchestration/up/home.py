"""Create, configure and lock the folder in which Dagster keeps its state."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mirror_pipeline
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.files import try_lock
from mirror_pipeline.host import expanded

DAGSTER_YAML = "dagster.yaml"
UP_LOCK = "up.lock"
# Not `logs`: Dagster owns a folder of that name and moves it.
LOGS = "server_logs"
# The kernel accepts 107 bytes.
LONGEST_SOCKET_PATH = 100


def packaged_settings() -> Path:
    """The dagster.yaml of this package: inside it when installed, next to it in a checkout.

    Raises:
        UsageError: neither exists.
    """
    package = Path(mirror_pipeline.__file__).parent
    for place in (package / "dagster_home" / DAGSTER_YAML, package.parent / "dagster_home" / DAGSTER_YAML):
        if place.is_file():
            return place
    raise UsageError("the package has no dagster.yaml", hint="install it again, or write one into DAGSTER_HOME")


def prepare_home(folder: Path) -> Path:
    """Create the folder (mode 0700) and its settings unless they exist; return the absolute path, which Dagster requires.

    Raises:
        UsageError: the folder cannot be created or written.
    """
    home = expanded(folder).absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / LOGS).mkdir(exist_ok=True)
        if not (home / DAGSTER_YAML).exists():
            shutil.copyfile(packaged_settings(), home / DAGSTER_YAML)
    except OSError as error:
        hint = "its default is .mirror next to mirror.yaml: make that folder writable, or set MIRROR_STATE to one that is"
        raise UsageError(f"Dagster's folder {home}: {error.strerror}", hint=hint) from error
    return home


@contextmanager
def locked(home: Path, url: str) -> Iterator[None]:
    """Lock the folder: two daemons on one instance would start every run twice.

    Raises:
        ProblemFound: another ``mirror up`` holds it.
    """
    handle = os.open(home / UP_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(handle):
            raise ProblemFound(f"another `mirror up` is running in {home}: {_holder(handle)}", hint="use it, or stop it first")
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "url": url}).encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _holder(handle: int) -> str:
    try:
        body = json.loads(os.pread(handle, 4096, 0))
        return f"process {body['pid']}, {body['url']}"
    except (ValueError, KeyError, TypeError):
        return "address unknown"


def write_workspace(home: Path, socket: Path, location: str) -> Path:
    """The workspace file of web server and daemon: it names the code server that both use."""
    path = home / "workspace.yaml"
    server = {"socket": str(socket), "host": "localhost", "location_name": location}
    path.write_text(json.dumps({"load_from": [{"grpc_server": server}]}) + "\n")
    return path
