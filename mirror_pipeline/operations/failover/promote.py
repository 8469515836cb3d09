"""The steps of a failover that change something: copy the rest, verify it, promote."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.promotions import Promotion, Promotions, PromotionState, now, operator
from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.engine.lanes import LaneRuns
from mirror_pipeline.errors import ProblemFound
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.lags import HALTED
from mirror_pipeline.operations.failover.look import Situation, hold_lanes, pending, still_written
from mirror_pipeline.operations.failover.report import FailoverOptions
from mirror_pipeline.reports import Observer, RunReport
from mirror_pipeline.verify.mirrored import MirrorCheck
from mirror_pipeline.verify.staged import verify_staged

AGAIN_SECONDS = 1.0
BUDGET_BYTES = 1 << 30


def copy_rest(found: Situation, options: FailoverOptions, session: Session, observer: Observer | None, stop: threading.Event) -> RunReport:
    """Deliver what is staged; if the source is there, read it to its end first.

    Raises:
        ProblemFound: a topic is halted, or the source is still written to after ``options.wait``.
        ClusterUnreachable: the target does not answer, or a source that did.
    """
    deadline = time.monotonic() + options.wait
    while True:
        report = _runs(found, session, observer, stop).run()
        if not found.source_there:
            if pending(found):
                left = "; ".join(f"{row.topic} {row.state}: {row.reason}" for row in report.topics if row.state != "ok")
                raise ProblemFound(f"staged records are not on the target: {left or 'the run ended early'}", hint="see `mirror status`")
            return report
        _refuse_halted(found, report)
        written = still_written(found)
        if not written:
            return report
        if time.monotonic() > deadline:
            raise ProblemFound(
                f"cluster {found.flow.settings.source} is still written to: {'; '.join(line for _, line in written)}",
                hint="stop its producers and repeat the command; nothing was promoted. `--unplanned` does not wait for the source",
            )
        stop.wait(AGAIN_SECONDS)


def _runs(found: Situation, session: Session, observer: Observer | None, stop: threading.Event) -> LaneRuns:
    names = [store.lane for store in found.stores]
    return LaneRuns(
        found.flow, names, once=True, seconds=None, topics=set(found.copies), idle_seconds=None, observer=observer, stop=stop,
        session=session, verify_staged=verify_staged, drain=not found.source_there,
    )  # fmt: skip


def _refuse_halted(found: Situation, report: RunReport) -> None:
    halted = [row for row in report.topics if row.state == HALTED and row.topic in found.copies]
    if halted:
        row = halted[0]
        hint = f"{row.hint}; or leave the topic out with --topic, or promote what is there with --unplanned"
        raise ProblemFound(f"{row.topic} is halted ({row.code or 'no code'}): {row.reason}; nothing was promoted", hint=hint)


def verify_rest(found: Situation, session: Session, stop: threading.Event) -> list[str]:
    """Compare what no verification has covered; the differences in words. Raises ClusterUnreachable, BufferUnusable."""
    if found.source_there:
        flow = found.flow
        check = MirrorCheck(flow, lambda offsets: flow.comparer(session, offsets), None, stop)
        report = check.run(list(found.copies), None, None, 1.0, since_verified=True)
        wrong = [f"{d.topic}[{d.partition}] at source offset {d.source_offset}: {d.kind}" for d in report.differences]
        return wrong + [f"{row.topic} was not compared: {row.note}" for row in report.topics if row.note and not row.ok]
    return [line for store in found.stores for line in _staged(found.flow, Ledger(store), SpanTable(store))]


def _staged(flow: Flow, ledger: Ledger, spans: SpanTable) -> list[str]:
    """The digests of what is staged against the target, until nothing more can be compared."""
    seen: dict[SpanKey, int] = {}
    while True:
        done = verify_staged(
            ledger=ledger, spans=spans, runner=InlineRunner(), target=flow.target, timeout=flow.settings.engine.request_timeout,
            budget_bytes=BUDGET_BYTES,
        )  # fmt: skip
        wrong = [f"{d.topic}[{d.partition}] at source offset {d.source_offset}: {d.kind}" for d in done.differences]
        if wrong or dict(done.verified) == seen:
            return [*wrong, *done.unreadable]
        seen = dict(done.verified)


def promote(found: Situation, table: Promotions, options: FailoverOptions) -> bool:
    """Write the promotion down while no lane can run; False when there is more to copy after all.

    Raises:
        LaneBusy: a run has started meanwhile.
    """
    moment = now()
    with ExitStack() as stack:
        hold_lanes(found, stack)
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
        table.add(rows)
    return True
