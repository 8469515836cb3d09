"""The steps of a failover that change something: copy the rest, verify it, promote."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.promotions import Promotion, Promotions, PromotionState, now
from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.driver.lanes import LaneRuns
from mirror_pipeline.errors import BrokerError, ProblemFound
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.features.failover.look import Situation, hold_lanes, pending, still_written
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.host import operator
from mirror_pipeline.kafka.answers import LATEST_TIME
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.lags import BEHIND, HALTED
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.reports import Observer, RunReport
from mirror_pipeline.text import SHOWN_NAMES, count
from mirror_pipeline.verify.mirrored import MirrorCheck
from mirror_pipeline.verify.same_offsets import samples_differ
from mirror_pipeline.verify.staged import verify_staged

END_AGAIN_SECONDS = 1.0
BUDGET_BYTES = 1 << 30


@dataclass(slots=True)
class EndPatience:
    """How long a planned failover waits for the source's producers to end: it counts from the end of the first run on.

    That run may have to copy a long backlog first.
    """

    seconds: float
    _until: float | None = None

    def over(self) -> bool:
        """Whether the time is up; the first call starts it."""
        if self._until is None:
            self._until = time.monotonic() + self.seconds
        return time.monotonic() > self._until


def refuse_stopped(stop: threading.Event) -> None:
    """What a stopped run or verification leaves is not complete. Raises ProblemFound once somebody has asked to stop."""
    if stop.is_set():
        raise ProblemFound("stopped before the promotion: nothing was promoted", hint="the same command starts again")


def copy_rest(found: Situation, patience: EndPatience, session: Session, observer: Observer | None, stop: threading.Event) -> RunReport:
    """Deliver what is staged; if the source is there, read it to its end first.

    Raises:
        ProblemFound: a topic is halted, the source is still written to when ``patience`` is over, or ``stop`` was set.
        ClusterUnreachable: the target does not answer, or a source that did.
    """
    while True:
        report = _runs(found, session, observer, stop).run()
        refuse_stopped(stop)
        found.refresh()
        if not found.source_there:
            if pending(found):
                left = "; ".join(f"{row.topic} {row.state}: {row.reason}" for row in report.topics if row.state != "ok")
                raise ProblemFound(
                    f"staged records are not on the target: {left or 'the run ended early'}; nothing was promoted",
                    hint="`mirror status` and `mirror resolve` show halted topics; or leave them out with --topic",
                )
            return report
        _refuse_halted(found, report)
        written = still_written(found)
        if not written:
            return report
        if patience.over():
            raise ProblemFound(
                f"cluster {found.flow.settings.source} is still written to: {'; '.join(line for _, line in written[:SHOWN_NAMES])}"
                + (f" and {len(written) - SHOWN_NAMES} more partitions" if len(written) > SHOWN_NAMES else ""),
                hint="stop its producers and repeat the command; nothing was promoted. `--unplanned` does not wait for the source",
            )
        stop.wait(END_AGAIN_SECONDS)
        refuse_stopped(stop)


def _runs(found: Situation, session: Session, observer: Observer | None, stop: threading.Event) -> LaneRuns:
    names = [store.lane for store in found.stores]
    return LaneRuns(
        found.flow, names, once=True, seconds=None, topics=set(found.copies), idle_seconds=None, observer=observer, stop=stop,
        session=session, verify_staged=partial(verify_staged, shared=found.flow.settings.shared), samples_differ=samples_differ,
        drain=not found.source_there,
    )  # fmt: skip


def _refuse_halted(found: Situation, report: RunReport) -> None:
    stopped = [row for row in report.topics if row.state in (HALTED, BEHIND) and row.topic in found.copies]
    if stopped:
        row = stopped[0]
        hint = "; ".join(part for part in (row.hint, "leave the topic out with --topic, or promote what is there with --unplanned") if part)
        state = f"halted ({row.code or 'no code'})" if row.state == HALTED else row.state
        raise ProblemFound(f"{row.topic} is {state}: {row.reason}; nothing was promoted", hint=hint)


def verify_rest(found: Situation, session: Session, stop: threading.Event) -> list[str]:
    """Compare what no verification has covered; the differences in words. Raises ClusterUnreachable, BufferUnusable."""
    short = [line for line, lacks in target_ends(found) if lacks]
    if found.source_there:
        flow = found.flow
        check = MirrorCheck(flow, lambda offsets: flow.comparer(session, offsets), None, stop)
        report = check.run(list(found.copies), None, None, 1.0, since_verified=True)
        wrong = [f"{d.topic}[{d.partition}] at source offset {d.source_offset}: {d.kind}" for d in report.differences]
        return [*short, *wrong, *(f"{row.topic} was not compared: {row.note}" for row in report.topics if row.note and not row.ok)]
    return short + [line for store in found.stores for line in _staged(found.flow, Ledger(store), SpanTable(store))]


def target_ends(found: Situation) -> list[tuple[str, bool]]:
    """Target partitions whose log does not end where the copy does, in words, and whether records are missing there.

    A verification since the last one does not see what the target has lost before. Raises ClusterUnreachable, BufferUnusable.
    """
    copies = {TopicPartition(found.copies[tp.topic][1].target_topic, tp.partition): at for tp, at in found.positions().items()}
    with found.flow.target_client() as client:
        ends = offsets_or_errors(client, copies, LATEST_TIME, isolation=0)
    lines = []
    for tp, at in sorted(copies.items()):
        end = ends[tp]
        if isinstance(end, BrokerError):
            lines.append((f"{tp} cannot be read: {end.message}", True))
        elif end < at.target_next:
            lines.append((f"{tp} ends at offset {end}, the copy at {at.target_next}: the target has lost records", True))
        elif end > at.target_next:
            lines.append((f"{tp} holds {count(end - at.target_next)} records of others from offset {at.target_next} on", False))
    return lines


def _staged(flow: Flow, ledger: Ledger, spans: SpanTable) -> list[str]:
    """The digests of what is staged against the target, until nothing more can be compared."""
    seen: dict[SpanKey, int] = {}
    while True:
        done = verify_staged(
            ledger=ledger, spans=spans, runner=InlineRunner(), target=flow.target, timeout=flow.settings.engine.request_timeout,
            budget_bytes=BUDGET_BYTES, shared=flow.settings.shared,
        )  # fmt: skip
        wrong = [f"{d.topic}[{d.partition}] at source offset {d.source_offset}: {d.kind}" for d in done.differences]
        if wrong or dict(done.verified) == seen:
            return [*wrong, *done.unreadable]
        seen = dict(done.verified)


def promote(found: Situation, table: Promotions) -> bool:
    """Write the promotion down while no lane can run; False when there is more to copy after all.

    Raises:
        LaneBusy, LaneLost: a run has started meanwhile.
    """
    moment = now()
    with ExitStack() as stack:
        holds = hold_lanes(found, stack)
        found.refresh()
        if pending(found) or (found.source_there and still_written(found)):
            return False
        positions = found.positions()
        rows = [
            Promotion(
                tp.topic, tp.partition, found.copies[tp.topic][1].incarnation, PromotionState.PROMOTED, at.source_next, at.target_next,
                found.copies[tp.topic][1].target_topic, operator(), moment,
            )
            for tp, at in sorted(positions.items())
        ]  # fmt: skip
        crash_point("failover.promoting")
        for hold in holds:  # a lease may have ended while this process hung, and a run have begun
            hold.check()
        table.add(rows)
    return True
