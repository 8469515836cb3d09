"""Read and check mirror.yaml and return its settings. The public interface of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mirror_pipeline.config.secrets import SecretRef
from mirror_pipeline.config.settings import (
    BufferConfig,
    ClusterSettings,
    Config,
    EngineConfig,
    FrozenMap,
    GroupSelection,
    MirrorConfig,
    Security,
    TopicConfigs,
    TopicSelection,
    nearest,
)
from mirror_pipeline.units import format_duration, format_size, parse_duration, parse_size, parse_time

if TYPE_CHECKING:
    from mirror_pipeline.config.load import DEFAULT_CONFIG, load_config

__all__ = [
    "DEFAULT_CONFIG",
    "BufferConfig",
    "ClusterSettings",
    "Config",
    "EngineConfig",
    "FrozenMap",
    "GroupSelection",
    "MirrorConfig",
    "Security",
    "SecretRef",
    "TopicConfigs",
    "TopicSelection",
    "format_duration",
    "format_size",
    "load_config",
    "nearest",
    "parse_duration",
    "parse_size",
    "parse_time",
]


def __getattr__(name: str) -> Any:
    # On first use: Spark's workers take settings from here and read no file; the checks' libraries cost them a tenth of a second.
    if name in ("DEFAULT_CONFIG", "load_config"):
        from mirror_pipeline.config import load

        return getattr(load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
