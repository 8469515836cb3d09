"""Where a lane's tables lie: ``<buffer>/<mirror>/<lane>/``, and the checks that this place can be used."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from mirror_pipeline.buffer.schema import FORMAT
from mirror_pipeline.errors import BufferUnusable, UsageError

MARKER = "MIRROR_BUFFER.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://")
_UNREADABLE = re.compile(r"[%\[\]]")
_FULL = ("No space left", "os error 28", "Disk quota exceeded", "os error 122", "Errno 28", "Errno 122")


class BufferSettings(Protocol):
    """What this room needs of the configuration's buffer section."""

    @property
    def uri(self) -> str:
        """A path or a URI."""


@dataclass(frozen=True, slots=True)
class LaneStore:
    """The folder of one lane; picklable, so that tasks find the same place (``uri`` is absolute)."""

    uri: str
    mirror: str = ""
    lane: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def local(self) -> bool:
        """True when the buffer lies on a path of this machine."""
        return not _REMOTE.match(self.uri)

    def table(self, name: str) -> str:
        """Path or URI of one of the lane's tables."""
        return f"{self.uri}/{name}"

    @property
    def storage_options(self) -> dict[str, str] | None:
        """What ``deltalake`` needs to reach a remote store."""
        return dict(self.options) or None

    def filesystem(self) -> tuple[fs.FileSystem, str]:
        """The pyarrow file system and the lane's path inside it."""
        if self.local:
            return fs.LocalFileSystem(), self.uri
        found, path = fs.FileSystem.from_uri(self.uri)
        return found, path

    def file(self, name: str) -> Path:
        """A plain file of the lane (status, lock); local buffers only."""
        if not self.local:
            raise UsageError(f"buffer {self.uri}: only local folders can hold a lane for now", hint="set buffer.uri to a local path")
        return Path(self.uri, name)


def explain(place: str, error: BaseException) -> BufferUnusable:
    """Turn an operating-system or Delta error into one clear line; ``retryable`` is True for a full disk, which may empty again."""
    text = " ".join(str(error).split())
    if any(sign in text for sign in _FULL):
        full = BufferUnusable(f"buffer {place}: the disk is full", hint="free space, or lower buffer.max_bytes")
        full.retryable = True
        return full
    if isinstance(error, PermissionError) or "ermission denied" in text or "Read-only file system" in text:
        return BufferUnusable(f"buffer {place}: not writable by this user", hint="change its owner or mode, or set buffer.uri")
    if isinstance(error, NotADirectoryError | FileExistsError) or "Not a directory" in text:
        return BufferUnusable(f"buffer {place}: not a directory", hint="set buffer.uri to a folder")
    return BufferUnusable(f"buffer {place}: {text[:300]}", hint="see docs/buffer.md")


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Raise :class:`BufferUnusable` for any error of the operating system, or of a file's content, inside."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise explain(place, error) from error


def _root(settings: BufferSettings) -> str:
    uri = settings.uri
    if _REMOTE.match(uri):
        return uri.rstrip("/")
    path = unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
    return os.path.abspath(os.path.expanduser(path))


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{kind} name {name!r} cannot be a folder name", hint="use letters, digits, dot, dash and underscore")


def replace_file(path: Path, text: str, *, durable: bool = False) -> None:
    """Write ``text`` to ``path`` so that a reader sees the old or the new content, never a part of it."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sync_path(path: str | Path) -> None:
    """Bring a file's, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_marker(root: Path) -> dict[str, Any] | None:
    try:
        body = json.loads((root / MARKER).read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        raise BufferUnusable(f"buffer {root}: {MARKER} is damaged", hint='if this is a mirror buffer, write {"format": 1} into it')
    return body


def _check_marker(root: Path) -> bool:
    """True when the folder is a buffer of ours, False when it is empty."""
    body = _read_marker(root)
    if body is None:
        strangers = [e.name for e in os.scandir(root) if not e.name.startswith(".") and e.name != "lost+found"]
        if strangers and not (root / MARKER).exists():
            raise BufferUnusable(f"buffer {root}: holds other files ({strangers[0]}) and no {MARKER}", hint="use an empty or new folder")
        return bool(strangers)
    if body["format"] > FORMAT:
        raise BufferUnusable(f"buffer {root}: format {body['format']}, this version knows {FORMAT}", hint="upgrade mirror-pipeline")
    return True


def _prepare(root: Path, folder: Path) -> None:
    if not root.exists() and not root.parent.is_dir():
        raise BufferUnusable(f"buffer {root}: the folder {root.parent} does not exist", hint="create it, or set buffer.uri")
    with explained(str(root)):
        root.mkdir(mode=0o700, exist_ok=True)
        if not _check_marker(root):
            replace_file(root / MARKER, json.dumps({"format": FORMAT, "made_by": "mirror-pipeline"}) + "\n", durable=True)
    with explained(str(folder)):
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x" * 4096)


def open_lane(buffer: BufferSettings, mirror: str, lane: str, *, storage_options: Mapping[str, str] | None = None) -> LaneStore:
    """Make the lane's folder (mode 0700) if need be and check that it can be used.

    Args:
        buffer: the configuration's buffer section; ``uri`` is a path or a URI.
        mirror: name of the mirror.
        lane: name of the lane inside the mirror.
        storage_options: passed to ``deltalake`` for remote stores.

    Raises:
        BufferUnusable: parent missing, not a directory, not writable, disk full, not ours, or made by a later version.
        UsageError: a name that cannot be a folder.
    """
    root = _root(buffer)
    if _UNREADABLE.search(root):
        raise BufferUnusable(f"buffer {root}: delta-rs cannot open a path with %, [ or ]", hint="use another folder name in buffer.uri")
    _check_name("mirror", mirror)
    _check_name("lane", lane)
    store = LaneStore(f"{root}/{mirror}/{lane}", mirror, lane, tuple(sorted((storage_options or {}).items())))
    if store.local:
        _prepare(Path(root), Path(store.uri))
    return store


def find_lanes(buffer: BufferSettings, mirror: str) -> list[LaneStore]:
    """The lanes of a mirror that have a folder, without making anything; for commands that only read."""
    folder = Path(_root(buffer), mirror)
    if _REMOTE.match(_root(buffer)) or not folder.is_dir():
        return []
    with explained(str(folder)):
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    return [LaneStore(str(folder / name), mirror, name) for name in names]
