"""Dagster resources: the mirrors of a mirror.yaml, and the Spark session of a run.

Lies beside the package and is installed as ``mirror_pipeline.resources``.
"""

from .face import MirrorFace, Observer
from .mirrors import MirrorsResource
from .spark import SparkSessionResource

__all__ = ["MirrorFace", "MirrorsResource", "Observer", "SparkSessionResource"]
