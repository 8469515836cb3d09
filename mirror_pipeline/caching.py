"""Where files are kept that can be made, or fetched, again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``$MIRROR_CACHE``, else ``$XDG_CACHE_HOME/mirror-pipeline``, else ``~/.cache/mirror-pipeline``."""
    own = os.environ.get("MIRROR_CACHE", "")
    if own:
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "mirror-pipeline"
