"""Mirror Pipeline copies Kafka topics from one cluster to another, exactly once, and says so when it cannot.

>>> from mirror_pipeline import Mirror, load_config          # doctest: +SKIP
>>> Mirror(load_config("mirror.yaml"), "east-to-west").run(once=True)   # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirror_pipeline.config import load_config
    from mirror_pipeline.mirror import Mirror

__all__ = ["Mirror", "load_config"]
__version__ = "0.1.0"

_HOMES = {"Mirror": "mirror_pipeline.mirror", "load_config": "mirror_pipeline.config"}


def __getattr__(name: str) -> Any:
    # Imported on first use: `mirror --help` must not wait for Spark's and Delta's libraries.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
