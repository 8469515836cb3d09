"""What a host gives its user: a name, a home, a folder for caches, threads. A container's user may have none of them."""

from __future__ import annotations

import functools
import os
import pwd
import resource
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from mirror_pipeline.errors import UsageError

_LONGEST_NAME = 64
MORE_FILES = "raise the limit: ulimit -n 4096, or LimitNOFILE= of the service"
MORE_THREADS = "raise the limit: ulimit -u, TasksMax= of the service, or the container's limit of processes"
# Of this process and the libraries that it loads, for a run that needs no Spark; above the second number nobody counts.
THREADS, MANY_THREADS = 64, 2048
# Of this process: with one lane between single brokers 64 are enough, and 40 are not.
FILES = 64
_signer: ContextVar[str] = ContextVar("signer", default="")


def operator() -> str:
    """Who works here, as the ledger names people: ``name@host``."""
    return _printable(f"{_signer.get() or user_name()}@{socket.gethostname()}")


@contextmanager
def signed_by(name: str) -> Iterator[None]:
    """What is decided meanwhile, in this thread, is decided by somebody who uses a page of this process; "" is its owner."""
    token = _signer.set(name)
    try:
        yield
    finally:
        _signer.reset(token)


@functools.cache
def host_clock() -> str:
    """Names the clock that ``time.time()`` reads: processes with the same name share it, also in several containers of one host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def user_name() -> str:
    """``$USER`` or ``$LOGNAME``, else the name in the password file, else ``uid 12345``."""
    entry = passwd_entry()
    for name in (os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), entry.pw_name if entry else ""):
        if shown := _printable(name)[:_LONGEST_NAME]:
            return shown
    return f"uid {os.geteuid()}"


def passwd_entry() -> pwd.struct_passwd | None:
    """The user's line of the password file; None for a user that it does not list."""
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        return None


def home() -> Path | None:
    """``$HOME`` where it is an absolute path, else what the password file says; None where neither does. It need not exist."""
    named = os.environ.get("HOME", "")
    entry = passwd_entry()
    path = named if os.path.isabs(named) else entry.pw_dir if entry else ""
    return Path(path) if os.path.isabs(path) else None


def expanded(path: str | Path) -> Path:
    """The path with a leading ``~`` or ``~name`` replaced.

    Raises:
        UsageError: nothing says where that home is.
    """
    first, *rest = Path(path).parts or (".",)
    if not first.startswith("~"):
        return Path(path)
    if first == "~" and (own := home()) is not None:
        return own.joinpath(*rest)
    try:
        return Path(pwd.getpwnam(first[1:]).pw_dir, *rest)
    except (KeyError, ValueError):
        raise UsageError(f"{path}: {first} is the home of nobody here", hint="write the path without ~, or set HOME") from None


def cache_folder() -> Path:
    """Where files are kept that can be built or fetched again.

    ``$MIRROR_CACHE``, else ``$XDG_CACHE_HOME/mirror-pipeline``, else ``~/.cache/mirror-pipeline`` if it exists or can be made, else
    ``mirror-pipeline-<uid>`` in the temporary folder.

    Raises:
        UsageError: the one in the temporary folder belongs to somebody else, or there is no such folder.
    """
    if own := os.environ.get("MIRROR_CACHE", ""):
        return Path(own).absolute()
    if shared := os.environ.get("XDG_CACHE_HOME", ""):
        return Path(shared).absolute() / "mirror-pipeline"
    folder = home()
    if folder is not None and folder.is_dir():
        usual = folder / ".cache" / "mirror-pipeline"
        if usual.is_dir() or _can_be_made(usual):
            return usual
    return temporary_cache()


def temporary_folder() -> Path:
    """Python's own choice: ``$TMPDIR``, ``/tmp`` and others, the first that can be written.

    Raises:
        UsageError: none can.
    """
    try:
        return Path(tempfile.gettempdir()).absolute()
    except FileNotFoundError:
        raise UsageError("no folder for temporary files can be written", hint="set TMPDIR to one that this user can write to") from None


def refuse_few_files(count: int = FILES) -> None:
    """Where a limit is met depends on what is opened first, and libraries answer with errors of their own.

    Raises:
        UsageError: this process may open only a few files, whatever its soft limit is raised to.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < count:
        raise UsageError(f"only {most} files can be opened, {count} are needed", hint=MORE_FILES)


def refuse_few_threads(count: int = THREADS) -> None:
    """Compiled libraries end the process, without a word, where they cannot start a thread.

    Raises:
        UsageError: the user, or the container, may start only a few more.
    """
    limits = [resource.getrlimit(resource.RLIMIT_NPROC)[0], _container_limit()]
    if all(limit == resource.RLIM_INFINITY or limit >= MANY_THREADS for limit in limits):
        return
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(count):
            started.append(threading.Thread(target=end.wait))
            started[-1].start()
    except RuntimeError:
        raise UsageError(f"only {len(started) - 1} threads can be started, {count} are needed", hint=MORE_THREADS) from None
    finally:
        end.set()
        for thread in started:
            with suppress(RuntimeError):  # the one that was not started
                thread.join()


def _container_limit() -> int:
    try:
        return int(Path("/sys/fs/cgroup/pids.max").read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return resource.RLIM_INFINITY


def _can_be_made(folder: Path) -> bool:
    there = next(parent for parent in folder.parents if parent.exists())
    return os.access(there, os.W_OK | os.X_OK)


def temporary_cache() -> Path:
    """``mirror-pipeline-<uid>`` in the temporary folder. Everybody can write around it, so it must be this user's, and not a link.

    Raises:
        UsageError: it is somebody else's, or there is no temporary folder.
    """
    folder = temporary_folder() / f"mirror-pipeline-{os.geteuid()}"
    try:
        status = folder.lstat()
    except OSError:  # not there, or out of reach: whoever creates it says so
        return folder
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise UsageError(f"{folder} was made by somebody else", hint="set MIRROR_CACHE to a folder that you own")
    return folder


def _printable(text: str) -> str:
    """Without line ends, control characters and bytes that are no text: anybody may put anything into ``$USER``."""
    return "".join(character for character in text if character.isprintable()).strip()
