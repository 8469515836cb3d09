"""What the exporter knows of a mirror after a look at its ledger, its lane files and both clusters."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.place.lane_file import LaneFile
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.mirror import Mirror
from mirror_pipeline.operations.state.lag import lag as lag_of
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.operations.state.status import status as status_of
from mirror_pipeline.reports import GroupsReport, LaneStatus, MirrorStatus


@dataclass(frozen=True, slots=True)
class Facts:
    """One look at a mirror; times are seconds since the epoch.

    ``status``, ``files`` and the counts are from the mirror's own files, ``lag`` and ``groups`` from the clusters: as they were when
    these last answered, the lag at ``lag_at``. ``error`` says why they do not now. ``starting``: whoever starts the lanes has a run of
    one on its way.
    """

    mirror: str
    status: MirrorStatus | None = None
    files: tuple[LaneFile, ...] = ()
    gap_records: int = 0
    quarantined: int = 0
    promoted: frozenset[str] = frozenset()
    lag: MirrorLag | None = None
    lag_at: float | None = None
    groups: GroupsReport | None = None
    error: str = ""
    starting: bool = False

    @property
    def lanes(self) -> tuple[LaneStatus, ...]:
        """None of them before the first look."""
        return self.status.lanes if self.status is not None else ()

    @property
    def bytes_per_second(self) -> float:
        """Of the lanes at work."""
        return sum(lane.bytes_per_second for lane in self.lanes if lane.state == "running")


def look(mirror: Mirror, before: Facts, *, groups: bool) -> Facts:
    """Look at a mirror again; what cannot be read now stays as it was ``before``."""
    try:
        with Snapshot(mirror.flow) as snapshot:
            facts = replace(
                before,
                error="",
                status=status_of(snapshot),
                files=tuple(lane.file for lane in snapshot.ledger.lanes),
                gap_records=sum(gap.end - gap.start for gap in snapshot.gaps),
                quarantined=sum(len(Decisions(store).quarantined_offsets()) for store in snapshot.stores),
                promoted=frozenset(snapshot.directions.promoted()),
            )
            try:
                facts = replace(facts, lag=lag_of(snapshot), lag_at=time.time())
                if groups and mirror.flow.settings.groups is not None:
                    facts = replace(facts, groups=mirror.groups())
            except MirrorError as error:
                facts = replace(facts, error=error.message)
            return facts
    except MirrorError as error:  # its own files
        return replace(before, error=error.message)
