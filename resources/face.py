"""What the assets, sensors and jobs ask of ``mirror_pipeline.Mirror``; a test's fake has the same form."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol

from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.reports import BackfillReport, MirrorStatus, Progress, RunReport
from mirror_pipeline.verdicts import VerifyReport

Observer = Callable[[Progress], None]


class MirrorFace(Protocol):
    """One mirror; see :class:`mirror_pipeline.mirror.Mirror` for the meaning of each call."""

    @property
    def lanes(self) -> list[str]: ...

    def lag(self) -> MirrorLag: ...
    def undelivered(self) -> MirrorLag: ...
    def status(self) -> MirrorStatus: ...
    def evict(self) -> list[dict[str, Any]]: ...
    def refresh_catalogue(self) -> Any: ...
    def backfill_target(self, topic: str) -> str: ...

    def run(
        self,
        *,
        seconds: float | None = ...,
        idle_seconds: float | None = ...,
        topics: Collection[str] | None = ...,
        lane: int | None = ...,
        observer: Observer | None = ...,
        stop: threading.Event | None = ...,
        session: Any | None = ...,
    ) -> RunReport: ...

    def verify(
        self,
        *,
        topics: Collection[str] | None = ...,
        since_verified: bool = ...,
        stop: threading.Event | None = ...,
        session: Any | None = ...,
    ) -> VerifyReport: ...

    def backfill(
        self,
        topic: str,
        from_time: int,
        to_time: int,
        *,
        into: str | None = ...,
        observer: Observer | None = ...,
        stop: threading.Event | None = ...,
        session: Any | None = ...,
    ) -> BackfillReport: ...
