"""Small file systems in memory that can be filled up."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults.campaign import Campaign

FILLER = "filler"
PIECE = 1 << 20


class SmallDisk:
    """A tmpfs mounted at ``folder``."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)], check=True, capture_output=True)

    def fill(self) -> int:
        """Take all that is left; how many bytes that was."""
        handle = os.open(self.folder / FILLER, os.O_WRONLY | os.O_CREAT)
        taken = 0
        try:
            for piece in (PIECE, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        taken += os.write(handle, bytes(piece))
        finally:
            os.close(handle)
        return taken

    def free(self) -> None:
        """Give it back."""
        (self.folder / FILLER).unlink(missing_ok=True)

    def unmount(self) -> None:
        """Remove it, also while a process has files open there."""
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)


def why_not() -> str:
    """Why no file system can be mounted here, or nothing."""
    if sys.platform != "linux":
        return "tmpfs can be mounted on Linux only"
    if os.geteuid() != 0:
        return "mounting a tmpfs needs root"
    return ""


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Mounted for the length of the block. Raises OSError when the kernel refuses."""
    try:
        disk = SmallDisk(folder, size)
    except subprocess.CalledProcessError as error:
        raise OSError(errno.EPERM, f"mount: {error.stderr.decode(errors='replace').strip()}") from error
    try:
        yield disk
    finally:
        disk.unmount()


def fill_buffer(campaign: Campaign, disk: SmallDisk) -> None:
    """For some seconds nothing can be staged, committed or recorded."""
    seconds = campaign.chance.uniform(0.5, 5)
    taken = disk.fill()
    time.sleep(seconds)
    disk.free()
    campaign.report.fault("buffer full", f"{taken >> 10} KiB taken for {seconds:.1f} s")
