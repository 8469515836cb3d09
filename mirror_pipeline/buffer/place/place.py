"""Where a lane's tables are (``<buffer>/<mirror>/<lane>/``, on a path or in a bucket), and the checks that the place is usable."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from mirror_pipeline.buffer.place.bucket import Objects, Options, carried_options, delta_options
from mirror_pipeline.buffer.place.bucket_files import ObjectFileSystem
from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.errors import BufferUnusable, UsageError
from mirror_pipeline.files import replace_file
from mirror_pipeline.host import expanded

# Versions of the folder layout and of the tables, in the marker file of every buffer; a version refuses a buffer whose number it does not
# know. New buffers have the first one, and get the second with the first promotion or shared topic: a version that does not know these
# would copy into topics that belong to applications. They get the third with `offsets: exact`, whose holes a version that does not know
# it would not fill.
FIRST_FORMAT = 1
DIRECTED_FORMAT = 2
EXACT_FORMAT = 3
FORMAT = EXACT_FORMAT
MARKER = "MIRROR_BUFFER.json"
SPANS_FOLDER, ARCHIVE_FOLDER = "spans", "archive"
CLOCK = "clock"
"""A file of each lane that is written to learn the time of the place."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://")
_UNREADABLE = re.compile(r"[%\[\]\\\x00-\x1f\x7f]")
LEASE_SECONDS = 30.0
# Periodic work beside the data (status, ledger rows, measuring space, small micro-batches) happens this many times less often in an
# object store, where each costs round trips and money.
REMOTE_PACE = 5.0


class BufferSettings(Protocol):
    """What the buffer needs of the configuration's buffer section."""

    @property
    def uri(self) -> str:
        """A path or a URI."""

    @property
    def lease(self) -> float:
        """Seconds without renewal after which a holder loses its lane; object stores only."""


@dataclass(frozen=True, slots=True)
class LaneStore:
    """The folder of one lane; picklable, so that tasks find the same place (``uri`` is absolute, ``options`` hold no secret)."""

    uri: str
    mirror: str = ""
    lane: str = ""
    options: Options = ()
    lease: float = LEASE_SECONDS

    @property
    def local(self) -> bool:
        """True when the buffer lies on a path of this machine."""
        return not _REMOTE.match(self.uri)

    @property
    def root(self) -> str:
        """Path or URI of the whole buffer, of all mirrors."""
        return self.uri.rsplit("/", 2)[0]

    def table(self, name: str) -> str:
        """Path or URI of one of the lane's tables."""
        return f"{self.uri}/{name}"

    def spaced(self, seconds: float) -> float:
        """Seconds between two small writes or checks of one kind; ``seconds`` where they cost next to nothing."""
        return seconds if self.local else REMOTE_PACE * seconds

    @property
    def storage_options(self) -> dict[str, str] | None:
        """What ``deltalake`` needs to reach a remote store."""
        return None if self.local else delta_options(self.options)

    def objects(self) -> Objects:
        """The lane's objects; object stores only."""
        return Objects(self.uri, self.options)

    def filesystem(self) -> tuple[fs.FileSystem, str]:
        """The pyarrow file system and the lane's path inside it."""
        if self.local:
            return fs.LocalFileSystem(), self.uri
        bucket, _, path = self.uri.removeprefix("s3://").partition("/")
        return fs.PyFileSystem(ObjectFileSystem(f"s3://{bucket}", self.options)), path

    def file(self, name: str) -> Path:
        """A plain file of the lane; only a local buffer has a path of it."""
        assert self.local  # noqa: S101 - callers know
        return Path(self.uri, name)

    def read_file(self, name: str) -> bytes | None:
        """A plain file of the lane; None when there is none. Raises OSError."""
        if not self.local:
            content = self.objects().read(name)
            return content.data if content else None
        try:
            return self.file(name).read_bytes()
        except FileNotFoundError:
            return None

    def now(self) -> float:
        """Now (seconds since the epoch) by the clock that stamps the lane's files: a file server's is not this host's.

        Of an object store this host's clock: its objects count as younger by what the two may differ.
        """
        if not self.local:
            return time.time()
        try:
            own = os.stat(self.uri).st_uid == os.geteuid()  # what root makes here its owner could not write
            handle = os.open(self.file(CLOCK), os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if own else 0), 0o600)
            try:
                os.pwrite(handle, b"\0", 0)
            finally:
                os.close(handle)  # only then does a file server stamp it
            return self.file(CLOCK).stat().st_mtime
        except OSError:  # a full disk: what leaves it must not wait for room
            return time.time()

    def write_file(self, name: str, text: str, *, durable: bool = False) -> None:
        """Replace a plain file as a whole: a reader sees the old or the new content. Raises OSError."""
        if self.local:
            replace_file(self.file(name), text, durable=durable)
        else:
            self.objects().write(name, text.encode())


def _root(settings: BufferSettings) -> str:
    uri = settings.uri
    if _REMOTE.match(uri):
        if not uri.startswith("s3://"):
            raise UsageError(f"buffer {uri}: only folders and s3:// are supported", hint="set buffer.uri to one of them")
        return uri.rstrip("/")
    path = unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
    return os.path.abspath(expanded(path))


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{kind} name {name!r} cannot be a folder name", hint="use letters, digits, dot, dash and underscore")


def sync_path(path: str | Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _marker(number: int) -> str:
    return json.dumps({"format": number, "made_by": "mirror-pipeline"}) + "\n"


def raise_format(store: LaneStore, number: int) -> None:
    """Make versions refuse a lane's buffer that know a lower format only, before something is written that they would ignore.

    Raises:
        BufferUnusable: the buffer's marker cannot be read or written.
    """
    root = replace(store, uri=store.root)
    with explained(root.uri):
        text = root.read_file(MARKER)
        if text is not None and _format(root.uri, text) < number:
            root.write_file(MARKER, _marker(number), durable=True)


def format_of(store: LaneStore) -> int:
    """The format of a lane's buffer. Raises BufferUnusable."""
    root = replace(store, uri=store.root)
    with explained(root.uri):
        text = root.read_file(MARKER)
    return FIRST_FORMAT if text is None else _format(root.uri, text)


def _check_format(root: str, text: bytes) -> None:
    """Make sure that the marker names a format this version knows. Raises BufferUnusable."""
    number = _format(root, text)
    if number > FORMAT:
        raise BufferUnusable(f"buffer {root}: format {number}, this version knows {FORMAT}", hint="upgrade mirror-pipeline")


def _format(root: str, text: bytes) -> int:
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        hint = f'if this is a mirror buffer, write {{"format": {FORMAT}}} into it'
        raise BufferUnusable(f"buffer {root}: {MARKER} is damaged", hint=hint)
    number: int = body["format"]
    return number


def _refuse_strangers(root: str, names: Iterable[str]) -> None:
    strangers = [name for name in names if not name.startswith(".") and name != "lost+found"]
    if strangers:
        raise BufferUnusable(f"buffer {root}: holds other files ({strangers[0]}) and no {MARKER}", hint="use an empty or new folder")


def _check_marker(root: Path) -> bool:
    """True when the folder is a mirror buffer, False when it is empty."""
    try:
        text = (root / MARKER).read_bytes()
    except FileNotFoundError:
        names = [entry.name for entry in os.scandir(root)]
        if (root / MARKER).exists():  # another process has just created it
            return True
        _refuse_strangers(str(root), names)
        return False
    _check_format(str(root), text)
    return True


def _prepare(root: Path, folder: Path) -> None:
    if not root.exists() and not root.parent.is_dir():
        raise BufferUnusable(f"buffer {root}: the folder {root.parent} does not exist", hint="create it, or set buffer.uri")
    with explained(str(root)):
        root.mkdir(mode=0o700, exist_ok=True)
        if not _check_marker(root):
            replace_file(root / MARKER, _marker(FIRST_FORMAT), durable=True)
    with explained(str(folder)):
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x" * 4096)
        _check_links(root, folder)


def _check_links(root: Path, folder: Path) -> None:
    """A commit takes its number by a hard link, which fails where the number is taken. Raises BufferUnusable without hard links."""
    handle, file = tempfile.mkstemp(prefix=".probe-", dir=folder)
    os.close(handle)
    try:
        os.link(file, f"{file}-link")
        os.unlink(f"{file}-link")
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            hint = "put it on another file system: not FAT, exFAT or a share without them"
            raise BufferUnusable(f"buffer {root}: its file system has no hard links", hint=hint) from error
        raise
    finally:
        os.unlink(file)


def _prepare_bucket(root: Objects) -> None:
    """The same for a prefix of a bucket, which need not exist; the store must support conditional puts."""
    with explained(root.uri):
        text = root.read(MARKER)
        if text is None:
            folders, names = root.entries()
            _refuse_strangers(root.uri, [name for name in (*folders, *names) if name != MARKER])
            root.create(MARKER, _marker(FIRST_FORMAT).encode())
            text = root.read(MARKER)
        if text is None:
            lost = f"buffer {root.uri}: an object disappeared after it was written"
            raise BufferUnusable(lost, hint="check the bucket's lifecycle rules")
        _check_format(root.uri, text.data)
        root.refuse_unconditional(MARKER, text.data)


def open_lane(buffer: BufferSettings, mirror: str, lane: str) -> LaneStore:
    """Create the lane's folder (mode 0700) if need be and check that it is usable.

    Args:
        buffer: the configuration's buffer section; ``uri`` is a path, a ``file:`` URI or ``s3://bucket/prefix``.
        mirror: name of the mirror.
        lane: name of the lane inside the mirror.

    Raises:
        BufferUnusable: parent or bucket missing, not a directory, not writable, disk full, not a mirror buffer, made by a later
            version, or an object store that does not answer, refuses, or has no conditional puts.
        UsageError: a name that cannot be a folder, or a kind of store that is not known.
    """
    root = _root(buffer)
    if _UNREADABLE.search(root):
        shown = "".join(letter if letter.isprintable() else "?" for letter in root)
        reason = "delta-rs cannot open a path with %, [, ], a backslash or a control character"
        raise BufferUnusable(f"buffer {shown}: {reason}", hint="use another folder name in buffer.uri")
    _check_name("mirror", mirror)
    _check_name("lane", lane)
    store = _lane(buffer, root, mirror, lane)
    if store.local:
        _prepare(Path(root), Path(store.uri))
    else:
        _prepare_bucket(Objects(root, store.options))
    return store


def _lane(buffer: BufferSettings, root: str, mirror: str, lane: str) -> LaneStore:
    if not _REMOTE.match(root):
        return LaneStore(f"{root}/{mirror}/{lane}", mirror, lane)
    return LaneStore(f"{root}/{mirror}/{lane}", mirror, lane, carried_options(), buffer.lease)


def open_to_others(store: LaneStore) -> str:
    """Which of a lane's folders was opened to other users, in words; empty when none was, and for object stores.

    The folders are made with mode 0700. Others who may write to a folder could put their own in its place; those who may read the
    lane's read the records.
    """
    if not store.local:
        return ""
    for path, bits in ((store.root, stat.S_IWOTH), (f"{store.root}/{store.mirror}", stat.S_IWOTH), (store.uri, stat.S_IRWXO)):
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & bits:
            return f"other users of this machine may {'write to' if mode & stat.S_IWOTH else 'read'} {path} (mode {mode:04o}): chmod o= it"
    return ""


def find_lanes(buffer: BufferSettings, mirror: str) -> list[LaneStore]:
    """The lanes of a mirror that have a folder, without creating anything; for commands that only read. Raises BufferUnusable."""
    root = _root(buffer)
    with explained(root):
        if _REMOTE.match(root):
            names: list[str] = Objects(root, carried_options()).entries(mirror)[0]
        else:
            folder = Path(root, mirror)
            names = [entry.name for entry in os.scandir(folder) if entry.is_dir()] if folder.is_dir() else []
    return [_lane(buffer, root, mirror, name) for name in sorted(names) if not name.startswith(".")]
