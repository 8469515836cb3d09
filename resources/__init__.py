"""Dagster resources: the mirrors of a mirror.yaml, and the Spark session of a run.

The folder is next to the package and is installed as ``mirror_pipeline.resources``.
"""

from .mirrors import MirrorsResource
from .spark import SparkSessionResource

__all__ = ["MirrorsResource", "SparkSessionResource"]
