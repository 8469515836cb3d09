"""``Mirror.repair``: write records that are missing or altered on the target into a side topic.

The mirrored topic is never changed. Nothing can be inserted into the middle of a log without breaking the order, and
the next offset at its end belongs to the lane: its offset map and its sequence numbers require that it is the only writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mirror_pipeline.buffer.spans.span_reader import SpanReader
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.flow import Flow, Session
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.kafka.records.batch import OpenRecord, headers, open_batch
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verdicts import DIFFERENT, REPAIRED, Difference, TopicVerdict, VerifyProgress, VerifyReport
from mirror_pipeline.verify.copies import CopiedTopic, copied_topics
from mirror_pipeline.verify.log_walk import READ_COMMITTED, read_log
from mirror_pipeline.verify.mirrored import MirrorCheck
from mirror_pipeline.verify.side_topic import SideTopic

SUFFIX = ".repair"
MENDED = ("missing", "altered")
READ_BYTES = 256 << 10
WHY = (
    "nothing can be inserted into the middle of the target's log without breaking the order, and only the mirror may append to it: "
    "the records are in the side topic, in the same partitions and in the order of their source offsets"
)
WRITTEN, THERE, REPAIR_PLANNED, LOST = "written", "already there", "would be written", "lost"


@dataclass(frozen=True, slots=True)
class RepairedRecord:
    """One record; ``target_offset`` is its offset in the side topic, None while it is not there."""

    partition: int
    source_offset: int
    kind: str
    state: str
    target_offset: int | None = None


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did. ``more``: there are further differences; verify and repair again.

    ``others`` counts differences that cannot be repaired by writing: extra, duplicate, out of order.
    """

    mirror: str
    topic: str
    target_topic: str
    side_topic: str
    dry_run: bool
    records: tuple[RepairedRecord, ...]
    more: bool = False
    others: int = 0
    why: str = WHY

    @property
    def ok(self) -> bool:
        """Whether everything that was missing or altered is in the side topic."""
        return not self.more and all(record.state in (WRITTEN, THERE) for record in self.records)

    def to_json(self) -> dict[str, Any]:
        """Plain values for printing as JSON."""
        counts = {state.replace(" ", "_"): sum(r.state == state for r in self.records) for state in (WRITTEN, THERE, REPAIR_PLANNED, LOST)}
        return {"ok": self.ok, **asdict(self), **counts}


def repair(
    flow: Flow,
    topic: str,
    *,
    dry_run: bool,
    observer: Callable[[VerifyProgress], None] | None,
    stop: threading.Event,
    session: Session,
) -> RepairReport:
    """See :meth:`Mirror.repair`."""
    copied = _copied(flow, topic)
    check = MirrorCheck(flow, lambda offsets: flow.comparer(session, offsets), observer, stop)
    found = check.run([topic], None, None, 1.0, lane=copied.lane)
    note = next((verdict.note for verdict in found.topics if verdict.verdict == "unreadable"), "")
    if note:
        raise UsageError(f"{topic} cannot be repaired: {note}", hint="`mirror verify` must be able to read both sides")
    wanted = [d for d in found.differences if d.kind in MENDED and d.source_offset is not None]
    records: list[RepairedRecord] = []
    name = copied.generation.target_topic
    with flow.source_client() as source, flow.target_client() as target, flow.target_admin() as admin:
        side = SideTopic(admin, target, name, name + SUFFIX)
        if wanted and not dry_run:
            side.ensure()
        for number in sorted({difference.partition for difference in wanted}):
            mine = [difference for difference in wanted if difference.partition == number]
            originals = _originals(source, copied, TopicPartition(topic, number), sorted({d.source_offset or 0 for d in mine}))
            records += _mend(side, number, mine, originals, dry_run)
    return RepairReport(flow.name, topic, name, name + SUFFIX, dry_run, tuple(records), found.more, len(found.differences) - len(wanted))


def with_repaired(flow: Flow, report: VerifyReport) -> VerifyReport:
    """The same report, in which records that earlier repairs wrote to a side topic are listed as repaired."""
    wanted = [verdict for verdict in report.topics if verdict.verdict == DIFFERENT]
    known: set[Difference] = set()
    notes: dict[str, str] = {}
    if not wanted:
        return report
    with flow.source_client() as source, flow.target_client() as target, flow.target_admin() as admin:
        for verdict in wanted:
            mine = [d for d in report.differences if d.topic == verdict.topic and d.kind in MENDED and d.source_offset is not None]
            copied = _copied(flow, verdict.topic)
            # A backfill of the same topic has a target topic of its own, and its differences look alike.
            if copied.generation.target_topic != verdict.target_topic or sum(v.topic == verdict.topic for v in wanted) > 1:
                continue
            side = SideTopic(admin, target, verdict.target_topic, verdict.target_topic + SUFFIX)
            try:
                known |= _beside(source, side, copied, mine) if mine and side.exists() else set()
            except MirrorError as error:
                notes[verdict.topic] = f"cannot tell whether {verdict.target_topic}{SUFFIX} holds them: {error.message}"
    return _judged(report, known, notes)


def _beside(source: WireClient, side: SideTopic, copied: CopiedTopic, wanted: Sequence[Difference]) -> set[Difference]:
    """Those of the differences whose source record is in the side topic."""
    found: set[Difference] = set()
    for number in sorted({difference.partition for difference in wanted}):
        mine = [difference for difference in wanted if difference.partition == number]
        tp = TopicPartition(copied.generation.topic, number)
        originals = _originals(source, copied, tp, sorted({d.source_offset or 0 for d in mine}))
        rows = _mend(side, number, mine, originals, True)
        found |= {difference for difference, row in zip(mine, rows, strict=True) if row.state == THERE}
    return found


def _judged(report: VerifyReport, known: set[Difference], notes: dict[str, str]) -> VerifyReport:
    def judged(verdict: TopicVerdict) -> TopicVerdict:
        if verdict.verdict != DIFFERENT:
            return verdict
        repaired = sum(difference.topic == verdict.topic for difference in known)
        left = verdict.differences - repaired
        note = "; ".join(part for part in (verdict.note, notes.get(verdict.topic, "")) if part)
        return replace(verdict, verdict=DIFFERENT if left else REPAIRED, differences=left, repaired=repaired, note=note)

    return replace(
        report,
        topics=tuple(judged(verdict) for verdict in report.topics),
        differences=tuple(difference for difference in report.differences if difference not in known),
        repaired=tuple(difference for difference in report.differences if difference in known),
    )


def _copied(flow: Flow, topic: str) -> CopiedTopic:
    """The topic as a continuous lane copies it; as a backfill copied it only when there is no such lane."""
    found = copied_topics(flow, [topic])
    live = {store.lane for store in flow.lane_stores()}
    return min(found, key=lambda copied: (copied.lane not in live, copied.lane))


def _mend(
    side: SideTopic, number: int, wanted: Sequence[Difference], originals: dict[int, OpenRecord], dry_run: bool
) -> list[RepairedRecord]:
    ordered = sorted(offset for offset in originals)
    places = side.places(number, [originals[offset] for offset in ordered])
    before = dict(zip(ordered, places, strict=True))
    after = before
    if not dry_run and any(place is None for place in places):
        after = dict(zip(ordered, side.write(number, [originals[offset] for offset in ordered]), strict=True))

    def row(difference: Difference) -> RepairedRecord:
        offset = difference.source_offset or 0
        if offset not in originals:
            return RepairedRecord(number, offset, difference.kind, LOST)
        state = THERE if before[offset] is not None else REPAIR_PLANNED if dry_run else WRITTEN
        return RepairedRecord(number, offset, difference.kind, state, after[offset])

    return [row(difference) for difference in wanted]


def _originals(source: WireClient, copied: CopiedTopic, tp: TopicPartition, offsets: Sequence[int]) -> dict[int, OpenRecord]:
    """The records from the source, or from the buffer where the source has deleted them."""
    wanted = set(offsets)
    start, end = log_range(source, [tp], isolation=READ_COMMITTED)[tp]
    found: dict[int, OpenRecord] = {}
    for offset in offsets:
        if offset in found or not start <= offset < end:
            continue
        pieces = read_log(source, tp, offset, offset + 1, isolation=READ_COMMITTED, deleted=lambda _: None, size=READ_BYTES)
        for piece in pieces:  # one record was requested, but other records of its batch may be needed too
            found |= {record.offset: record for record in open_batch(piece.batch) if record.offset in wanted}
    if missing := wanted - found.keys():
        found |= _buffered(copied, tp, missing)
    return found


def _buffered(copied: CopiedTopic, tp: TopicPartition, wanted: Iterable[int]) -> dict[int, OpenRecord]:
    spans = SpanTable(copied.ledger.store)
    left, found = set(wanted), dict[int, OpenRecord]()
    if not spans.exists():
        return found
    with SpanReader(copied.ledger.store) as reader:
        for span in spans.spans():
            if span.source != tp or span.incarnation != copied.generation.incarnation or not any(span.start <= o < span.end for o in left):
                continue
            payload = reader.payload(span)
            for at, header in headers(payload):
                if any(header.base_offset <= offset < header.next_offset for offset in left):
                    found |= {r.offset: r for r in open_batch(payload[at : at + header.size]) if r.offset in left}
    return found
