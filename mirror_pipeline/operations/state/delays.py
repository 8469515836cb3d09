"""How long records took to reach the target, hour by hour, from the sends in the ledger. Contacts no cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa

from mirror_pipeline.buffer.ledger.thinning import OLD_SECONDS
from mirror_pipeline.errors import UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.lags import DelayHour, MirrorDelays, TopicDelays
from mirror_pipeline.operations.state.buffer_status import ledger_of
from mirror_pipeline.text import duration

HOUR_MS = 3_600_000
Rows = list[tuple[int, int | None]]
"""Records, and the longest delay among them in milliseconds."""


def delays(flow: Flow, seconds: float, now: float) -> MirrorDelays:
    """Records and delays of every whole hour (UTC) that the last ``seconds`` before ``now`` touch.

    Raises:
        UsageError: further back than the ledger keeps hours apart.
        BufferUnusable: a ledger cannot be read.
    """
    if seconds > OLD_SECONDS:
        raise UsageError(f"--history: the ledger keeps hours apart for {duration(OLD_SECONDS)}", hint="ask for less")
    first = int((now - seconds) * 1000) // HOUR_MS * HOUR_MS
    hours = range(first, int(now * 1000) + 1, HOUR_MS)
    found = _by_topic(ledger_of(store).sends_recorded(first) for store in flow.lane_stores())
    topics = [TopicDelays(topic, tuple(_hour(at, rows.get(at, [])) for at in hours)) for topic, rows in sorted(found.items())]
    return MirrorDelays(flow.name, tuple(topics))


def _by_topic(tables: Iterable[pa.Table]) -> dict[str, dict[int, Rows]]:
    """The rows of each topic by the hour in which they were recorded."""
    found: dict[str, dict[int, Rows]] = defaultdict(lambda: defaultdict(list))
    for table in tables:
        times = table["recorded_at"].cast(pa.int64()).to_pylist()
        columns = (table[name].to_pylist() for name in ("topic", "records", "delay_ms"))
        for at, topic, records, delay in zip(times, *columns, strict=True):
            found[topic][at // 1000 // HOUR_MS * HOUR_MS].append((records, delay))
    return found


def _hour(at: int, rows: Rows) -> DelayHour:
    known = sorted((delay, records) for records, delay in rows if delay is not None)
    return DelayHour(at, sum(records for records, _ in rows), quantile(known, 0.5), quantile(known, 0.99))


def quantile(rows: Sequence[tuple[int, int]], share: float) -> int | None:
    """The least value that is not exceeded by ``share`` of the records; ``rows`` are values, ascending, each with its records."""
    wanted, passed = share * sum(records for _, records in rows), 0
    for value, records in rows:
        passed += records
        if passed >= wanted:
            return value
    return None
