"""``Mirror``: the interface that the CLI, the Dagster assets and other programs call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_pipeline.config import Config
from mirror_pipeline.engine.driver import lanes
from mirror_pipeline.features.adoption import adopt_topics, mm2_adoption
from mirror_pipeline.features.adoption.adoption_report import FULL, AdoptReport, options_of
from mirror_pipeline.features.backup.backup_file import BackupReport, back_up
from mirror_pipeline.features.backup.restore_backup import RestoreReport, restore
from mirror_pipeline.features.failover import failback, failover
from mirror_pipeline.features.failover.report import FailbackOptions, FailbackReport, FailoverOptions, FailoverReport
from mirror_pipeline.features.groups import answer
from mirror_pipeline.features.groups.carrying import carrying_groups
from mirror_pipeline.features.groups.findings import group_findings
from mirror_pipeline.features.topic_sync.acl_round import acl_notes
from mirror_pipeline.features.topic_sync.sync_state import sync_notes
from mirror_pipeline.features.topic_sync.sync_thread import syncing_topics
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.lags import MirrorDelays, MirrorLag
from mirror_pipeline.model import Gap, TopicPartition
from mirror_pipeline.operations import backfill
from mirror_pipeline.operations import pause as pausing
from mirror_pipeline.operations import quarantine as quarantines
from mirror_pipeline.operations import resolve as resolving
from mirror_pipeline.operations import translate as translation
from mirror_pipeline.operations.check import check
from mirror_pipeline.operations.doctor import MEASURE_SECONDS, DoctorReport, doctor
from mirror_pipeline.operations.evict import evict
from mirror_pipeline.operations.reload import run_following
from mirror_pipeline.operations.remirror import look as look_at_fresh_copy
from mirror_pipeline.operations.remirror import remirror
from mirror_pipeline.operations.run import run as drain_or_run
from mirror_pipeline.operations.sql import ask
from mirror_pipeline.operations.state import delays, lag, status
from mirror_pipeline.operations.state import health as healths
from mirror_pipeline.operations.state.plan import plan
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import (
    BackfillReport,
    Finding,
    FreshCopy,
    GroupsReport,
    HaltedTopic,
    MappedRange,
    MirrorPlan,
    MirrorStatus,
    Observer,
    PauseReport,
    QuarantinedRecords,
    RecordSource,
    Resolution,
    RunReport,
    Translation,
)
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic, refresh_catalogue
from mirror_pipeline.topics.lanes import known_topics
from mirror_pipeline.verdicts import VerifyProgress, VerifyReport
from mirror_pipeline.verify import repair
from mirror_pipeline.verify.mirrored import MirrorCheck
from mirror_pipeline.verify.repair import RepairReport
from mirror_pipeline.verify.same_offsets import samples_differ, tails_differ
from mirror_pipeline.verify.staged import verify_staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What features add to `plan` and `check`: the core does not know them.
FEATURE_NOTES = (sync_notes, acl_notes)


class Mirror:
    """One mirror of a configuration.

    Args:
        config: from :func:`mirror_pipeline.load_config`.
        name: the mirror's name.

    Raises:
        UsageError: no mirror of that name.
    """

    def __init__(self, config: Config, name: str) -> None:
        self.flow = Flow(config, name)

    @property
    def name(self) -> str:
        """The mirror's name."""
        return self.flow.name

    @property
    def lanes(self) -> list[str]:
        """Names of the lanes that copy: the configured ones, and earlier ones that still have topics. Raises BufferUnusable."""
        return self.flow.lanes

    def plan(self) -> MirrorPlan:
        """What would be copied where, what would be created or changed, what is excluded and why. Changes nothing.

        Raises:
            ClusterUnreachable: source or target does not answer.
        """
        return plan(self.flow, FEATURE_NOTES)

    def check(self) -> list[Finding]:
        """Whether this mirror can run: Java, buffer, both clusters, topics, rights. Changes nothing on the clusters."""
        return check(self.flow, FEATURE_NOTES, (group_findings,))

    def doctor(self, *, seconds: float = MEASURE_SECONDS, bandwidth: float | None = None) -> DoctorReport:
        """Measure both links and this host, and say what to change: reads records for seconds, writes one file and removes it.

        Args:
            seconds: of each of the two measurements of the source.
            bandwidth: of the line to both clusters in bytes a second, where it is known; else what was measured.

        Raises BufferUnusable.
        """
        return doctor(self.flow, seconds=seconds, bandwidth=bandwidth)

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
        """Copy records. While the source is unreachable, staged records are delivered, and the error reports the target's position.

        A run that is not limited by ``once`` or ``drain`` follows changes of mirror.yaml.

        Args:
            once: up to the end offsets seen at the start, then return.
            seconds: time budget of a continuous run; None runs until ``stop``.
            topics: only these of the selected topics.
            lane: only this lane; None runs all lanes concurrently.
            idle_seconds: return after this long without progress.
            observer: called a few times a second, from the calling thread only.
            stop: set it to end the run after the current micro-batches.
            session: a Spark session to use, or a function that starts one when needed; by default one is started when needed.
            drain: only deliver what is staged; the source is not contacted.

        Raises:
            NothingSelected: the selection matches no topic.
            LaneBusy: another run holds the lane.
            ClusterUnreachable: a cluster stayed silent; with a report when it was the source and what was staged is delivered.
            BufferUnusable: the buffer cannot be read or written.
        """

        def by(config: Config, stop: threading.Event, seconds: float | None) -> RunReport:
            flow = self.flow if config is self.flow.config else Flow(config, self.name)
            wanted = lanes.LaneRuns(
                flow, flow.lanes if lane is None else [flow.lane(lane)], once=once or drain, seconds=seconds, topics=topics,
                idle_seconds=idle_seconds, observer=observer, stop=stop, session=session, drain=drain,
                verify_staged=partial(verify_staged, shared=flow.settings.shared), tails_differ=tails_differ,
                samples_differ=None if drain else samples_differ,
            )  # fmt: skip
            with carrying_groups(flow, ask_source=not drain), nullcontext() if drain else syncing_topics(flow):
                return wanted.run() if drain else drain_or_run(wanted)

        ended = stop or threading.Event()
        if once or drain:
            return by(self.flow.config, ended, seconds)
        return run_following(self.flow.config, self.name, ended, seconds, by)

    def undelivered(self) -> MirrorLag:
        """What is staged and not on the target, by topic, from ledger and buffer alone; contacts no cluster.

        Raises:
            BufferUnusable: the buffer cannot be read.
        """
        return lag.undelivered(Snapshot(self.flow))

    def lag(self) -> MirrorLag:
        """The lag of each topic and its halt, from ledger, last runs and source. Raises ClusterUnreachable."""
        with Snapshot(self.flow) as snapshot:
            return lag.lag(snapshot, notes=sync_notes(self.flow))

    def delays(self, seconds: float) -> MirrorDelays:
        """Records and their delays by topic and hour, from the ledger; contacts no cluster.

        Raises:
            UsageError: more than the seven days for which the ledger keeps hours apart.
        """
        return delays.delays(self.flow, seconds, time.time())

    def health(self, max_age: float | None = None) -> healths.Health:
        """Whether the mirror is healthy; asks the source only where some lane is not running.

        Args:
            max_age: a mirror whose records have waited for longer than this, in seconds, with nobody at work is stale.
        """
        with Snapshot(self.flow) as snapshot:
            return healths.health(snapshot, max_age)

    def status(self) -> MirrorStatus:
        """Lanes, buffer and gaps; contacts no cluster."""
        return status.status(Snapshot(self.flow))

    def sql(self, query: str, *, session: Session = None) -> DataFrame:
        """The answer to a query over the tables of all lanes and the named views of docs/buffer.md; contacts no cluster.

        Raises:
            UsageError: the query is wrong, the mirror has not run yet, its buffer is an object store, or there is no Java.
            BufferUnusable: the buffer cannot be read.
            MirrorError: Spark does not start, or cannot answer.
        """
        return ask(self.flow, query, session)

    def gaps(self) -> list[Gap]:
        """Every source offset range that is missing on the target for good, with its cause; contacts no cluster."""
        return Snapshot(self.flow).gaps

    def translate(
        self,
        topic: str,
        *,
        offset: int | None = None,
        at: int | None = None,
        partition: int | None = None,
        reverse: bool = False,
        generation: int | None = None,
    ) -> tuple[Translation, ...]:
        """The target offset from which a consumer continues that has read a source partition up to an offset, or the reverse.

        Args:
            topic: source topic; with ``reverse`` the target topic's name is understood too.
            offset: the next offset to read on the source, with ``reverse`` on the target.
            at: in place of an offset: the first record at or after this time, milliseconds since the epoch; asks that cluster.
            partition: only this one; needed with ``offset`` if the topic has several.
            reverse: from target to source.
            generation: answer by this generation of the topic alone, counted from 1; by default by both logs as they are now.

        Returns:
            One answer for each partition. A cluster that does not answer is asked for nothing but its log's start.

        Raises:
            UsageError: no such topic, partition or generation was copied, or the question is incomplete.
            ClusterUnreachable: with ``at``, the cluster that is asked does not answer.
            BufferUnusable: the ledger cannot be read.
        """
        return translation.translate(self.flow, translation.TranslationQuestion(topic, partition, offset, at, reverse, generation))

    def offset_map(self, topic: str | None = None) -> tuple[MappedRange, ...]:
        """Which source offsets of each partition are which target offsets, in every generation of each topic; contacts no cluster.

        Raises:
            UsageError: ``topic`` was never copied.
            BufferUnusable: the ledger cannot be read.
        """
        return translation.show(self.flow, topic)

    def groups(self) -> GroupsReport:
        """The committed offsets of the mirror's consumer groups on both sides, and why an offset is not carried over. Changes nothing.

        While the source does not answer, its offsets are those that were seen there last, and a note says since when.

        Raises:
            UsageError: the mirror carries no groups.
            ClusterUnreachable: the target does not answer, or the source does not and no offset was ever seen there.
            BrokerError: a cluster refuses to list its groups.
            BufferUnusable: the ledger cannot be read.
        """
        return answer.groups(self.flow)

    def carry_groups(self) -> GroupsReport:
        """Carry the consumer groups over once, unless a run of the mirror does so now; then as :meth:`groups`."""
        return answer.carry(self.flow)

    def failover(
        self,
        options: FailoverOptions | None = None,
        *,
        observer: Observer | None = None,
        stop: threading.Event | None = None,
        session: Session = None,
    ) -> FailoverReport:
        """Promote topics: applications write to their copies from then on, and this mirror leaves them alone.

        With the source there, waits until everything is copied; without it, delivers what is staged. Then carries the groups over once
        more, verifies what no verification has covered, promotes in one commit, and writes the hand-over file. A failover that was cut
        off is continued by the same call. Other arguments as in :meth:`run`.

        Raises:
            UsageError: the mirror never ran, a topic is unknown, or everything asked for is promoted already.
            LaneBusy: a run holds a lane.
            ProblemFound: the source is still written to, a topic is halted, a group is active on the target, or the copy differs.
            ClusterUnreachable: the target does not answer.
        """
        return failover.failover(self.flow, options or FailoverOptions(), session, observer, stop or threading.Event())

    def failback(
        self,
        options: FailbackOptions | None = None,
        *,
        observer: Observer | None = None,
        stop: threading.Event | None = None,
        session: Session = None,
    ) -> FailbackReport:
        """After a failover, open the mirror of the other direction, which is declared with ``reverse_of``.

        Lists what the old source has that never came over, and does with it what ``options.tail`` says. A failback that was cut off is
        continued by the same call. Other arguments as in :meth:`run`.

        Raises:
            UsageError: no reverse mirror, nothing was promoted, or everything is open already.
            ProblemFound: there are such records and ``options.tail`` is None; nothing was changed.
            ClusterUnreachable: the old source does not answer.
            LaneBusy: another failover or failback runs.
        """
        return failback.failback(self.flow, options or FailbackOptions(), session, observer, stop or threading.Event())

    def backfill(
        self,
        topic: str,
        from_time: int,
        to_time: int,
        *,
        into: str | None = None,
        source: RecordSource = "auto",
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
            source: ``auto`` reads what the source has deleted from the archive (``buffer.archive``) and the rest from the source,
                ``buffer`` everything from the buffer and its archive, ``cluster`` only what the source has.
            observer, stop, session: as in :meth:`run`.

        Raises:
            UsageError: the range is empty or not in the past, the target may not take it, or records are in neither place.
            BufferDamaged: an archived span is not what was written.
        """
        return backfill.run(
            self.flow, topic, from_time, to_time, into=into, source=source, observer=observer, stop=stop or threading.Event(),
            session=session,
        )  # fmt: skip

    def backfill_target(self, topic: str) -> str:
        """The default target of a backfill: the mirrored name while that topic is empty, else a separate topic."""
        return backfill.default_target(self.flow, topic)

    def adopt(
        self,
        topic: str,
        *,
        proof: str = FULL,
        allow: Collection[str] = (),
        dry_run: bool = False,
        mm2_alias: str | None = None,
        observer: Callable[[VerifyProgress], None] | None = None,
        stop: threading.Event | None = None,
        session: Session = None,
    ) -> AdoptReport:
        """Take over a target topic that already holds a copy: made by another tool, or by this mirror before its buffer was lost.

        The target's log must be the beginning of the source's committed records, per partition; :meth:`run` continues after it. One
        commit at the end: before it nothing is adopted.

        Args:
            topic: source topic.
            proof: ``full`` compares every record, ``last:N`` the last N offsets of each target partition.
            allow: ``foreign`` accepts records on the target that the source does not have.
            dry_run: compare only.
            mm2_alias: MirrorMaker 2 has made the copy; its alias of the source cluster. Its stored positions must agree with the data,
                it must not run any more, and the group offsets that it wrote are continued.
            observer, stop, session: as in :meth:`verify`.

        Raises:
            UsageError: the topic is not selected, is copied already, does not exist, or its target is empty.
            ProblemFound: the target differs, which the message lists by offset, or it is written to meanwhile.
            TopicHalted: another mirror writes the target topic, or the topic was promoted.
            LaneBusy: a run holds the topic's lane.
            ClusterUnreachable: a cluster does not answer.
        """
        options = options_of(proof, allow, dry_run=dry_run, mm2_alias=mm2_alias)
        return adopt_topics.adopt(self.flow, topic, options, session, observer, stop or threading.Event())

    def mm2_positions(self, alias: str) -> dict[TopicPartition, int]:
        """For each source partition the next offset that MirrorMaker 2 would copy, by what it has stored on the target.

        Args:
            alias: of the source cluster, as MirrorMaker's property file has it.

        Raises:
            UsageError: MirrorMaker never copied from a cluster of that alias to this target.
            ProblemFound: its topic holds records of another form.
            ClusterUnreachable: the target does not answer.
        """
        return dict(mm2_adoption.positions(self.flow, alias).next_offsets)

    def evict(self) -> list[dict[str, Any]]:
        """Remove staged data that is on the target, verified, and older than ``buffer.retention``.

        Data that is not verified yet is compared with the target first. May run beside the mirror's lanes.

        Returns:
            One row for each lane (:class:`~mirror_pipeline.engine.driver.maintain.rounds.Eviction`).

        Raises:
            BufferUnusable: the buffer cannot be read or written.
        """
        return [asdict(done) for done in evict(self.flow)]

    def halts(self) -> list[HaltedTopic]:
        """Halted topics as :meth:`lag` and :meth:`plan` show them, each with the command that accepts the halt where that is possible.

        Of a cluster that does not answer, what the last run of each lane reported.
        """
        return resolving.halts(self.flow)

    def pause(self, topic: str | None = None) -> PauseReport:
        """Stop copying one source topic, or all, until :meth:`resume`; a running lane follows within half a minute.

        Raises:
            UsageError: the mirror does not select the topic.
            BufferUnusable: the ledger cannot be written.
        """
        return pausing.pause(self.flow, topic)

    def resume(self, topic: str | None = None) -> PauseReport:
        """Continue; without a topic also those that were paused one by one. Raises as :meth:`pause`."""
        return pausing.resume(self.flow, topic)

    def quarantine(self, topic: str | None = None) -> list[QuarantinedRecords]:
        """What was left out of the copy, of one source topic or of all. Contacts no cluster. Raises BufferUnusable."""
        return quarantines.listed(self.flow, topic)

    def export_quarantine(self, folder: Path, topic: str | None = None) -> list[QuarantinedRecords]:
        """Write it into files: RecordBatches as they were read, and records that can be read also as lines of JSON.

        Raises UsageError where the folder cannot be written, BufferUnusable.
        """
        return quarantines.export(self.flow, folder, topic)

    def send_quarantine(self, topic: str) -> tuple[str, list[QuarantinedRecords]]:
        """Send what can be read of one source topic into a topic beside its copy, whose name is returned; a second call adds nothing.

        Raises UsageError where there is nothing to send, BrokerError where the target refuses.
        """
        return quarantines.send(self.flow, topic)

    def resolve(self, topic: str, accept: str) -> Resolution:
        """Accept a topic's halt; a running lane resumes it within half a minute, otherwise the next run does.

        Args:
            topic: source topic.
            accept: the halt's code, as returned by :meth:`halts`; it guards against accepting a different halt.

        Raises:
            UsageError: the topic is not halted for this, or this cannot be accepted.
            ClusterUnreachable: the cluster concerned does not answer.
        """
        return resolving.resolve(self.flow, topic, accept)

    def fresh_copy(self, topic: str) -> FreshCopy:
        """What :meth:`remirror` would do; changes nothing. Raises as it does."""
        return look_at_fresh_copy(self.flow, topic)

    def backup(self, out: Path) -> BackupReport:
        """Write the ledger, with groups, decisions and promotions, into one file; allowed beside running lanes. Contacts no cluster.

        Args:
            out: the file; in a folder one named by mirror and time.

        Raises:
            UsageError: there is no ledger yet, or the file cannot be written.
            BufferUnusable: the ledger cannot be read.
        """
        return back_up(self.flow, out)

    def restore(
        self,
        file: Path,
        *,
        replace: bool = False,
        observer: Callable[[VerifyProgress], None] | None = None,
        stop: threading.Event | None = None,
        session: Session = None,
    ) -> RestoreReport:
        """Bring back the ledger from a backup, and add to it what the target has received since, after comparing it with the source.

        Args:
            file: what :meth:`backup` has written.
            replace: move an existing ledger aside.
            observer, stop, session: as in :meth:`verify`.

        Raises:
            UsageError: no backup, another mirror's, a ledger is there, or the mirror is one whose ledger cannot be restored safely.
            LaneBusy: a lane runs.
            ClusterUnreachable: a cluster does not answer; the ledger is restored, and runs halt until it is caught up.
        """
        return restore(self.flow, file, replace=replace, session=session, observer=observer, stop=stop or threading.Event())

    def remirror(self, topic: str, *, accept_loss: bool = False) -> Resolution:
        """Copy a source topic afresh: delete its target topic, create it again with its settings, and copy everything that the source has.

        A running lane begins within half a minute, otherwise the next run. Consumers of the target topic begin anew, too. A call that was
        cut off is continued by the same call.

        Args:
            topic: the source topic.
            accept_loss: also where the copy has records that the source has deleted meanwhile.

        Raises:
            UsageError: there is no copy, applications own it, other mirrors write it, or this mirror creates no topics.
            BrokerError: the target refuses.
            ClusterUnreachable: the target does not answer.
        """
        return remirror(self.flow, topic, accept_loss=accept_loss)

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
        """Compare everything that was copied with the source, record by record if needed; a lane may be running.

        Args:
            topics: only these source topics.
            from_time, to_time: from the first record at or after ``from_time`` up to the first at or after ``to_time``, milliseconds.
            sample: only this fraction of every partition, chosen at random; the outcome is not recorded then.
            since_verified: only what no earlier verification has covered; topics that were never copied are no error then.
            observer, stop, session: as in :meth:`run`; the observer is called as parts are done.

        Raises UsageError for a topic that was never copied, ClusterUnreachable when a cluster does not answer.
        """
        check = MirrorCheck(self.flow, lambda offsets: self.flow.comparer(session, offsets), observer, stop or threading.Event())
        return repair.with_repaired(self.flow, check.run(topics, from_time, to_time, sample, since_verified=since_verified))

    def repair(
        self,
        topic: str,
        *,
        dry_run: bool = False,
        observer: Callable[[VerifyProgress], None] | None = None,
        stop: threading.Event | None = None,
        session: Session = None,
    ) -> RepairReport:
        """Verify a source topic and write what is missing or altered on the target into the side topic ``NAME.repair``.

        With ``dry_run`` nothing is written; a second repair adds nothing. The other arguments are as in :meth:`verify`.

        Raises UsageError when the topic was never copied or a side cannot be read, BrokerError when the target refuses.
        """
        return repair.repair(self.flow, topic, dry_run=dry_run, observer=observer, stop=stop or threading.Event(), session=session)

    def refresh_catalogue(self) -> Catalogue:
        """Save the current topic selection for callers that must not contact Kafka. Raises ClusterUnreachable."""
        known = sorted(known_topics(self.flow.config, self.flow.settings).items())
        copied = [CatalogueTopic(name, k.target_topic, len(k.generation.starts), k.generation.topic_id) for name, k in known]
        with self.flow.source_admin() as admin:
            return refresh_catalogue(self.flow.config, self.flow.settings, admin, copied)
