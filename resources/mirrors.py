"""The mirrors of one mirror.yaml."""

# No `from __future__ import annotations`: Dagster reads the field types at run time.
from collections.abc import Collection
from typing import cast

from pydantic import Field

from mirror_pipeline.config import Config, EngineConfig, load_config

from .bound import BoundResource
from .face import MirrorFace


class MirrorsResource(BoundResource):
    """Hands out mirrors by name. A test puts a subclass with fakes in its place.

    Nothing is connected to before a mirror is asked something.
    """

    config_path: str = Field(description="The mirror.yaml. Secrets in it stay references until a connection is made.")

    def config(self) -> Config:
        """The file as it is now. Raises ConfigError."""
        return load_config(self.config_path)

    def mirror(self, name: str) -> MirrorFace:
        """The mirror of that name. Raises ConfigError, UsageError."""
        from mirror_pipeline import Mirror

        return cast(MirrorFace, Mirror(self.config(), name))

    def lanes_of(self, name: str, topics: Collection[str]) -> dict[str, str]:
        """The lane of each topic of a mirror; asks no cluster. Raises ConfigError, UsageError, BufferUnusable."""
        from mirror_pipeline.topics.lanes import lane_of

        config = self.config()
        return lane_of(config.buffer, config.mirror(name), topics)

    def engine(self, name: str) -> EngineConfig:
        """The mirror's engine settings, for building its Spark session. Raises ConfigError, UsageError."""
        return self.config().mirror(name).engine
