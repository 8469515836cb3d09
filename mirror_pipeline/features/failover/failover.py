"""``Mirror.failover``: hand a mirror's topics over to applications on the target.

Every step is written into the ledger when it is done, so a failover that was cut off is continued by the same command. Steps before the
promotion are repeated then: they only read, or copy what a run would copy. The promotion is one commit.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirror_pipeline.buffer.ledger.promotions import (
    FAILOVER_LANE,
    FailoverStep,
    Promotions,
    is_promoted,
    now,
    promotions_of,
)
from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import LaneStore, open_lane
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.errors import LaneBusy, ProblemFound, UsageError
from mirror_pipeline.features.failover.last_groups import carries, handed, last_round
from mirror_pipeline.features.failover.look import Situation, choose, found_copies, last_known_ends, look
from mirror_pipeline.features.failover.promote import EndPatience, copy_rest, promote, refuse_stopped, target_ends, verify_rest
from mirror_pipeline.features.failover.report import (
    PLANNED,
    UNPLANNED,
    FailoverOptions,
    FailoverReport,
    HandedPartition,
    HandedTopic,
    Missing,
)
from mirror_pipeline.features.groups.group_round import RoundOutcome
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.host import operator
from mirror_pipeline.operations.state.buffer_status import ledger_of
from mirror_pipeline.reports import Observer
from mirror_pipeline.text import count

FAILOVER = "failover"
LAST_FAILOVER_STEP = "written"
SHOWN_TOPICS = 20


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A failover that was cut off: its number and topics, and whether they are promoted already."""

    number: int
    topics: list[str]
    promoted: bool


def failover(flow: Flow, options: FailoverOptions, session: Session, observer: Observer | None, stop: threading.Event) -> FailoverReport:
    """See ``Mirror.failover``."""
    before = unfinished(flow)
    if before is not None and before.promoted:
        return _only_finish(flow, options, before)
    wanted = None if options.topics is None else sorted(set(options.topics))
    found = look(flow, wanted, unplanned=options.unplanned, dry_run=options.dry_run)
    if options.planned and not found.source_there:
        raise ProblemFound(f"a planned failover needs the source: {found.why_not}", hint="an unplanned one does without it")
    if options.dry_run:
        return _report(flow, _next_number(promotions_of(flow.config.buffer, flow.name)), found, RoundOutcome(), dry_run=True)
    store = open_lane(flow.config.buffer, flow.name, FAILOVER_LANE)
    with lane_lock(store):
        _refuse_overtaken(flow, before, found)
        work = _Failover(flow, store, Promotions(store, durable=flow.config.buffer.durable), before)
        return work.run(found, options, session, observer, stop)


def unfinished(flow: Flow) -> _Unfinished | None:
    """The failover that was cut off, if the last one was. Raises BufferUnusable."""
    table = promotions_of(flow.config.buffer, flow.name)
    steps = [] if table is None else table.steps()
    if table is None or not steps or steps[-1].step == LAST_FAILOVER_STEP or steps[-1].kind != FAILOVER:
        return None
    own = [step for step in steps if step.number == steps[-1].number]
    topics = list(own[0].detail["topics"])
    latest = table.latest()
    # None of them was promoted when it began, and nothing else promotes: no clock is needed to know that it did.
    return _Unfinished(own[0].number, topics, all(is_promoted(latest.get(topic)) for topic in topics))


def _only_finish(flow: Flow, options: FailoverOptions, before: _Unfinished) -> FailoverReport:
    """After the promotion only the hand-over file is missing."""
    if options.dry_run or (options.topics is not None and sorted(set(options.topics)) != before.topics):
        raise UsageError(
            f"failover {before.number} was cut off after it had promoted {', '.join(before.topics[:SHOWN_TOPICS])}",
            hint=f"finish it first: `mirror failover {flow.name}` writes its hand-over file",
        )
    store = open_lane(flow.config.buffer, flow.name, FAILOVER_LANE)
    with lane_lock(store):
        return _finish(flow, before, None)


def _refuse_overtaken(flow: Flow, before: _Unfinished | None, found: Situation) -> None:
    """Another failover may have ended between the first look and the lock. Raises UsageError, LaneBusy."""
    choose(flow, found.copies, list(found.copies))
    if unfinished(flow) != before:
        raise LaneBusy(f"another failover of mirror {flow.name} ran at the same time", hint="repeat the command")


def _next_number(table: Promotions | None) -> int:
    return 1 + max((step.number for step in table.steps()), default=0) if table is not None else 1


@dataclass(slots=True)
class _Failover:
    """One failover, under the lock of the mirror's failover folder."""

    flow: Flow
    store: LaneStore
    table: Promotions
    before: _Unfinished | None
    number: int = 0

    def run(
        self, found: Situation, options: FailoverOptions, session: Session, observer: Observer | None, stop: threading.Event
    ) -> FailoverReport:
        """All steps."""
        again = self.before is not None and self.before.topics == sorted(found.copies)
        self.number = self.before.number if self.before is not None and again else _next_number(self.table)
        if not again:  # one of other topics that was cut off has promoted nothing: it ends here
            self._note("begun", {"topics": sorted(found.copies)})
        seen = {"source_there": found.source_there, "why": found.why_not, "producing": found.producing, "left_out": found.left_out}
        self._note("looked", seen)
        patience = EndPatience(options.wait)
        while True:
            copied = copy_rest(found, patience, session, observer, stop)
            ends = {f"{tp.topic}/{tp.partition}": end for tp, end in last_known_ends(found).items()}
            self._note("copied", {"records": copied.records, "ends": ends})
            outcome = last_round(found)
            self._note("groups", {"written": outcome.written, "notes": _group_notes(outcome)})
            wrong = verify_rest(found, session, stop)
            refuse_stopped(stop)
            self._note("verified", {"different": wrong[:SHOWN_TOPICS], "count": len(wrong)})
            if wrong and not options.accept_differences:
                raise ProblemFound(
                    f"the copy is not what was read: {wrong[0]} ({count(len(wrong))} in all); nothing was promoted",
                    hint="`mirror verify` and `mirror repair` show and mend it; --accept-differences promotes the topics as they are",
                )
            others = [line for line, lacks in target_ends(found) if not lacks]
            if promote(found, self.table):
                break
        self._note("promoted", {"others": others})
        return _finish(self.flow, _Unfinished(self.number, sorted(found.copies), True), outcome, resumed=again)

    def _note(self, step: str, detail: Mapping[str, Any]) -> None:
        self.table.note(FailoverStep(self.number, FAILOVER, step, detail, operator(), now()))
        crash_point(f"{FAILOVER}.{step}")


def _group_notes(outcome: RoundOutcome) -> list[str]:
    return [*outcome.notes, *(f"group {name} is not carried over: {why}" for name, why in sorted(outcome.left_out.items()))]


def _finish(flow: Flow, done: _Unfinished, outcome: RoundOutcome | None, *, resumed: bool = True) -> FailoverReport:
    """Write the hand-over file; the last step."""
    store = open_lane(flow.config.buffer, flow.name, FAILOVER_LANE)
    copies = found_copies(flow)
    found = Situation(flow, {topic: copies[topic] for topic in done.topics}, False)
    table = Promotions(store, durable=flow.config.buffer.durable)
    report = _report(flow, done.number, found, outcome, dry_run=False, table=table, resumed=resumed)
    with explained(store.uri):
        store.write_file(file_name(done.number), json.dumps(report.to_json(), indent=2) + "\n", durable=True)
    table.note(FailoverStep(done.number, FAILOVER, LAST_FAILOVER_STEP, {"file": report.file}, operator(), now()))
    crash_point(f"{FAILOVER}.{LAST_FAILOVER_STEP}")
    return report


def file_name(number: int) -> str:
    """The hand-over file's name in the mirror's failover folder."""
    return f"handover-{number}.json"


def _report(
    flow: Flow,
    number: int,
    found: Situation,
    outcome: RoundOutcome | None,
    *,
    dry_run: bool,
    table: Promotions | None = None,
    resumed: bool = False,
) -> FailoverReport:
    """From the ledger alone, but for the groups' offsets on the target."""
    details = {step.step: step.detail for step in (table.steps() if table is not None else ()) if step.number == number}
    there = found.source_there if dry_run else bool(details.get("looked", {}).get("source_there"))
    targets = {topic: generation.target_topic for topic, (_, generation) in found.copies.items()}
    groups = handed(flow, targets, outcome)
    notes = [] if there else [f"the source was not asked: {found.why_not or details.get('looked', {}).get('why', '')}"]
    notes += [] if carries(flow) else ["the mirror carries no consumer groups: `mirror offsets translate` gives positions"]
    notes += list(details.get("groups", {}).get("notes", ()))
    notes += [f"differs: {line}" for line in details.get("verified", {}).get("different", ())]
    notes += list(details.get("promoted", {}).get("others", ()))
    left_out = found.left_out if dry_run else details.get("looked", {}).get("left_out", ())
    notes += [f"{topic} was never copied and stays on {flow.settings.source}: a run copies it first" for topic in left_out]
    return FailoverReport(
        mirror=flow.name,
        number=number,
        state="ready" if dry_run else "promoted",
        mode=PLANNED if there else UNPLANNED,
        dry_run=dry_run,
        source=flow.settings.source,
        target=flow.settings.target,
        bootstrap_servers=tuple(flow.target.bootstrap_servers),
        topics=_topics(found),
        groups=groups,
        missing=_missing(found, details.get("copied", {}).get("ends"), there=there),
        producing=tuple(found.producing),
        notes=tuple(notes),
        resumed=resumed,
        file="" if dry_run else f"{open_lane(flow.config.buffer, flow.name, FAILOVER_LANE).uri}/{file_name(number)}",
    )


def _topics(found: Situation) -> tuple[HandedTopic, ...]:
    positions = found.positions()
    topics = []
    for topic, (_, generation) in sorted(found.copies.items()):
        own = {tp.partition: at for tp, at in positions.items() if tp.topic == topic}
        parts = tuple(HandedPartition(number, at.source_next, at.target_next) for number, at in sorted(own.items()))
        topics.append(HandedTopic(topic, generation.target_topic, parts))
    return tuple(topics)


def _missing(found: Situation, ends: Mapping[str, int] | None, *, there: bool) -> tuple[Missing, ...]:
    """Gaps of the ledger, and what a source that does not answer may have more."""
    rows = []
    for store in found.stores:
        for gap in ledger_of(store).gaps():
            if gap.topic in found.copies and gap.incarnation == found.copies[gap.topic][1].incarnation:
                rows.append(Missing(gap.topic, gap.partition, gap.start, gap.end, f"{gap.cause.value}, {gap.decided_by}"))
    if not there:
        known = {f"{tp.topic}/{tp.partition}": end for tp, end in last_known_ends(found).items()} if ends is None else dict(ends)
        for tp, at in sorted(found.positions().items()):
            seen = known.get(f"{tp.topic}/{tp.partition}", 0)
            why = "what the source has from this offset on is not known"
            if seen > at.source_next:
                why = f"not read before the source went away; its end was at least {seen}"
            rows.append(Missing(tp.topic, tp.partition, at.source_next, None, why))
    return tuple(rows)
