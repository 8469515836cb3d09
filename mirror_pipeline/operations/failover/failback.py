"""``Mirror.failback``: after a failover, open the mirror of the other direction.

First it is settled what becomes of the old source's records that never came over. Where names come back to the same topic, the other
mirror then adopts the old topics. Every step is written into the ledger, so that a failback that was cut off is continued by the same
command; each of them may be repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirror_pipeline.buffer.ledger.promotions import (
    FAILOVER_LANE,
    WHOLE,
    Promotion,
    Promotions,
    PromotionState,
    Step,
    is_promoted,
    latest_of,
    now,
    operator,
    promotions_of,
)
from mirror_pipeline.buffer.place.lock import lane_lock
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.crash_points import crash_point
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.kafka.answers import EARLIEST, LATEST
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.adoption.proof import Proof
from mirror_pipeline.operations.backfill import copy_ranges
from mirror_pipeline.operations.failover.report import (
    COPY_ASIDE,
    LEAVE,
    REBUILD,
    FailbackOptions,
    FailbackReport,
    OpenedTopic,
    TailPartition,
)
from mirror_pipeline.operations.failover.take_back import adopt_old, adopted_since, old_topic_id, proof_of, rebuild_old
from mirror_pipeline.reports import Observer
from mirror_pipeline.text import count, plural
from mirror_pipeline.topics.directions import counterpart
from mirror_pipeline.topics.naming import partner_of, target_name

KIND = "failback"
LAST = "opened"
ASIDE = ".unreplicated"
SHOWN = 5


def failback(flow: Flow, options: FailbackOptions, session: Session, observer: Observer | None, stop: threading.Event) -> FailbackReport:
    """See ``Mirror.failback``."""
    work = _Work(flow, _reverse(flow))
    done = _cut_off(work.table_or_none())
    if done:
        options = replace(options, topics=done[0].detail["topics"], tail=_choice(done, options))
    topics = work.choose(options)
    tail = _noted_tail(done) or work.tail([topic.topic for topic in topics])
    if not options.dry_run:
        _refuse_undecided(flow, topics, tail, options)
    topics = _with_rebuilt(topics, tail, options)
    number = done[0].number if done else 1 + max((s.number for s in work.history()), default=0)
    kept = options.tail in (COPY_ASIDE, REBUILD)
    aside = tuple((name, f"{name}{ASIDE}") for name in sorted({t.topic for t in tail})) if kept else ()
    report = FailbackReport(
        flow.name, work.reverse.name, number, "ready" if options.dry_run else "open", options.dry_run, tuple(topics), tuple(tail),
        options.tail, aside, bool(done),
    )  # fmt: skip
    proofs = work.proofs(report, done, session, stop)  # before the first step: a copy that differs needs another choice
    if not options.dry_run:
        work.run(report, done, proofs, session, observer, stop)
    return report


def _reverse(flow: Flow) -> Flow:
    partner = partner_of(flow.config.mirrors, flow.settings)
    if partner is None:
        raise UsageError(
            f"mirror {flow.name} has no reverse mirror",
            hint=f"declare one in mirror.yaml, from {flow.settings.target} to {flow.settings.source}, with `reverse_of: {flow.name}`",
        )
    return Flow(flow.config, partner.name)


def _cut_off(table: Promotions | None) -> list[Step]:
    """The steps of the failback that was cut off, if the last one was. Raises BufferUnusable."""
    steps = [] if table is None else table.steps()
    if not steps or steps[-1].kind != KIND or steps[-1].step == LAST:
        return []
    return [step for step in steps if step.number == steps[-1].number]


def _choice(done: Sequence[Step], options: FailbackOptions) -> str | None:
    """The choice of the failback that is continued; topics that differ after all may still be rebuilt."""
    if options.tail == REBUILD or any(step.step == "rebuilding" for step in done):
        return REBUILD
    choice: str | None = done[0].detail["choice"]
    return choice


def _noted_tail(done: Sequence[Step]) -> list[TailPartition]:
    """The tail as it was when the failback began: a topic that was rebuilt has none any more."""
    noted = [step.detail["offsets"] for step in done if step.step == "tail"]
    return [TailPartition(*row) for row in noted[0]] if noted else []


def _refuse_undecided(flow: Flow, topics: Sequence[OpenedTopic], tail: Sequence[TailPartition], options: FailbackOptions) -> None:
    back = {topic.topic for topic in topics if topic.comes_back}
    if options.tail == REBUILD and not back:
        raise UsageError(
            f"--tail {REBUILD}: no topic of this failback comes back to its old name, so none stands in the way",
            hint=f"choose `--tail {LEAVE}` or `--tail {COPY_ASIDE}`",
        )
    stays = [t for t in tail if t.topic in back] if options.tail in (LEAVE, COPY_ASIDE) else []
    if not tail or (options.tail is not None and not stays):
        return
    listed = "; ".join(f"{t.topic}[{t.partition}] from offset {count(t.start)} to {count(t.end)}" for t in (stays or tail)[:SHOWN])
    left = len(stays or tail) - SHOWN
    more = f" and {plural(left, 'more partition')}" if left > 0 else ""
    ways = f"`--tail {LEAVE}` records them and leaves them there, `--tail {COPY_ASIDE}` copies them to <topic>{ASIDE}"
    rebuild = f"`--tail {REBUILD}` copies them to <topic>{ASIDE}, deletes the old topic and copies it afresh"
    why = ", in topics that would be copied back to the same name" if stays else ""
    raise ProblemFound(
        f"cluster {flow.settings.source} has offsets that never came over{why}: {listed}{more}; nothing was opened",
        hint=f"choose: {rebuild if {t.topic for t in (stays or tail)} <= back else ways}",
    )


def _with_rebuilt(topics: Sequence[OpenedTopic], tail: Sequence[TailPartition], options: FailbackOptions) -> list[OpenedTopic]:
    """Which topics ``rebuild`` is about: those with a tail; without any, all that were asked for, because they differ otherwise."""
    late = {t.topic for t in tail}
    if options.tail != REBUILD:
        return list(topics)
    return [replace(topic, rebuilt=topic.comes_back and (not late or topic.topic in late)) for topic in topics]


@dataclass(slots=True)
class _Work:
    """A mirror that was failed over, and the one that copies the other way."""

    flow: Flow
    reverse: Flow

    def table_or_none(self) -> Promotions | None:
        """The steps of the mirror, if there are any."""
        return promotions_of(self.flow.config.buffer, self.flow.name)

    def history(self) -> list[Step]:
        """All steps of the mirror's failovers and failbacks."""
        table = self.table_or_none()
        return [] if table is None else table.steps()

    def choose(self, options: FailbackOptions) -> list[OpenedTopic]:
        """The promoted topics whose other direction is not open yet, or those asked for.

        Raises:
            UsageError: nothing was promoted, everything is open, or a topic is not promoted.
        """
        promoted = {topic: rows for topic, rows in latest_of(self.flow.config.buffer, self.flow.name).items() if is_promoted(rows)}
        if not promoted:
            raise UsageError(
                f"mirror {self.flow.name} was not failed over: there is nothing to lead back",
                hint=f"`mirror failover {self.flow.name}` promotes its topics",
            )
        unknown = sorted(set(options.topics or ()) - promoted.keys())
        if unknown:
            known = ", ".join(sorted(promoted)[:SHOWN])
            raise UsageError(f"topic {unknown[0]} of mirror {self.flow.name} is not promoted", hint=f"promoted: {known}")
        theirs = latest_of(self.flow.config.buffer, self.reverse.name)
        found = [self._opened(topic) for topic in sorted(options.topics or promoted)]
        closed = [topic for topic in found if not _is_open(theirs.get(topic.copied), promoted[topic.topic])]
        if not closed:
            raise UsageError(
                f"mirror {self.reverse.name} is open already for every promoted topic of {self.flow.name}",
                hint=f"`mirror run --mirror {self.reverse.name}` copies; `mirror failover {self.reverse.name}` changes clusters again",
            )
        return closed

    def _opened(self, topic: str) -> OpenedTopic:
        forward, reverse = self.flow.settings, self.reverse.settings
        copied = counterpart(forward, reverse, topic)
        target = target_name(reverse.naming, reverse.source, copied)
        return OpenedTopic(topic, copied, target, target == topic)

    def tail(self, topics: Sequence[str]) -> list[TailPartition]:
        """Offsets of the old source that never came over: of a topic that was recreated since, all that it holds.

        Raises:
            ClusterUnreachable: it does not answer.
            ProblemFound: a log ends before the offset up to which it was copied.
        """
        latest = latest_of(self.flow.config.buffer, self.flow.name)
        with self.flow.source_client() as client:
            known = client.metadata(sorted(topics)).topics
            same = [name for name in topics if _topic_id(latest[name]) in ("", known[name].topic_id)]
            reached = {TopicPartition(name, number): row.source_offset for name in same for number, row in latest[name].items()}
            asked = [TopicPartition(name, number) for name in topics for number in known[name].partitions]
            starts, ends = (offsets_at(client, asked, at) for at in (EARLIEST, LATEST))
        since = {tp: reached.get(tp, 0) for tp in asked}
        self._refuse_shorter(since, ends)
        return [
            TailPartition(tp.topic, tp.partition, since[tp], ends[tp], max(0, starts[tp] - since[tp]))
            for tp in sorted(asked)
            if ends[tp] > since[tp]
        ]

    def _refuse_shorter(self, since: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
        shorter = [f"{tp.topic}[{tp.partition}] at offset {count(ends[tp])}" for tp in sorted(since) if ends[tp] < since[tp]]
        if shorter:
            raise ProblemFound(
                f"cluster {self.flow.settings.source} has lost records that were copied: the log ends of {'; '.join(shorter[:SHOWN])},"
                " before the offsets of the promotion; nothing was opened",
                hint="look at its brokers: was one started with an older or an empty disk? A topic that you delete there stands in no way",
            )

    def proofs(self, report: FailbackReport, done: Sequence[Step], session: Session, stop: threading.Event) -> dict[str, Proof]:
        """Compare the old topics that come back to their names, all of which must have come over, with the new ones.

        Raises:
            ProblemFound: one differs.
        """
        late = {t.topic for t in report.tail}
        due = [topic for topic in report.topics if topic.comes_back and not topic.rebuilt and topic.topic not in late]
        return {
            topic.topic: proof_of(self.reverse, topic, session, stop)
            for topic in due
            if not (done and adopted_since(self.reverse, topic, done[0].at))
        }

    def run(
        self, report: FailbackReport, done: Sequence[Step], proofs: Mapping[str, Proof], session: Session, observer: Observer | None,
        stop: threading.Event,
    ) -> None:  # fmt: skip
        """All steps, under the locks of both mirrors' failover folders."""
        buffer = self.flow.config.buffer
        store, theirs = (open_lane(buffer, name, FAILOVER_LANE) for name in (self.flow.name, self.reverse.name))
        with lane_lock(store), lane_lock(theirs):
            table, opened = (Promotions(each, durable=buffer.durable) for each in (store, theirs))
            if not done:
                self._note(table, report, "begun", {"topics": [topic.topic for topic in report.topics], "choice": report.choice})
            self._note(table, report, "tail", {"offsets": [_row(t) for t in report.tail]})
            kept = {name for step in done if step.step == "copied" for name in step.detail.get("aside", ())}
            self._copy_aside(report, kept, session, observer, stop)
            self._note(table, report, "copied", {"aside": [topic for topic, _ in report.aside]})
            if any(topic.comes_back for topic in report.topics):
                self._take_back(table, report, proofs, session, stop)
            opened.add([_open_row(topic) for topic in report.topics])
            self._note(table, report, LAST, {})

    def _copy_aside(
        self, report: FailbackReport, kept: Collection[str], session: Session, observer: Observer | None, stop: threading.Event
    ) -> None:
        """Copy tails to topics of their own; those of ``kept`` are there already, and their old topics may be gone."""
        for topic, into in [(topic, into) for topic, into in report.aside if topic not in kept]:
            ranges = {t.partition: (t.start + t.lost, t.end) for t in report.tail if t.topic == topic}
            copied = copy_ranges(self.flow, topic, into, ranges, observer=observer, stop=stop, session=session)
            stuck = [row for row in copied.topics if row.state != "ok"]
            if stuck:
                raise ProblemFound(f"{topic} was not copied to {into}: {stuck[0].reason}", hint="repeat the command: it continues")

    def _take_back(
        self, table: Promotions, report: FailbackReport, proofs: Mapping[str, Proof], session: Session, stop: threading.Event
    ) -> None:
        """Adopt the topics that come back to their old names; those to be rebuilt are made empty first."""
        own = [step for step in table.steps() if step.number == report.number]
        ids = next((dict(step.detail["ids"]) for step in own if step.step == "rebuilding"), None)
        rebuilt = [topic for topic in report.topics if topic.rebuilt]
        if rebuilt and ids is None:
            ids = {topic.topic: old_topic_id(self.reverse, topic.target_topic) for topic in rebuilt}
            self._note(table, report, "rebuilding", {"ids": ids})
        for topic in rebuilt:
            rebuild_old(self.reverse, topic, (ids or {}).get(topic.topic, ""))
            crash_point(f"{KIND}.rebuilt")
        for topic in report.topics:
            if topic.comes_back and not adopted_since(self.reverse, topic, own[0].at):
                adopt_old(self.reverse, topic, proofs.get(topic.topic) or proof_of(self.reverse, topic, session, stop))
        self._note(table, report, "adopted", {})

    def _note(self, table: Promotions, report: FailbackReport, step: str, detail: Mapping[str, Any]) -> None:
        table.note(Step(report.number, KIND, step, detail, operator(), now()))
        crash_point(f"{KIND}.{step}")


def _is_open(theirs: Mapping[int, Promotion] | None, promoted: Mapping[int, Promotion]) -> bool:
    """Whether the other direction was opened after this promotion."""
    if not theirs or is_promoted(theirs):
        return False
    return min(row.at for row in theirs.values()) >= max(row.at for row in promoted.values())


def _topic_id(promoted: Mapping[int, Promotion]) -> str:
    """Kafka's id of the topic that was promoted."""
    return next((row.generation.partition("/")[0] for row in promoted.values()), "")


def _row(tail: TailPartition) -> list[Any]:
    return [tail.topic, tail.partition, tail.start, tail.end, tail.lost]


def _open_row(topic: OpenedTopic) -> Promotion:
    return Promotion(topic.copied, WHOLE, "", PromotionState.OPEN, WHOLE, WHOLE, topic.target_topic, operator(), now())
