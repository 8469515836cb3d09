"""Status: what the lanes report about themselves. May be read at any time; contacts no cluster."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.verified import different_now
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes
from mirror_pipeline.buffer.place.status import read_status
from mirror_pipeline.buffer.place.usage import total_bytes
from mirror_pipeline.flow import Flow
from mirror_pipeline.halts import ACCEPTABLE, DIRECTED
from mirror_pipeline.lags import HALTED
from mirror_pipeline.model import DecisionKind, Gap
from mirror_pipeline.operations.buffer_status import buffer_use, ledger_of
from mirror_pipeline.operations.standing import standing
from mirror_pipeline.reports import LaneStatus, MirrorStatus, TopicState
from mirror_pipeline.topics.directions import Directions

ACCEPTED = "accepted"
Accepted = tuple[str, DecisionKind | None]
STALE_SECONDS = 30.0
"""A running lane writes its heartbeat every two seconds."""


def status(flow: Flow) -> MirrorStatus:
    """See ``Mirror.status``."""
    stores = flow.lane_stores()
    stand = standing(stores)
    directions = flow.directions().look()
    lanes = tuple(_directed(lane_status(store), directions) for store in stores)
    return MirrorStatus(
        mirror=flow.name,
        source=flow.settings.source,
        target=flow.settings.target,
        lanes=lanes,
        buffer_bytes=sum(lane.buffer.disk_bytes for lane in lanes if lane.buffer is not None),
        buffer_total_bytes=total_bytes(stores),
        buffer_max_bytes=flow.config.buffer.max_bytes,
        staged_records=stand.staged_records,
        staged_bytes=stand.staged_bytes,
        gaps=len(gaps(flow)),
        **verification(stores),
    )


def gaps(flow: Flow) -> list[Gap]:
    """See ``Mirror.gaps``."""
    ledgers = [ledger_of(store) for store in find_lanes(flow.config.buffer, flow.name)]
    return [gap for ledger in ledgers if ledger.exists() for gap in ledger.gaps()]


def verification(stores: list[LaneStore]) -> dict[str, Any]:
    """When something was last compared (seconds since the epoch; None: never), and the topics that differed when they last were."""
    lanes = [ledger_of(store).verifications() for store in stores]
    last = max((rows[-1].at / 1000 for rows in lanes if rows), default=None)  # of each lane the last, not the latest by some host's clock
    return {"verified_at": last, "different": tuple(sorted(different_now(row for rows in lanes for row in rows)))}


def lane_status(store: LaneStore) -> LaneStatus:
    """The lane as its run last described it."""
    body = read_status(store)
    use = buffer_use(store, body or {})
    if body is None:
        return LaneStatus(store.lane, "never run", None, None, "", None, (), 0, 0, 0, 0.0, 0.0, buffer=use)
    state = body["state"]
    if state == "running" and time.time() - body["heartbeat"] > STALE_SECONDS:
        state = "stale"
    seconds = max(body["seconds"], 0.001)
    accepted = accepted_since(store, body)
    topics = tuple(_topic_state(name, t, accepted) for name, t in sorted(body["topics"].items()))
    return LaneStatus(
        lane=store.lane,
        state=state,
        heartbeat=body["heartbeat"],
        pid=body["pid"],
        host=body["host"],
        started=body["started"],
        topics=topics,
        micro_batches=body["micro_batches"],
        records=body["records"],
        bytes=body["bytes"],
        records_per_second=body["records"] / seconds,
        bytes_per_second=body["bytes"] / seconds,
        target_down_since=body["target_down_since"],
        message=body["message"] or body["target_down"] or body.get("source_down", "") or body.get("search_failure", ""),
        buffer=use,
        decided=Decisions(store).latest(),
        source_down=body.get("source_down", ""),
        exit_code=body.get("exit_code", 0),
        source_down_since=body.get("source_down_since"),
        lag_records=body.get("lag_records", 0),
        lag_seconds=body.get("lag_seconds"),
        time_up=body.get("time_up", False),
    )


def _directed(lane: LaneStatus, directions: Directions) -> LaneStatus:
    """The lane with those topics marked that were promoted, or are copied the other way, since its last run too."""
    refused = directions.refused([topic.topic for topic in lane.topics])
    rows = []
    for row in lane.topics:
        halt = refused.get(row.topic)
        if halt is not None:
            row = replace(row, state=halt.state, reason=halt.message, hint=halt.hint, code=halt.code)
        elif row.code in DIRECTED:
            row = replace(row, state="ok", reason="", hint="", code="")
        rows.append(row)
    return replace(lane, topics=tuple(rows))


def _topic_state(name: str, said: Mapping[str, Any], accepted: Collection[Accepted]) -> TopicState:
    state, hint, code = said["state"], said["hint"], said.get("code", "")
    if state == HALTED and (name, ACCEPTABLE.get(code)) in accepted:
        state, hint = ACCEPTED, "the next run resumes the topic"
    done = said["target_topic"], said["records"], said["bytes"]
    return TopicState(name, state, said["reason"], hint, *done, code, behind_seconds=said.get("behind_seconds", 0.0))


def accepted_since(store: LaneStore, body: Mapping[str, Any]) -> set[Accepted]:
    """What a person has accepted that the run of this status did not know: topics with the kind of the halt. Raises BufferUnusable."""
    return {(d.topic, d.kind) for d in Decisions(store).all() if d.revision > body.get("decisions", -1)}
