"""The resource classes, for import by the rest of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # by the folder's own name: type checkers do not read setuptools' package-dir
    from resources.mirrors import MirrorsResource
    from resources.spark import SparkSessionResource
else:
    from mirror_pipeline.resources import MirrorsResource, SparkSessionResource

__all__ = ["MirrorsResource", "SparkSessionResource"]
