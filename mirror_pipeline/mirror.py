"""``Mirror``: the one thing that CLI, assets and people's own programs call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.place.place import LaneStore, find_lanes, open_lane
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.config import ClusterSettings, Config, MirrorConfig
from mirror_pipeline.engine import drain as draining
from mirror_pipeline.engine import lanes
from mirror_pipeline.engine.context import LaneContext
from mirror_pipeline.errors import UsageError
from mirror_pipeline.execution.java import find_java
from mirror_pipeline.execution.placement import Runners, for_comparing, inline_bytes, spark_may_be_needed
from mirror_pipeline.execution.spark import Runner, SparkRunner, build_session
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.model import Gap
from mirror_pipeline.operations import backfill
from mirror_pipeline.operations import evict as evicting
from mirror_pipeline.operations import halts as halted
from mirror_pipeline.operations import lag as looking
from mirror_pipeline.operations import plan as preview
from mirror_pipeline.operations import resolve as resolving
from mirror_pipeline.operations.warnings import LogTimes, with_outlook
from mirror_pipeline.reports import BackfillReport, Finding, Halt, MirrorPlan, MirrorStatus, Progress, Resolution, RunReport
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic, refresh_catalogue
from mirror_pipeline.topics.claims import Claims
from mirror_pipeline.topics.lanes import LANE_PREFIX, discover, known_topics, lane_stores, lanes_to_run, ledger_topics, select_topics
from mirror_pipeline.verify import repair
from mirror_pipeline.verify.mirrored import MirrorCheck
from mirror_pipeline.verify.repair import RepairReport
from mirror_pipeline.verify.report import VerifyProgress, VerifyReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Observer = Callable[[Progress], None]
Session: TypeAlias = "SparkSession | Callable[[], SparkSession] | None"


class Mirror:
    """One mirror of a configuration.

    Args:
        config: from :func:`mirror_pipeline.load_config`.
        name: the mirror's name.

    Raises:
        UsageError: no mirror of that name.
    """

    def __init__(self, config: Config, name: str) -> None:
        found = next((m for m in config.mirrors if m.name == name), None)
        if found is None:
            known = ", ".join(m.name for m in config.mirrors)
            raise UsageError(f"no mirror is named {name!r} in {config.path}", hint=f"it has: {known}")
        self.config = config
        self.mirror: MirrorConfig = found
        self.name = name
        self.source: ClusterSettings = config.clusters[found.source]
        self.target: ClusterSettings = config.clusters[found.target]

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes that copy: the configured ones, and those of before that still have topics. Raises BufferUnusable."""
        return lanes_to_run(self.config.buffer, self.mirror)

    def plan(self) -> MirrorPlan:
        """What would be copied where, what would be created or changed, what is left out and why. Changes nothing.

        Raises:
            ClusterUnreachable: source or target do not answer.
        """
        return preview.plan(self)

    def check(self) -> list[Finding]:
        """Can this mirror run: Java, buffer, both clusters, topics, rights. Changes nothing on the clusters."""
        return preview.check(self)

    def run(
        self,
        *,
        once: bool = False,
        seconds: float | None = None,
        topics: Collection[str] | None = None,
        lane: int | None = None,
        idle_seconds: float | None = None,
        observer: Observer | None = None,
        stop: threading.Event | None = None,
        session: Session = None,
        drain: bool = False,
    ) -> RunReport:
        """Copy. While the source does not answer, what is staged is delivered, and the error says how far the target is.

        Args:
            once: up to the end offsets seen at the start, then return.
            seconds: time budget of a continuous run; None runs until ``stop``.
            topics: only these of the selected topics.
            lane: only this lane; None runs all lanes side by side.
            idle_seconds: return once nothing moved for this long.
            observer: called a few times a second, from the calling thread only.
            stop: set it to end the run after the micro-batches at work.
            session: a Spark session to use, or what starts one once it is needed; one is made otherwise.
            drain: only deliver what is staged; the source is not asked.

        Raises:
            NothingSelected: the selection matches no topic.
            LaneBusy: another run holds the lane.
            ClusterUnreachable: a cluster stayed silent; with a report when it was the source and what was staged is delivered.
            BufferUnusable: the buffer cannot be read or written.
        """
        names = self.lanes if lane is None else [self._lane(lane)]
        wanted = lanes.LaneRuns(
            self, names, once=once or drain, seconds=seconds, topics=topics, idle_seconds=idle_seconds,
            observer=observer, stop=stop or threading.Event(), session=session, drain=drain,
        )  # fmt: skip
        return wanted.run() if drain else draining.run(wanted)

    def undelivered(self) -> MirrorLag:
        """What is staged and not on the target, topic by topic, by ledger and buffer alone; asks no cluster.

        Raises:
            BufferUnusable: the buffer cannot be read.
        """
        known = known_topics(self.config, self.mirror)
        return looking.staged_lag(self.name, known, looking.standing(self.lane_stores()))

    def lag(self) -> MirrorLag:
        """How far the target is behind, which topics are halted: by ledger, last runs and source. Raises ClusterUnreachable."""
        client = WireClient(self.source, timeout=self.mirror.engine.request_timeout)
        try:
            admin, stores = self.source_admin(), self.lane_stores()
            targets = select_topics(self.config, self.mirror, {*admin.topics(), *halted.kept_topics(stores)}).topics
            look, stand = self.look(stores, targets), looking.standing(stores)
            times = LogTimes(client)
            lag = looking.lag_of(self.name, targets, client, stand, start=self.mirror.start, times=times)
            lag = with_outlook(lag, client, admin, times)
            look.source(client, self.mirror.source)
            return halted.with_halts(lag, look, stand, halted.run_notes(stores))
        finally:
            client.close()

    def status(self) -> MirrorStatus:
        """Lanes, buffer and gaps; asks no cluster."""
        stores = self.lane_stores()
        stand = looking.standing(stores)
        found = tuple(looking.lane_status(store) for store in stores)
        return MirrorStatus(
            mirror=self.name,
            source=self.mirror.source,
            target=self.mirror.target,
            lanes=found,
            buffer_bytes=sum(lane.buffer.disk_bytes for lane in found if lane.buffer is not None),
            buffer_total_bytes=looking.total_bytes(stores),
            buffer_max_bytes=self.config.buffer.max_bytes,
            staged_records=stand.staged_records,
            staged_bytes=stand.staged_bytes,
            gaps=len(self.gaps()),
            **looking.verification(stores),
        )

    def gaps(self) -> list[Gap]:
        """Every source offset range that is not on the target for a cause that lost records; asks no cluster."""
        return list(looking.standing(find_lanes(self.config.buffer, self.name)).gaps)

    def backfill(
        self,
        topic: str,
        from_time: int,
        to_time: int,
        *,
        into: str | None = None,
        observer: Observer | None = None,
        stop: threading.Event | None = None,
        session: SparkSession | None = None,
    ) -> BackfillReport:
        """Copy the records of a past time range, into the mirrored name of an empty target or into another topic.

        Args:
            topic: source topic.
            from_time: first record time, milliseconds since the epoch.
            to_time: end of the record times, exclusive.
            into: target topic; the mirrored name if None.
            observer, stop, session: as in :meth:`run`.

        Raises:
            UsageError: the range is empty or not in the past, or the target may not take it.
        """
        return backfill.run(
            self, topic, from_time, to_time, into=into, observer=observer, stop=stop or threading.Event(), session=session
        )

    def backfill_target(self, topic: str) -> str:
        """Where a backfill that names no topic goes: the mirrored name while nothing is in it, else a topic beside it."""
        return backfill.default_target(self, topic)

    def evict(self) -> list[dict[str, Any]]:
        """Forget what is on the target, was compared with what was staged, and is older than ``buffer.retention``.

        What was not compared yet is compared first, as far as the target answers. May run beside the mirror's lanes.

        Returns:
            One row for each lane (:class:`~mirror_pipeline.engine.maintain.rounds.Eviction`).

        Raises:
            BufferUnusable: the buffer cannot be read or written.
        """
        return [asdict(done) for done in evicting.evict(self)]

    def halts(self) -> list[Halt]:
        """Topics that cannot go on, with the command that accepts it where that is possible; asks no cluster."""
        return resolving.halts(self)

    def resolve(self, topic: str, accept: str) -> Resolution:
        """Accept the reason for which a topic has halted; a running lane goes on within half a minute, else the next run does.

        Args:
            topic: source topic.
            accept: the halt's code, as :meth:`halts` tells it; naming it guards against accepting something else.

        Raises:
            UsageError: the topic is not halted for this, or this cannot be accepted.
            ClusterUnreachable: the cluster that has to be asked does not answer.
        """
        return resolving.resolve(self, topic, accept)

    def verify(
        self,
        *,
        topics: Collection[str] | None = None,
        from_time: int | None = None,
        to_time: int | None = None,
        sample: float = 1.0,
        since_verified: bool = False,
        observer: Callable[[VerifyProgress], None] | None = None,
        stop: threading.Event | None = None,
        session: Session = None,
    ) -> VerifyReport:
        """Compare everything that was copied with the source, down to the single record; a lane may be running meanwhile.

        Args:
            topics: only these source topics.
            from_time, to_time: from the first record at or after the one up to the first at or after the other, milliseconds.
            sample: only this fraction of every partition, chosen at random; not recorded then.
            since_verified: only what no earlier verification has covered; topics that were never copied are no error then.
            observer, stop, session: as in :meth:`run`, the observer as parts are done.

        Raises UsageError for a topic that was never copied, ClusterUnreachable when a cluster does not answer.
        """
        check = MirrorCheck(self, lambda offsets: self.comparer(session, offsets), observer, stop or threading.Event())
        return repair.with_repaired(self, check.run(topics, from_time, to_time, sample, since_verified=since_verified))

    def repair(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        observer: Callable[[VerifyProgress], None] | None = None,
        stop: threading.Event | None = None,
        session: Session = None,
    ) -> RepairReport:
        """Verify a source topic and write what is missing or altered on the target into a side topic, ``.repair`` behind its name.

        With ``dry_run`` nothing is written; a second repair adds nothing. The other arguments are as in :meth:`verify`.

        Raises UsageError when the topic was never copied or a side cannot be read, BrokerError when the target refuses.
        """
        return repair.repair(self, topic, dry_run=dry_run, observer=observer, stop=stop or threading.Event(), session=session)

    def look(self, stores: list[LaneStore], targets: Mapping[str, str]) -> halted.Look:
        """What is known of halts among ``targets``, before any cluster is asked. Raises BufferUnusable."""
        return halted.Look(self.name, stores, targets, passes_gaps=self.mirror.on_loss != "halt")

    def refresh_catalogue(self) -> Catalogue:
        """Look at the source and save the selection for those who must not ask Kafka. Raises ClusterUnreachable."""
        known = known_topics(self.config, self.mirror)
        copied = [CatalogueTopic(n, k.target_topic, len(k.life.starts), k.life.topic_id) for n, k in sorted(known.items())]
        return refresh_catalogue(self.config, self.mirror, self.source_admin(), copied)

    def source_admin(self) -> Admin:
        """The source cluster as an administrator sees it."""
        return Admin(self.source)

    def target_admin(self) -> Admin:
        """The target cluster as an administrator sees it."""
        return Admin(self.target)

    def lane_stores(self) -> list[LaneStore]:
        """Folders of the lanes that copy continuously, those that have run."""
        return lane_stores(self.config.buffer, self.mirror)

    def context(self, lane: str, runners: Runners, *, once: bool, stop: threading.Event, drain: bool = False) -> LaneContext:
        """Collaborators of one run over one lane. Raises BufferUnusable."""
        store = open_lane(self.config.buffer, self.name, lane)
        durable = self.config.buffer.durable
        return LaneContext(
            mirror=self.mirror,
            lane=lane,
            source=self.source,
            target=self.target,
            buffer=self.config.buffer,
            store=store,
            spans=SpanTable(store, durable=durable),
            ledger=Ledger(store, durable=durable),
            cases=Decisions(store, durable=durable),
            runners=runners,
            once=once,
            stop=stop,
            drain=drain,
            claims=self.claims(),
        )

    def runners(self, session: Session) -> Runners:
        """This process for small micro-batches, Spark for the others. Raises UsageError without Java where Spark may be needed."""
        if session is None and spark_may_be_needed(self.mirror.engine):
            find_java()  # before anything is begun: Spark may be needed in the middle of a night
        return Runners(lambda: self.runner(session() if callable(session) else session), inline_bytes=inline_bytes(self.mirror.engine))

    def runner(self, session: SparkSession | None) -> SparkRunner:
        """Spark behind a plain interface; the process's session if none is given."""
        engine = self.mirror.engine
        runner = SparkRunner(session or build_session(engine, app_name=f"mirror {self.name}"), tasks=engine.tasks)
        runner.warm()
        return runner

    def comparer(self, session: Session, offsets: int) -> Runner:
        """Who compares so many source offsets with the target: this process, or Spark for many."""
        return for_comparing(self.mirror.engine, offsets, lambda: self.runner(session() if callable(session) else session))

    def discoverer(self, lane: str, only: Collection[str] | None) -> Callable[[], list[Any]]:
        """A function that names the lane's topics as they are now."""
        admin = self.source_admin()
        return lambda: discover(self.config, self.mirror, admin, lane=lane, only=only)

    def claims(self) -> Claims | None:
        """What the other mirrors of the file write on the target; None where no other writes there."""
        claims = Claims(self.config, self.mirror)
        return claims if claims.rivals else None

    def drainer(self, lane: str, only: Collection[str] | None) -> Callable[[], list[Any]]:
        """The same by the ledger alone."""
        return lambda: ledger_topics(self.config, self.mirror, lane=lane, only=only)

    def _lane(self, number: int) -> str:
        name, known = f"{LANE_PREFIX}{number}", self.lanes
        if name not in known:
            raise UsageError(f"mirror {self.name} has {', '.join(known)}, not {name}", hint="see `lanes` in mirror.yaml")
        return name
