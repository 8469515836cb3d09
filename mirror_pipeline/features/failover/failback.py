"""``Mirror.failback``: after a failover, open the mirror of the other direction.

First it is settled what becomes of the old source's records that never came over. Where names come back to the same topic, the other
mirror then adopts the old topics. Every step is written into the ledger, so that a failback that was cut off is continued by the same
command; each of them may be repeated. Whatever a step acts on is looked at under the lock, and again after a kill.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirror_pipeline.buffer.ledger.promotions import (
    FAILOVER_LANE,
    WHOLE,
    FailoverStep,
    Promotion,
    Promotions,
    PromotionState,
    is_promoted,
    latest_of,
    now,
    promotion_name,
    promotions_of,
)
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.errors import MirrorError, ProblemFound, UsageError
from mirror_pipeline.features.adoption.proof import Proof
from mirror_pipeline.features.failover.promote import EndPatience
from mirror_pipeline.features.failover.report import (
    COPY_ASIDE,
    LEAVE,
    REBUILD,
    FailbackOptions,
    FailbackReport,
    OpenedTopic,
    TailPartition,
)
from mirror_pipeline.features.failover.tails import NotedLook, TailLook, look_at, merged, noted_looks, still_written
from mirror_pipeline.features.failover.take_back import (
    Note,
    adopt_old,
    empty_old,
    generations,
    make_old,
    proof_of,
    refuse_unfit,
    replace_old,
    restore_settings,
)
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.host import operator
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.backfill import copy_ranges
from mirror_pipeline.reports import Observer
from mirror_pipeline.text import SHOWN_NAMES, count, plural
from mirror_pipeline.topics.directions import counterpart
from mirror_pipeline.topics.naming import partner_of, target_name

FAILBACK = "failback"
LAST_FAILBACK_STEP = "opened"
ASIDE = ".unreplicated"
# How long the logs of topics that are to be emptied may go on growing, from the second look on.
REST_SECONDS = 20.0
TAIL_AGAIN_SECONDS = 0.5


def failback(flow: Flow, options: FailbackOptions, session: Session, observer: Observer | None, stop: threading.Event) -> FailbackReport:
    """See ``Mirror.failback``."""
    work = _Failback(flow, _reverse(flow), session, observer, stop)
    plan = work.plan(options)  # refused before anything is created; what counts is the look under the lock
    if options.dry_run:
        work.proofs(plan)
        return plan.report
    buffer = flow.config.buffer
    store, theirs = (open_lane(buffer, name, FAILOVER_LANE) for name in (flow.name, work.reverse.name))
    with lane_lock(store), lane_lock(theirs):
        return work.run(work.plan(options), *(Promotions(each, durable=buffer.durable) for each in (store, theirs)))


def _reverse(flow: Flow) -> Flow:
    partner = partner_of(flow.config.mirrors, flow.settings)
    if partner is None:
        raise UsageError(
            f"mirror {flow.name} has no reverse mirror",
            hint=f"declare one in mirror.yaml, from {flow.settings.target} to {flow.settings.source}, with `reverse_of: {flow.name}`",
        )
    reverse = Flow(flow.config, partner.name)
    reverse.source, reverse.target = flow.target, flow.source  # with their ids, which its own ledger may not know yet
    return reverse


def _cut_off(steps: Sequence[FailoverStep], topics: Collection[str]) -> list[FailoverStep]:
    """The steps of the failback that was cut off, if the last one was and is about these topics."""
    if not steps or steps[-1].kind != FAILBACK or steps[-1].step == LAST_FAILBACK_STEP:
        return []
    done = [step for step in steps if step.number == steps[-1].number]
    return done if sorted(done[0].detail["topics"]) == sorted(topics) else []


def _begun(done: Sequence[FailoverStep]) -> Mapping[str, Any]:
    """What the failback that is continued was begun with: a repeated command may have chosen anew."""
    return next((step.detail for step in reversed(done) if step.step == "begun"), {})


def _refuse_undecided(flow: Flow, topics: Sequence[OpenedTopic], tail: Sequence[TailPartition], options: FailbackOptions) -> None:
    back = {topic.topic for topic in topics if topic.comes_back}
    if options.tail == REBUILD and not options.may_rebuild:
        raise UsageError(
            f"--tail {REBUILD} deletes records of cluster {flow.settings.source}: that is left to the command line",
            hint=f"`mirror failback {flow.name} --tail {REBUILD}`",
        )
    if options.tail == REBUILD and not back:
        raise UsageError(
            f"--tail {REBUILD}: no topic of this failback comes back to its old name, so none stands in the way",
            hint=f"choose `--tail {LEAVE}` or `--tail {COPY_ASIDE}`",
        )
    stays = [t for t in tail if t.topic in back] if options.tail in (LEAVE, COPY_ASIDE) else []
    if not tail or (options.tail is not None and not stays):
        return
    listed = "; ".join(f"{t.topic}[{t.partition}] from offset {count(t.start)} to {count(t.end)}" for t in (stays or tail)[:SHOWN_NAMES])
    left = len(stays or tail) - SHOWN_NAMES
    more = f" and {plural(left, 'more partition')}" if left > 0 else ""
    ways = f"`--tail {LEAVE}` records them and leaves them there, `--tail {COPY_ASIDE}` copies them to <topic>{ASIDE}"
    rebuild = f"`--tail {REBUILD}` copies them to <topic>{ASIDE}, empties the old topic and copies it afresh"
    why = ", in topics that would be copied back to the same name" if stays else ""
    raise ProblemFound(
        f"cluster {flow.settings.source} has offsets that never came over{why}: {listed}{more}; nothing was opened",
        hint=f"choose: {rebuild if {t.topic for t in (stays or tail)} <= back else ways}",
    )


def _with_rebuilt(
    topics: Sequence[OpenedTopic], tail: Sequence[TailPartition], options: FailbackOptions, before: Collection[str]
) -> tuple[OpenedTopic, ...]:
    """Which topics ``rebuild`` is about: those with a tail; without any, all that were asked for, because they differ otherwise."""
    late = {t.topic for t in tail} | set(before)
    if options.tail != REBUILD:
        return tuple(topics)
    return tuple(replace(topic, rebuilt=topic.comes_back and (not late or topic.topic in late)) for topic in topics)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a failback would do now, and the steps of the one that it continues."""

    report: FailbackReport
    done: list[FailoverStep]
    before: dict[str, str]
    """The generations that the reverse mirror had when the failback began."""

    @property
    def rebuilt(self) -> list[OpenedTopic]:
        return [topic for topic in self.report.topics if topic.rebuilt]


@dataclass(slots=True)
class _Failback:
    """A mirror that was failed over, and the one that copies the other way."""

    flow: Flow
    reverse: Flow
    session: Session
    observer: Observer | None
    stop: threading.Event

    def steps(self) -> list[FailoverStep]:
        """All steps of the mirror's failovers and failbacks."""
        table = promotions_of(self.flow.config.buffer, self.flow.name)
        return [] if table is None else table.steps()

    def plan(self, options: FailbackOptions) -> _Plan:
        """Look at both ledgers and the old source; changes nothing.

        Raises:
            UsageError: there is nothing to fail back, or a choice that cannot be.
            ProblemFound: nobody has chosen what becomes of records that never came over, or a log has lost records.
            ClusterUnreachable: the old source does not answer.
        """
        chosen = self.choose(options)
        names = [topic.topic for topic in chosen]
        steps = self.steps()
        done = _cut_off(steps, names)
        begun = _begun(done)
        options = replace(options, tail=options.tail or begun.get("choice"))
        number = done[0].number if done else 1 + max((step.number for step in steps), default=0)
        tail = merged([*self.listed(steps, number), *self.look(steps, names).tail])
        if not options.dry_run:
            _refuse_undecided(self.flow, chosen, tail, options)
        topics = _with_rebuilt(chosen, tail, options, begun.get("rebuilt", ()) if begun.get("choice") == REBUILD else ())
        report = FailbackReport(
            self.flow.name, self.reverse.name, number, "ready" if options.dry_run else "open", options.dry_run, topics, tuple(tail),
            options.tail, _aside(tail, options.tail), bool(done),
        )  # fmt: skip
        return _Plan(report, done, dict(begun.get("generations") or generations(self.reverse, topics)))

    def choose(self, options: FailbackOptions) -> list[OpenedTopic]:
        """The promoted topics whose other direction is not open yet, or those asked for.

        Raises:
            UsageError: nothing was promoted, everything is open, or a topic is not promoted, or was promoted by the reverse since.
        """
        promoted = {topic: rows for topic, rows in latest_of(self.flow.config.buffer, self.flow.name).items() if is_promoted(rows)}
        if not promoted:
            raise UsageError(
                f"mirror {self.flow.name} was not failed over: there is nothing to fail back",
                hint=f"`mirror failover {self.flow.name}` promotes its topics",
            )
        unknown = sorted(set(options.topics or ()) - promoted.keys())
        if unknown:
            known = ", ".join(sorted(promoted)[:SHOWN_NAMES])
            raise UsageError(f"topic {unknown[0]} of mirror {self.flow.name} is not promoted", hint=f"promoted: {known}")
        answers = self._answers()
        names = {topic: promotion_name(self.flow.name, rows) for topic, rows in promoted.items()}
        found = [self._opened(topic) for topic in sorted(options.topics or promoted)]
        closed = [topic for topic in found if not _is_open(answers.get(topic.copied, ()), names[topic.topic])]
        if not closed:
            over = all(answers[topic.copied][-1].state is PromotionState.PROMOTED for topic in found)
            raise UsageError(
                f"mirror {self.reverse.name} {'was failed over since' if over else 'is open already'} for every promoted topic of"
                f" {self.flow.name}",
                hint=f"`mirror failback {self.reverse.name}` opens {self.flow.name} again" if over
                else f"`mirror run --mirror {self.reverse.name}` copies; `mirror failover {self.reverse.name}` changes clusters again",
            )
        return closed

    def _answers(self) -> dict[str, list[Promotion]]:
        """What the reverse mirror's table says of each of its topics, in order."""
        table = promotions_of(self.flow.config.buffer, self.reverse.name)
        found: dict[str, list[Promotion]] = {}
        for row in [] if table is None else table.history():
            found.setdefault(row.topic, []).append(row)
        return found

    def _opened(self, topic: str) -> OpenedTopic:
        forward, reverse = self.flow.settings, self.reverse.settings
        copied = counterpart(forward, reverse, topic)
        target = target_name(reverse.naming, reverse.source, copied)
        return OpenedTopic(topic, copied, target, target == topic)

    def look(self, steps: Sequence[FailoverStep], topics: Sequence[str]) -> TailLook:
        """The old topics now; what was copied aside by this or an earlier failback is not new."""
        aside = [look for look in noted_looks(steps, FAILBACK) if look.aside]
        return look_at(self.flow, topics, latest_of(self.flow.config.buffer, self.flow.name), aside)

    def listed(self, steps: Sequence[FailoverStep], number: int) -> list[TailPartition]:
        """What the looks of one failback have found."""
        return [row for look in noted_looks(steps, FAILBACK) if look.number == number for row in look.tail]

    def proofs(self, plan: _Plan) -> dict[str, Proof]:
        """Compare the old topics that come back to their names, all of which must have come over, with the new ones.

        Raises:
            ProblemFound: one differs, or could not be rebuilt.
        """
        refuse_unfit(self.flow, self.reverse, plan.rebuilt)
        late = {t.topic for t in plan.report.tail}
        known = generations(self.reverse, plan.report.topics)
        return {
            topic.topic: self._proof(topic)
            for topic in plan.report.topics
            if topic.comes_back and not topic.rebuilt and topic.topic not in late and known[topic.copied] == plan.before[topic.copied]
        }

    def _proof(self, topic: OpenedTopic) -> Proof:
        promoted = latest_of(self.flow.config.buffer, self.flow.name)[topic.topic]
        copied = {number: row.source_offset for number, row in promoted.items()}
        return proof_of(self.reverse, topic, copied, self.session, self.stop)

    def run(self, plan: _Plan, table: Promotions, opened: Promotions) -> FailbackReport:
        """All steps, under the locks of both mirrors' failover folders."""
        report, latest = plan.report, latest_of(self.flow.config.buffer, self.flow.name)
        proofs = self.proofs(plan)  # before the first step: a copy that differs needs another choice
        begun = {
            "topics": [topic.topic for topic in report.topics], "choice": report.choice, "generations": plan.before,
            "rebuilt": [topic.topic for topic in plan.rebuilt],
        }  # fmt: skip
        if begun != _begun(plan.done):
            self._note(table, report, "begun", begun)
        try:
            emptied = self._settle(table, plan)
        except MirrorError:
            self._restore(table, report)
            raise
        if any(topic.comes_back for topic in report.topics):
            self._take_back(table, plan, proofs, emptied=emptied)
        names = {topic.topic: promotion_name(self.flow.name, latest[topic.topic]) for topic in report.topics}
        opened.add([_open_row(topic, names[topic.topic]) for topic in report.topics])
        self._note(table, report, LAST_FAILBACK_STEP, {})
        tail = merged(self.listed(table.steps(), report.number))
        return replace(report, tail=tuple(tail), aside=_aside(tail, report.choice))

    def _settle(self, table: Promotions, plan: _Plan) -> bool:
        """Note what never came over, and copy it aside if that was chosen; empty the topics to be rebuilt, and whether any was.

        Raises:
            ProblemFound: their logs do not come to rest, or ``stop`` was set; nothing is deleted that was not copied aside.
        """
        report, patience, looks, emptied = plan.report, EndPatience(REST_SECONDS), 0, False
        self._finish_copies(table, report)
        names = [topic.topic for topic in report.topics]
        while True:
            found = self.look(table.steps(), names)
            unsettled = found.tail or found.undecided or (found.used if self.reverse.settings.exact else found.held)
            if not looks or found.tail:
                self._copy(table, report, found)
            elif found.undecided:
                self.stop.wait(TAIL_AGAIN_SECONDS)
            elif unsettled:
                emptied = self._empty(table, report, found)
            if not plan.rebuilt or (looks and not unsettled) or (emptied and self.reverse.settings.exact):
                return emptied
            if self.stop.is_set():
                raise ProblemFound("stopped before the other direction was opened", hint="the same command continues")
            if looks > 1 and patience.over():
                self._refuse_written(found)
            looks += 1
            names = [topic.topic for topic in plan.rebuilt]

    def _copy(self, table: Promotions, report: FailbackReport, found: TailLook) -> None:
        look = NotedLook(report.number, found.tail, found.ids, report.choice in (COPY_ASIDE, REBUILD))
        self._note(table, report, "tail", look.detail())
        self._note(table, report, "copied", {"aside": self._copy_aside(look, found.ids) if look.aside else []})

    def _finish_copies(self, table: Promotions, report: FailbackReport) -> None:
        """Copy what an earlier look has noted and no command has finished, if its topics are still the same."""
        if report.choice not in (COPY_ASIDE, REBUILD):
            return
        names = [topic.topic for topic in report.topics]
        steps = table.steps()
        ids = self.look(steps, names).ids
        for look in noted_looks(steps, FAILBACK):
            if look.aside and not look.copied:
                self._copy_aside(look, ids)

    def _copy_aside(self, look: NotedLook, ids: Mapping[str, str]) -> list[str]:
        """Copy the offsets of a look to topics of their own."""
        done = []
        for topic in sorted({row.topic for row in look.tail}):
            rows = look.of(topic, ids.get(topic, ""))
            ranges = {row.partition: (row.start + row.lost, row.end) for row in rows if row.start + row.lost < row.end}
            if ranges:
                into = f"{topic}{ASIDE}"
                copied = copy_ranges(
                    self.flow, topic, ids[topic], into, ranges, observer=self.observer, stop=self.stop, session=self.session
                )
                stuck = [row for row in copied.topics if row.state != "ok"]
                if stuck:
                    raise ProblemFound(f"{topic} was not copied to {into}: {stuck[0].reason}", hint="repeat the command: it continues")
                done.append(topic)
        return done

    def _empty(self, table: Promotions, report: FailbackReport, found: TailLook) -> bool:
        """Delete what is copied aside or came over, up to the ends that the look has found; whether that is done."""
        if all(step.step != "rebuilding" for step in table.steps() if step.number == report.number):
            self._note(table, report, "rebuilding", {"ids": found.ids})
        if self.reverse.settings.exact:
            done = replace_old(self.reverse, found.used, table.steps(), self._noting(table, report))
            crash_point(f"{FAILBACK}.deleted" if done else f"{FAILBACK}.closed")
            return done
        targets = {topic.topic: topic.target_topic for topic in report.topics}
        ends = {TopicPartition(targets[tp.topic], tp.partition): end for tp, end in found.held.items()}
        empty_old(self.reverse, ends, self._noting(table, report))
        crash_point(f"{FAILBACK}.deleted")
        return True

    def _restore(self, table: Promotions, report: FailbackReport) -> None:
        restore_settings(self.reverse, table.steps(), self._noting(table, report))

    def _refuse_written(self, found: TailLook) -> None:
        with self.flow.source_client() as client:
            said = still_written(client, found)
        raise ProblemFound(
            f"cluster {self.flow.settings.source} is still written to: {said}; nothing was opened, and what was copied aside or came over"
            " is all that was deleted",
            hint="stop its producers and repeat the command",
        )

    def _take_back(self, table: Promotions, plan: _Plan, proofs: Mapping[str, Proof], *, emptied: bool) -> None:
        """Adopt the topics that come back to their old names."""
        for topic in plan.rebuilt:
            make_old(self.reverse, topic, self.flow.settings)
            crash_point(f"{FAILBACK}.rebuilt")
        self._restore(table, plan.report)
        known = generations(self.reverse, plan.report.topics)
        for topic in plan.report.topics:
            adopted = known[topic.copied] != plan.before[topic.copied]
            if topic.comes_back and (not adopted or (topic.rebuilt and emptied)):
                adopt_old(self.reverse, topic, proofs.get(topic.topic) or self._proof(topic))
        self._note(table, plan.report, "adopted", {})

    def _noting(self, table: Promotions, report: FailbackReport) -> Note:
        return lambda step, detail: self._note(table, report, step, detail)

    def _note(self, table: Promotions, report: FailbackReport, step: str, detail: Mapping[str, Any]) -> None:
        table.note(FailoverStep(report.number, FAILBACK, step, detail, operator(), now()))
        crash_point(f"{FAILBACK}.{step}")


def _aside(tail: Sequence[TailPartition], choice: str | None) -> tuple[tuple[str, str], ...]:
    kept = choice in (COPY_ASIDE, REBUILD)
    return tuple((name, f"{name}{ASIDE}") for name in sorted({t.topic for t in tail})) if kept else ()


def _is_open(answers: Sequence[Promotion], promotion: str) -> bool:
    """Whether the other direction was opened for this promotion: its row names it, so that no clock is needed to know.

    Rows that were written before rows named it count while they are the last.
    """
    opened = [row for row in answers if row.state is PromotionState.OPEN]
    return any(row.generation == promotion for row in opened) or (bool(opened) and answers[-1] is opened[-1] and not opened[-1].generation)


def _open_row(topic: OpenedTopic, promotion: str) -> Promotion:
    return Promotion(topic.copied, WHOLE, promotion, PromotionState.OPEN, WHOLE, WHOLE, topic.target_topic, operator(), now())
