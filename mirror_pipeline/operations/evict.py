"""``Mirror.evict``: one maintenance round in every lane of a flow, with or without a run in progress."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.buffer.place.space import SpaceWatch
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.engine.driver.maintain.archiving import archiving_of
from mirror_pipeline.engine.driver.maintain.rounds import Eviction, Maintenance, staged_verifier
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.flow import Flow
from mirror_pipeline.verify.staged import verify_staged

# How long one lane's spans are compared with the target before they are evicted; the next call continues there.
VERIFY_SECONDS = 600.0
# How long to wait for a maintenance round of a running lane.
PATIENCE_SECONDS = 30.0


def evict(flow: Flow) -> list[Eviction]:
    """See :meth:`Mirror.evict`; one answer for each lane that has tables."""
    return [_keep(flow, store) for store in find_lanes(flow.config.buffer, flow.name) if _begun(store)]


def _begun(store: LaneStore) -> bool:
    return SpanTable(store).exists() and Ledger(store).exists()


def _keep(flow: Flow, store: LaneStore) -> Eviction:
    buffer, engine = flow.config.buffer, flow.settings.engine
    spans, ledger = SpanTable(store, durable=buffer.durable), Ledger(store, durable=buffer.durable)

    compare = partial(verify_staged, shared=flow.settings.shared)
    verify = staged_verifier(compare, ledger, spans, flow.target, runner=InlineRunner, timeout=engine.request_timeout)
    room = SpaceWatch(store, cap=buffer.max_bytes, micro_batch=engine.micro_batch_bytes).measure()
    archiving = archiving_of(store, spans, buffer)
    maintenance = Maintenance(store, spans, ledger, buffer.retention, buffer.max_bytes, verify=verify, archiving=archiving)
    done = maintenance.run_round(excess=room.excess, disk=room.disk_excess, seconds=VERIFY_SECONDS, patience=PATIENCE_SECONDS)
    oldest = spans.oldest()
    until = None if oldest is None else oldest + buffer.retention
    return replace(done, staying_bytes=spans.bytes(), stays_until=until, retention=buffer.retention)
