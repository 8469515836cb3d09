"""Status: what the lanes report about themselves. May be read at any time; contacts no cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mirror_pipeline.buffer.ledger.verified import different_now
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.usage import total_bytes
from mirror_pipeline.halts import LEFT_ALONE
from mirror_pipeline.lags import HALTED
from mirror_pipeline.operations.state.buffer_status import buffer_use, ledger_of
from mirror_pipeline.operations.state.ledger_view import LaneView, state_of
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import LaneStatus, MirrorStatus, TopicProgress, TopicState

ACCEPTED = "accepted"


def status(snapshot: Snapshot) -> MirrorStatus:
    """See ``Mirror.status``."""
    flow, view = snapshot.flow, snapshot.ledger
    lanes = tuple(_turned_away(lane_status(lane), snapshot) for lane in view.lanes)
    return MirrorStatus(
        mirror=flow.name,
        source=flow.settings.source,
        target=flow.settings.target,
        lanes=lanes,
        buffer_bytes=sum(lane.buffer.disk_bytes for lane in lanes if lane.buffer is not None),
        buffer_total_bytes=total_bytes(snapshot.stores),
        buffer_max_bytes=flow.config.buffer.max_bytes,
        staged_records=view.staged_records,
        staged_bytes=view.staged_bytes,
        gaps=len(snapshot.gaps),
        offsets=flow.settings.offsets,
        **verification(snapshot.stores),
    )


def verification(stores: list[LaneStore]) -> dict[str, Any]:
    """When something was last compared (seconds since the epoch; None: never), and the topics that differed when they last were."""
    lanes = [ledger_of(store).verifications() for store in stores]
    last = max((rows[-1].at / 1000 for rows in lanes if rows), default=None)  # of each lane the last, not the latest by some host's clock
    return {"verified_at": last, "different": tuple(sorted(different_now(row for rows in lanes for row in rows)))}


def lane_status(lane: LaneView) -> LaneStatus:
    """The lane as its run last described it."""
    file, progress = lane.file, lane.file.progress
    seconds = max(progress.seconds, 0.001)
    return LaneStatus(
        lane=lane.store.lane,
        state="stale" if file.stale else file.state,
        heartbeat=file.heartbeat,
        pid=file.pid,
        host=file.host,
        started=file.started,
        topics=tuple(_topic_state(lane, name, said) for name, said in sorted(file.topics.items())),
        micro_batches=progress.micro_batches,
        records=progress.records,
        bytes=progress.bytes,
        records_per_second=progress.records / seconds,
        bytes_per_second=progress.bytes / seconds,
        target_down_since=file.target_down_since,
        message=file.message or progress.target_down or progress.source_down or progress.search_failure,
        buffer=buffer_use(lane.store, file),
        decided=lane.decisions[-1].at / 1000 if lane.decisions else None,
        source_down=progress.source_down,
        exit_code=file.exit_code,
        source_down_since=file.source_down_since,
        lag_records=progress.lag_records,
        lag_seconds=progress.lag_seconds,
        time_up=file.time_up,
        copied=progress.copied,
        left_out=progress.left_out,
    )


def _turned_away(lane: LaneStatus, snapshot: Snapshot) -> LaneStatus:
    """The lane with those topics marked that were paused, promoted, or are copied the other way, since its last run too."""
    refused = snapshot.turned_away([topic.topic for topic in lane.topics])
    rows = []
    for row in lane.topics:
        halt = refused.get(row.topic)
        if halt is not None:
            row = replace(row, state=halt.state, reason=halt.message, hint=halt.hint, code=halt.code)
        elif row.code in LEFT_ALONE:
            row = replace(row, state="ok", reason="", hint="", code="")
        rows.append(row)
    return replace(lane, topics=tuple(rows))


def _topic_state(lane: LaneView, name: str, said: TopicProgress) -> TopicState:
    state = state_of(name, said)
    if state.state == HALTED and lane.accepted(name, state.code):
        state = replace(state, state=ACCEPTED, hint="the next run resumes the topic")
    return state
