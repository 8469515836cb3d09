"""Files of our own: where those lie that can be made, or fetched, again, and how any is replaced."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Forgeable(PermissionError):
    """Somebody else could have written a file, or put another in its place."""


def cache_folder() -> Path:
    """Of files that can be made, or fetched, again.

    ``$MIRROR_CACHE``, else ``$XDG_CACHE_HOME/mirror-pipeline``, else ``~/.cache/mirror-pipeline``.
    """
    own = os.environ.get("MIRROR_CACHE", "")
    if own:
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "mirror-pipeline"


def replace_file(path: Path, content: str | bytes, *, durable: bool = False, mode: int = 0o600) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old or the new content, never a part of it."""
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


def private_folder(path: Path) -> None:
    """Make a folder, and those above that are missing, for this user alone; what is ours of the cache is closed to the writing of others.

    Raises:
        OSError: it cannot be made.
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
    """Take the right to write from everybody but the owner, if that is this user."""
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & OTHERS_MAY_WRITE:
        path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS_MAY_WRITE)


def refuse_forgeable(path: Path) -> None:
    """Look at a file or folder, at the one it is in and, inside the cache, at all up to the cache folder.

    Raises:
        Forgeable: one of them belongs to neither this user nor root, or others may write to it.
        OSError: it is not there.
    """
    top = cache_folder()
    for place in (path, *path.parents):
        _refuse(place.stat(), place)
        if place == top or (place != path and top not in place.parents):
            return


def read_own(path: Path) -> bytes:
    """The content of a file that nobody but this user and root can have written.

    Raises:
        Forgeable: see :func:`refuse_forgeable`.
        OSError: it is not there, cannot be read, or is a link.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        _refuse(os.fstat(file.fileno()), path)  # of what is read, whatever lies at the path by now
        refuse_forgeable(path)
        return file.read()


def _refuse(found: os.stat_result, path: Path) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise Forgeable(f"{path} belongs to user {found.st_uid}")
    if found.st_mode & OTHERS_MAY_WRITE:
        raise Forgeable(f"{path} can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})")
