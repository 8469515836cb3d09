"""A cluster that is down, on the run that waits for it: in the run's tags, which the list of runs shows and filters, and in its log."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg

from mirror_pipeline.lags import LASTING_SECONDS
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.checks import moment
from mirror_pipeline.orchestration.step_thread import wall_clock
from mirror_pipeline.reports import Progress


class Outage:
    """Watches the progress of one run. Only what lasts is told: a broker that restarts takes less.

    Args:
        context: of the run's step.
        source: the source cluster's alias.
        target: the target cluster's.
        clock: seconds since the epoch.
    """

    def __init__(
        self, context: dg.AssetExecutionContext, source: str, target: str, *, clock: Callable[[], float] = wall_clock
    ) -> None:
        self._context = context
        self._source = source
        self._target = target
        self._clock = clock
        self._cluster = ""
        self._since = 0.0
        self._told = False

    def see(self, progress: Progress) -> None:
        """Tell when an outage has lasted for a while, and when it is over."""
        cluster = f"target {self._target}" if progress.target_down else f"source {self._source}" if progress.source_down else ""
        now = self._clock()
        if cluster != self._cluster:
            if self._told:
                self._context.log.info(f"{self._cluster} is reachable again, it was down since {moment(self._since)}")
                self._tag(f"no; {self._cluster} was from {moment(self._since)} to {moment(now)}")
            self._cluster, self._since, self._told = cluster, now, False
        elif cluster and not self._told and now - self._since >= LASTING_SECONDS:
            self._told = True
            self._context.log.error(f"{cluster} is down since {moment(self._since)}: {progress.target_down or progress.source_down}")
            self._tag(f"{cluster} since {moment(self._since)}")

    def _tag(self, text: str) -> None:
        self._context.instance.add_run_tags(self._context.run.run_id, {names.DOWN_TAG: text})
