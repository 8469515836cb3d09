"""``Mirror.evict``: one round of housekeeping in every lane of a flow, beside its runs or without any."""

from __future__ import annotations

from typing import Any

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.buffer.place.space import SpaceWatch
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.engine.maintain.rounds import Eviction, Maintenance
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.flow import Flow

VERIFY_SECONDS = 600.0
"""How long one lane's spans are compared with the target before they are evicted; the next call continues there."""
PATIENCE_SECONDS = 30.0
"""Wait for a running lane that keeps its own house at the moment."""


def evict(flow: Flow) -> list[Eviction]:
    """See :meth:`Mirror.evict`; one answer for each lane that has tables."""
    return [_keep(flow, store) for store in find_lanes(flow.config.buffer, flow.name) if _begun(store)]


def _begun(store: LaneStore) -> bool:
    return SpanTable(store).exists() and Ledger(store).exists()


def _keep(flow: Flow, store: LaneStore) -> Eviction:
    buffer, engine = flow.config.buffer, flow.settings.engine
    spans, ledger = SpanTable(store, durable=buffer.durable), Ledger(store, durable=buffer.durable)

    def verify(budget: int) -> Any:
        from mirror_pipeline.verify.staged import verify_staged

        return verify_staged(
            ledger=ledger, spans=spans, runner=InlineRunner(), target=flow.target, timeout=engine.request_timeout, budget_bytes=budget
        )

    room = SpaceWatch(store, cap=buffer.max_bytes, micro_batch=engine.micro_batch_bytes).measure()
    house = Maintenance(store, spans, ledger, buffer.retention, buffer.max_bytes, verify=verify)
    return house.run_round(excess=room.excess, seconds=VERIFY_SECONDS, patience=PATIENCE_SECONDS)
