"""What an archive costs in bytes, by what the lanes have staged so far."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mirror_pipeline.buffer.archive.archive import Archive
from mirror_pipeline.buffer.archive.merged import day_of
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import BufferConfig
from mirror_pipeline.engine.driver.maintain.archiving import DAY_SECONDS
from mirror_pipeline.units import format_duration, rounded_size

# The rate is that of this many days before today.
DAYS = 7


def archive_note(buffer: BufferConfig, stores: Sequence[LaneStore]) -> str:
    """The size that the archive will have, and has; "" without ``buffer.archive``."""
    if buffer.archive is None:
        return ""
    held = f"buffer.archive keeps spans for {format_duration(buffer.archive)}"
    now = time.time()
    by_day = staged_by_day(stores)
    first = day_of(int(1000 * (now - DAYS * DAY_SECONDS)))
    full = {day: size for day, size in by_day.items() if first <= day < day_of(int(1000 * now))}
    known = full or by_day
    if not known:
        return f"{held}: its size is known once data was staged"
    rate = sum(known.values()) / len(known)
    days = "today" if not full else "yesterday" if len(full) == 1 else f"the last {len(full)} days with data, on average"
    whole = rate * buffer.archive / DAY_SECONDS
    return f"{held}: about {rounded_size(whole)} if each day brings {rounded_size(rate)}, as {days}; buffer.max_bytes does not limit it"


def staged_by_day(stores: Sequence[LaneStore]) -> dict[str, int]:
    """Bytes of spans in buffers and archives by the UTC day on which they were staged."""
    by_day: dict[str, int] = {}
    for store in stores:
        archive, spans = Archive(store), SpanTable(store)
        days = archive.totals().by_day if archive.exists() else {}
        for day, size in [*days.items(), *(spans.by_day(day_of).items() if spans.exists() else ())]:
            by_day[day] = by_day.get(day, 0) + size
    return by_day
