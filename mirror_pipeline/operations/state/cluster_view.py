"""One cluster as it is now: clients that open with the first question, and each question asked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import ClusterMetadata, TopicMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state.log_times import PARTITIONS_ASKED, first_times


class ClusterView:
    """What one cluster answers during one look; :meth:`close` closes the clients.

    Args:
        alias: its name in the configuration.
        connect: opens a client for topics and offsets.
        administer: opens a client for names and settings.

    Every method raises ClusterUnreachable, or WrongCluster where another cluster answers.
    """

    def __init__(self, alias: str, connect: Callable[[], WireClient], administer: Callable[[], Admin]) -> None:
        self.alias = alias
        self._connect = connect
        self._administer = administer
        self._opened = ExitStack()
        self._cluster: ClusterMetadata | None = None
        self._topics: dict[str, TopicMetadata] = {}
        self._offsets: dict[tuple[int, int], dict[TopicPartition, int | BrokerError]] = {}
        self._times: dict[tuple[TopicPartition, int, int], float | None] = {}

    @cached_property
    def client(self) -> WireClient:
        """The client for topics and offsets."""
        return self._opened.enter_context(self._connect())

    @cached_property
    def admin(self) -> Admin:
        """The client for names and settings."""
        return self._opened.enter_context(self._administer())

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of all topics that may be seen."""
        return frozenset(self.admin.topics())

    def metadata(self, topics: Iterable[str]) -> ClusterMetadata:
        """Ids, partitions and leaders of some topics; those that do not exist have an error code."""
        wanted = sorted(set(topics))
        fresh = [name for name in wanted if name not in self._topics]
        if fresh or self._cluster is None:
            self._cluster = self.client.metadata(fresh)
            self._topics |= self._cluster.topics
        return replace(self._cluster, topics={name: self._topics[name] for name in wanted})

    def offsets(self, parts: Iterable[TopicPartition], at: int, *, isolation: int = 1) -> dict[TopicPartition, int | BrokerError]:
        """Offsets at a time, as of the first question for each partition; an error in place of a refused one."""
        known = self._offsets.setdefault((at, isolation), {})
        wanted = list(parts)
        known |= offsets_or_errors(self.client, [tp for tp in wanted if tp not in known], at, isolation=isolation)
        return {tp: known[tp] for tp in wanted}

    def first_times(self, at: Mapping[TopicPartition, int], *, isolation: int = 1) -> dict[TopicPartition, float]:
        """As :func:`first_times`, of at most ``PARTITIONS_ASKED`` partitions; each time is read once."""
        wanted = dict(list(at.items())[:PARTITIONS_ASKED])
        fresh = {tp: offset for tp, offset in wanted.items() if (tp, offset, isolation) not in self._times}
        read = first_times(self.client, fresh, isolation=isolation)
        self._times |= {(tp, offset, isolation): read.get(tp) for tp, offset in fresh.items()}
        known = {tp: self._times[tp, offset, isolation] for tp, offset in wanted.items()}
        return {tp: when for tp, when in known.items() if when is not None}

    def close(self) -> None:
        """Close the clients."""
        self._opened.close()
