"""How a mirror stands: its own files, read once, and its two clusters, contacted only when an answer needs them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from types import TracebackType
from typing import Self

from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.errors import WrongCluster
from mirror_pipeline.flow import Flow
from mirror_pipeline.halts import Halt
from mirror_pipeline.model import Gap
from mirror_pipeline.operations.state.buffer_status import ledger_of
from mirror_pipeline.operations.state.cluster_view import ClusterView
from mirror_pipeline.operations.state.ledger_view import LedgerView, ledger_view
from mirror_pipeline.topics.directions import Directions
from mirror_pipeline.topics.lanes import Selected, select_topics
from mirror_pipeline.topics.pauses import paused_topics


class Snapshot:
    """One look at a mirror. ``lag``, ``plan``, ``halts``, ``status`` and ``health`` are functions of it.

    A context manager: its end closes the clients. Reading raises BufferUnusable, contacting a cluster ClusterUnreachable.
    """

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.source = ClusterView(flow.settings.source, flow.source_client, flow.source_admin)
        self.target = ClusterView(flow.settings.target, flow.target_client, flow.target_admin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.source.close()
        self.target.close()

    @cached_property
    def stores(self) -> list[LaneStore]:
        """Folders of the continuous lanes."""
        return self.flow.lane_stores()

    @cached_property
    def ledger(self) -> LedgerView:
        """What the lanes' own files say."""
        return ledger_view(self.stores)

    @cached_property
    def gaps(self) -> list[Gap]:
        """Source offsets that are missing on the target for good, those of backfills included."""
        ledgers = map(ledger_of, find_lanes(self.flow.config.buffer, self.flow.name))
        return [gap for ledger in ledgers if ledger.exists() for gap in ledger.gaps()]

    @cached_property
    def directions(self) -> Directions:
        """Which topics were promoted, or are copied the other way."""
        return self.flow.directions().look()

    def turned_away(self, topics: Collection[str]) -> dict[str, Halt]:
        """Those of some source topics that are left alone now: paused, promoted, or copied the other way."""
        decisions = [decision for lane in self.ledger.lanes for decision in lane.decisions]
        return paused_topics(decisions, topics) | self.directions.refused(topics)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the source's topics and of those in the ledgers; of these alone where another cluster answers."""
        kept = frozenset(self.ledger.kept)
        try:
            return self.source.names | kept
        except WrongCluster:
            if not kept:
                raise
            return kept

    @cached_property
    def selected(self) -> Selected:
        """The topics to copy among :attr:`names`."""
        return select_topics(self.flow.config, self.flow.settings, self.names)
