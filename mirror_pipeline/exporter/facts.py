"""What the exporter knows of a mirror: a look every few seconds, kept so that a scrape never waits for a cluster."""

from __future__ import annotations

import logging
import threading
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
from mirror_pipeline.reports import GroupsReport, MirrorStatus

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
# A look may take this share of a core: with thousands of topics looks are rarer.
CORE_SHARE = 0.015
# Groups are listed and described on both clusters, which costs more than all the rest.
LOOKS_A_GROUP_LOOK = 6


@dataclass(frozen=True, slots=True)
class Facts:
    """One look at a mirror; times are seconds since the epoch.

    ``status``, ``files`` and the counts are from the mirror's own files, ``lag`` and ``groups`` from the clusters: as they were when
    these last answered, the lag at ``lag_at``. ``error`` says why they do not now.
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


class Watch:
    """Looks at one mirror in a thread of its own. ``facts`` are those of the last look."""

    def __init__(self, mirror: Mirror, *, every: float = EVERY_SECONDS) -> None:
        self._mirror = mirror
        self._every = every
        self._stop = threading.Event()
        self.facts = Facts(mirror.name)
        self._thread = threading.Thread(target=self._run, name=f"look-{mirror.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """No look begins any more."""
        self._stop.set()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            began = time.thread_time()
            try:
                self.facts = look(self._mirror, self.facts, groups=number % LOOKS_A_GROUP_LOOK == 0)
            except Exception as error:
                log.exception("look_failed mirror=%s", self.facts.mirror)
                self.facts = replace(self.facts, error=f"{type(error).__name__}: {error}")
            number += 1
            self._stop.wait(max(self._every, (time.thread_time() - began) / CORE_SHARE))
