"""The mirrors of one mirror.yaml."""

# No `from __future__ import annotations`: Dagster reads the field types at run time.
from collections.abc import Collection
from typing import TYPE_CHECKING

from pydantic import Field

from mirror_pipeline.config import Config, EngineConfig, load_config

from .bound import BoundResource

if TYPE_CHECKING:
    from mirror_pipeline.mirror import Mirror


class MirrorsResource(BoundResource):
    """Creates mirrors by name. A test replaces it with a subclass that returns fakes.

    No connection is opened until a method of a mirror needs one.
    """

    config_path: str = Field(description="The mirror.yaml. Secrets in it stay references until a connection is opened.")

    def config(self) -> Config:
        """The file's current content. Raises ConfigError."""
        return load_config(self.config_path)

    def mirror(self, name: str) -> "Mirror":
        """The mirror of that name. Raises ConfigError, UsageError."""
        from mirror_pipeline import Mirror

        return Mirror(self.config(), name)

    def opened(self, name: str) -> "tuple[Mirror, EngineConfig]":
        """A mirror and its engine settings, for a run: the file may change, or stop loading, while it runs. Raises as :meth:`mirror`."""
        opened = self.mirror(name)
        return opened, opened.flow.settings.engine

    def lanes_of(self, name: str, topics: Collection[str]) -> dict[str, str]:
        """The lane of each topic of a mirror; asks no cluster. Raises ConfigError, UsageError, BufferUnusable."""
        from mirror_pipeline.topics.lanes import lane_of

        config = self.config()
        return lane_of(config.buffer, config.mirror(name), topics)

    def states_of(self, name: str, topics: Collection[str]) -> dict[str, str]:
        """``promoted`` or ``standby`` for the topics that a mirror leaves alone; asks no cluster. Raises as :meth:`lanes_of`."""
        from mirror_pipeline.topics.directions import Directions

        config = self.config()
        halts = Directions(config, config.mirror(name)).look().refused(topics)
        return {topic: halt.code for topic, halt in halts.items()}

    def engine(self, name: str) -> EngineConfig:
        """The mirror's engine settings, for building its Spark session. Raises ConfigError, UsageError."""
        return self.config().mirror(name).engine
