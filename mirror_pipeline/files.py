"""Files of our own: where those lie that can be made, or fetched, again, and how any is replaced."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
