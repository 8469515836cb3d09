"""The jars of embedded Kafka, MirrorMaker 2 and Delta: pinned by version and SHA-256, fetched once, kept in a cache.

``jars.json`` beside this file is the pin list; ``scripts/lock_jars.py`` writes it. ``python -m mirror_pipeline.execution.jars KIND...``
fetches from a shell.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.execution import ivy
from mirror_pipeline.files import Forgeable, close_to_others, file_lock, private_folder, refuse_forgeable
from mirror_pipeline.host import cache_folder

# Repositories sometimes answer 429 or 503: seconds to wait before each further try, which fetches only what is missing.
DOWNLOAD_PAUSES = (1.0, 4.0, 10.0)
FILE_PATTERN = "[artifact]-[revision].[ext]"
_OWN_FOLDER = "set MIRROR_CACHE to a folder that you own"

Progress = Callable[[str, int, int], None]
"""Called with a title ("Kafka 4.4.0"), jars present, jars in all."""


class WrongChecksum(MirrorError):
    """A fetched jar is not the one that was pinned."""


@dataclass(frozen=True, slots=True)
class JarKind:
    """A named set of pinned jars; ``sha256`` maps ``group:artifact:version`` to the file's checksum."""

    name: str
    title: str
    sha256: dict[str, str]

    @property
    def files(self) -> dict[str, str]:
        """File name to SHA-256."""
        return {"{1}-{2}.jar".format(*coordinate.split(":")): digest for coordinate, digest in self.sha256.items()}


@lru_cache(maxsize=1)
def kinds() -> dict[str, JarKind]:
    """Every pinned set, by name."""
    pinned = json.loads((Path(__file__).parent / "jars.json").read_text())
    return {name: JarKind(name, entry["title"], entry["jars"]) for name, entry in pinned.items()}


def ensure_jars(kind: str, progress: Progress | None = None) -> Path:
    """The folder with exactly the pinned jars of ``kind``; fetches them when they are not in the cache yet.

    Safe to call from several processes at once: one fetches, the others wait. Checksums are compared on the first
    call of a process, also for jars already in the cache; a folder that does not match is fetched again.

    Args:
        kind: ``kafka-4.4.0``, ``kafka-4.3.0``, ``kafka-3.9.1``, ``mm2-4.3.0`` or ``delta``.
        progress: called as jars arrive; see :func:`terminal_progress`.

    Raises:
        UsageError: no such kind, no usable Java, or a cache folder that cannot be written.
        MirrorError: the jars could not be fetched after several tries (``FetchFailed``), or are not the pinned ones (``WrongChecksum``).
    """
    known = kinds().get(kind)
    if known is None:
        raise UsageError(f"no jars are pinned for {kind!r}", hint=f"one of {', '.join(kinds())}")
    return _ensure(known, cache_folder() / "jars" / kind, progress or _silent)


_checked: set[Path] = set()


def _ensure(kind: JarKind, folder: Path, progress: Progress) -> Path:
    if folder in _checked and folder.is_dir():
        return folder
    try:
        if not _given(kind, folder):
            private_folder(folder.parent)
            with file_lock(folder.parent / f".{kind.name}.lock"):
                _close(folder)
                if mismatch(kind, folder):
                    _fetch(kind, folder, progress)
        for jar in folder.iterdir():  # Java opens them after their checksums were compared
            refuse_forgeable(jar)
    except Forgeable as why:
        raise UsageError(f"the jar cache is not safe: {why}", hint=_OWN_FOLDER) from why
    except OSError as error:
        raise UsageError(f"the jar cache {folder.parent} cannot be used: {error}", hint=_OWN_FOLDER) from error
    _checked.add(folder)
    return folder


def _given(kind: JarKind, folder: Path) -> bool:
    """Whether the jars are part of an image whose files this user can only read."""
    return folder.is_dir() and not os.access(folder.parent, os.W_OK) and not mismatch(kind, folder)


def _close(folder: Path) -> None:
    """Remove write access for others: jars were fetched under any umask."""
    if folder.is_dir():
        for path in (folder, *folder.iterdir()):
            close_to_others(path)


def mismatch(kind: JarKind, folder: Path) -> str:
    """What is wrong with a folder of jars: a missing, an extra or an altered file; empty when it is as pinned."""
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if missing := sorted(set(kind.files) - present):
        return f"{missing[0]} is missing"
    if extra := sorted(present - set(kind.files)):
        return f"unexpected file {extra[0]}"
    for name, pinned in kind.files.items():
        digest = _sha256(folder / name)
        if digest != pinned:
            return f"{name} has SHA-256 {digest}, pinned is {pinned}"
    return ""


def _fetch(kind: JarKind, folder: Path, progress: Progress) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{kind.name}-", dir=folder.parent))
    try:
        fresh = work / "jars"
        _fetch_patiently(kind, fresh, work / "ivy", progress)
        if wrong := mismatch(kind, fresh):
            raise WrongChecksum(f"{kind.title}: {wrong}; nothing was kept", hint="check where your jars come from: Ivy settings, proxy")
        fresh.chmod(0o755)
        _close(fresh)
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fetch_patiently(kind: JarKind, fresh: Path, work: Path, progress: Progress) -> None:
    arrived: list[None] = []

    def one_more() -> None:
        arrived.append(None)
        progress(kind.title, min(len(arrived), len(kind.sha256)), len(kind.sha256))

    progress(kind.title, 0, len(kind.sha256))
    for pause in (*DOWNLOAD_PAUSES, None):
        try:
            ivy.fetch(kind.sha256, fresh, work, pattern=FILE_PATTERN, transitive=False, arrived=one_more)
        except ivy.FetchFailed:
            if pause is None:
                raise
            time.sleep(pause)
        else:
            return


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _silent(title: str, done: int, total: int) -> None:
    pass


@contextlib.contextmanager
def terminal_progress() -> Iterator[Progress]:
    """A progress callback for standard error: a moving line on a terminal, else one line at the start and one at the end."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain
        return
    with console.status("") as status:

        def show(title: str, done: int, total: int) -> None:
            status.update(f"{title}: {done} of {total} jars")
            if done == total:
                console.print(f"{title}: {total} jars")

        yield show


def _plain(title: str, done: int, total: int) -> None:
    if done == 0:
        print(f"{title}: fetching {total} jars", file=sys.stderr, flush=True)
    elif done == total:
        print(f"{title}: {total} jars", file=sys.stderr, flush=True)


def main(names: list[str]) -> int:
    """Fetch the named kinds; an error is one line and an exit code."""
    try:
        with terminal_progress() as progress:
            for name in names:
                ensure_jars(name, progress)
    except MirrorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
