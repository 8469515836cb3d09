"""A folder for the sockets between Spark's Java process and its Python workers: closed to other users, removed with the process."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from mirror_pipeline.files import try_lock
from mirror_pipeline.host import temporary_folder

PREFIX = "mirror-sockets-"
_LOCK = "lock"
# Bytes of a socket's path: the kernel takes 107, macOS 103.
_LONGEST = 103
_NAME = len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
# Characters that mkdtemp adds.
_RANDOM = 8


@cache
def socket_folder() -> str:
    """This process's folder, mode 0700. Spark's default is the shared temporary folder, where the umask decides who may connect.

    Folders of killed processes are removed first.
    """
    parent = _parent()
    _sweep(parent)
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    handle = os.open(Path(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)  # until the process ends, however it ends
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _parent() -> Path:
    """The temporary folder, unless its path is too long for a socket in it."""
    usual = temporary_folder()
    return usual if len(os.fsencode(usual / PREFIX)) + _RANDOM + _NAME <= _LONGEST else Path("/tmp")  # noqa: S108 - mkdtemp in it


def _sweep(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*/{_LOCK}"):
        try:
            if lock.parent.lstat().st_uid == os.geteuid() and not lock.parent.is_symlink() and _is_free(lock):
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # another process was faster
            continue


def _is_free(lock: Path) -> bool:
    handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return try_lock(handle)
    finally:
        os.close(handle)
