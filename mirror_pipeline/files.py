"""The project's own files: atomic writes, locks, and files that no other user can have written."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mirror_pipeline.host import cache_folder

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Forgeable(PermissionError):
    """Another user could have written a file, or replaced it."""


def replace_file(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o600) -> None:
    """Write ``content`` to ``path`` atomically: a reader sees the old or the new content, never a part of it."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
            os.fchmod(handle, mode)
            if durable:
                out.flush()
                os.fsync(handle)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Differs once a file has been changed or replaced; None while it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file, created if need be, for the length of the block; waits for another holder. Raises OSError."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def try_lock(handle: int) -> bool:
    """Lock an open file without waiting; False when another process holds it. Closing the file, or the end of the process, unlocks it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def private_folder(path: Path) -> None:
    """Create a folder and its missing parents for this user alone. This user's part of the cache loses write access for others.

    Raises:
        OSError: it cannot be created.
    """
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    top = cache_folder()
    if path == top or top in path.parents:
        close_to_others(path)
        if path != top:
            private_folder(path.parent)


def close_to_others(path: Path) -> None:
    """Remove write access for everyone but the owner, if the owner is this user."""
    status = path.stat()
    if status.st_uid == os.geteuid() and status.st_mode & OTHERS_MAY_WRITE:
        path.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS_MAY_WRITE)


def refuse_forgeable(path: Path) -> None:
    """Check a file or folder and its parent; inside the cache, every parent up to the cache folder.

    Raises:
        Forgeable: one of them belongs to neither this user nor root, or others may write to it.
        OSError: it does not exist.
    """
    top = cache_folder()
    for place in (path, *path.parents):
        _refuse(place.stat(), place)
        if place == top or (place != path and top not in place.parents):
            return


def read_own(path: Path) -> bytes:
    """The content of a file that only this user or root can have written.

    Raises:
        Forgeable: see :func:`refuse_forgeable`.
        OSError: it does not exist, cannot be read, or is a link.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        _refuse(os.fstat(file.fileno()), path)  # of the opened file, whatever is at the path by now
        refuse_forgeable(path)
        return file.read()


def _refuse(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise Forgeable(f"{path} belongs to user {status.st_uid}")
    if status.st_mode & OTHERS_MAY_WRITE:
        raise Forgeable(f"{path} can be written by other users (mode {stat.S_IMODE(status.st_mode):04o})")
