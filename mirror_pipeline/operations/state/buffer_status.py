"""Contents and disk space of a lane's buffer; may be read at any time. Only files that are new since the last read are opened."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.lane_file import RUNNING, LaneFile
from mirror_pipeline.buffer.place.lock import last_maintenance
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.place.usage import lane_use
from mirror_pipeline.buffer.spans.eviction import safe_ends
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.reports import BufferUse


@lru_cache(maxsize=256)
def span_table(store: LaneStore) -> SpanTable:
    """The process's view of a lane's spans. It remembers the files it has read, so a sensor that reads every few seconds
    opens only new ones."""
    return SpanTable(store)


@lru_cache(maxsize=256)
def ledger_of(store: LaneStore) -> Ledger:
    """The process's view of a lane's ledger; it remembers the totals of each file of sends."""
    return Ledger(store)


@lru_cache(maxsize=256)
def archive_of(store: LaneStore) -> Archive:
    """The process's view of a lane's archive."""
    return Archive(store)


def buffer_use(store: LaneStore, file: LaneFile) -> BufferUse:
    """Disk space of a lane, how much of it waits for verification, and the state of its maintenance.

    Args:
        store: the lane.
        file: what the lane's run wrote last.
    """
    ledger, spans = ledger_of(store), span_table(store)
    use = lane_use(store)
    maintenance = file.house or {}
    running = file.state == RUNNING
    facts: dict[str, Any] = {
        "spans_bytes": use.spans,
        "ledger_bytes": use.ledger,
        "log_bytes": use.logs,
        "other_bytes": use.other,
        "log_files": use.log_files,
        "full_since": file.buffer_full_since if running else None,
        "full_reason": file.progress.buffer_full if running else "",
        "last_upkeep": last_maintenance(store),
        "upkeep_error": maintenance.get("error") or maintenance.get("note") or "",
    }
    if use.archive and (archive := archive_of(store)).exists():
        totals = archive.totals()
        facts |= {"archive_bytes": use.archive, "archive_spans": totals.spans, "archive_oldest": totals.oldest_day}
    if not (ledger.exists() and spans.exists()):
        return BufferUse(**facts)
    reached = ledger.reached()
    safe = safe_ends(reached, ledger.verified())
    live = spans.spans()
    produced = [ref for ref in live if ref.end <= reached.get((ref.topic, ref.partition, ref.incarnation), -1)]
    return BufferUse(
        **facts,
        live_files=spans.live_files(),
        live_spans=len(live),
        unverified_bytes=sum(ref.bytes for ref in produced if ref.end > safe.get((ref.topic, ref.partition, ref.incarnation), -1)),
        oldest_staged=spans.oldest(),
    )
