"""What `offsets: exact` needs for a topic before it runs: markers for holes, padding of a log that begins late, and the rights for both.

Holes are counted in samples, the first and the last batches of each partition's backlog: how many there are is known once it was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mirror_pipeline.engine.driver.topics.padding import WORTH_PADDING
from mirror_pipeline.engine.tasks.write.filling import MAX_FILL
from mirror_pipeline.errors import CorruptBatch
from mirror_pipeline.kafka.answers import EARLIEST_TIME
from mirror_pipeline.kafka.client import Connection
from mirror_pipeline.kafka.fetch import FetchedPartition, fetch
from mirror_pipeline.kafka.offsets import led
from mirror_pipeline.kafka.records.header import headers
from mirror_pipeline.lags import MirrorLag, TopicLag
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.text import count, plural
from mirror_pipeline.topics import rights
from mirror_pipeline.topics.plan import TargetPlan
from mirror_pipeline.verify.log_walk import Aborted

SAMPLE_BYTES = 32 * 1024
PARTITIONS_AN_ANSWER = 64
# Of the last offsets of a partition, this many are looked at.
LAST_OFFSETS = 200


@dataclass(frozen=True, slots=True)
class ExactNeeds:
    """Sentences for the plan of a topic: what it will cost, and what a run would stop at."""

    warnings: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()


@dataclass(slots=True)
class _Sample:
    """What was looked at of a topic: offsets, and those of them without a committed record."""

    offsets: int = 0
    holes: int = 0
    transactional: bool = False


def exact_needs(snapshot: Snapshot, plans: Mapping[str, TargetPlan], lag: MirrorLag) -> dict[str, ExactNeeds]:
    """By topic; empty where offsets are translated.

    Args:
        snapshot: the look.
        plans: what is to be done with target topics, by source topic.
        lag: what is to be copied.

    Raises:
        ClusterUnreachable, ConnectionLost: a cluster does not answer.
    """
    if not snapshot.flow.settings.exact:
        return {}
    rows = [topic for topic in lag.topics if topic.topic in plans]
    samples, begun = _samples(snapshot, rows), set(snapshot.ledger.copied)
    # Who may not even describe the cluster is told nothing (KIP-430), and may not alter it.
    lacks = "ALTER" not in snapshot.target.admin.cluster_operations()
    grant = f"grant it: {rights.grant_cluster(snapshot.flow.target, ['ALTER'])}" if lacks else ""
    needs = {}
    for row in rows:
        late = _late(row, plans[row.topic]) if row.topic not in begun else ExactNeeds()
        holes = _holes(row, samples.get(row.topic, _Sample()), grant)
        needs[row.topic] = ExactNeeds((*holes.warnings, *late.warnings), (*holes.blockers, *late.blockers))
    return needs


def _late(row: TopicLag, plan: TargetPlan) -> ExactNeeds:
    """A copy that begins above 0."""
    late = {part.partition: part.position for part in row.partitions if part.position >= WORTH_PADDING}
    if not late:
        return ExactNeeds()
    below = f"offsets: exact: {plural(sum(late.values()), 'offset')} below its start are"
    if "compact" not in plan.configs.get("cleanup.policy", ""):
        return ExactNeeds((f"{below} padded: that needs DELETE on the target topic",))
    most = f"markers fill {count(MAX_FILL)} at most"
    long = tuple(f"offsets: exact: partition {n} begins at {count(at)}, {most}" for n, at in late.items() if at > MAX_FILL)
    return ExactNeeds((f"{below} filled with markers: compacted topics take no DeleteRecords",), long)


def _holes(row: TopicLag, sample: _Sample, grant: str) -> ExactNeeds:
    """Offsets without a record; ``grant``: how the right to fill them is granted where it is missing."""
    if not sample.offsets:
        return ExactNeeds()
    if not sample.holes:
        may = f", until transactions write to it; {grant}" if grant and sample.transactional else ""
        return ExactNeeds((f"offsets: exact: no hole was seen, which needs no right beside those of other topics{may}",))
    about = plural(round(sample.holes / sample.offsets * row.lag_records), "marker")
    rest = f"about {about} for what is to be copied" if row.lag_records else "each takes a marker"
    seen = f"offsets: exact: {count(sample.holes)} of {plural(sample.offsets, 'offset')} looked at have no record: {rest}"
    return ExactNeeds((seen,), (f"offsets: exact: this principal may not write markers, which its holes need; {grant}",) if grant else ())


def _samples(snapshot: Snapshot, rows: Sequence[TopicLag]) -> dict[str, _Sample]:
    """The first and the last batches of what is to be copied; of partitions that are in step, the last ones."""
    found: dict[str, _Sample] = defaultdict(_Sample)
    bounds = {TopicPartition(row.topic, part.partition): (part.position, part.end) for row in rows for part in row.partitions}
    parts, _ = led(snapshot.source.metadata({row.topic for row in rows}), bounds)
    starts = snapshot.source.offsets(parts, EARLIEST_TIME)
    looks: dict[tuple[int, str], dict[TopicPartition, tuple[int, int]]] = defaultdict(dict)
    for tp in parts:
        (position, end), start = bounds[tp], starts[tp]
        if isinstance(start, int) and start < end:
            leader = snapshot.source.client.leader(tp)
            looks[leader, "last"][tp] = max(start, end - LAST_OFFSETS), end
            if position < end - LAST_OFFSETS:
                looks[leader, "first"][tp] = max(start, position), end
    for (leader, _), wanted in looks.items():
        _look(snapshot.source.client.connection(leader), wanted, found)
    return found


def _look(connection: Connection, wanted: Mapping[TopicPartition, tuple[int, int]], found: Mapping[str, _Sample]) -> None:
    """Partitions that cannot be read now are left out: reading them meets the same and says so."""
    parts = list(wanted)
    for number in range(0, len(parts), PARTITIONS_AN_ANSWER):
        asked = {tp: (wanted[tp][0], SAMPLE_BYTES) for tp in parts[number : number + PARTITIONS_AN_ANSWER]}
        answers = fetch(connection, asked, max_wait_ms=0, min_bytes=0, max_bytes=SAMPLE_BYTES * len(asked), patience=0.0)
        for tp in asked:
            with suppress(CorruptBatch):
                _count(found[tp.topic], answers[tp], *wanted[tp])


def _count(sample: _Sample, answer: FetchedPartition, start: int, end: int) -> None:
    aborted = Aborted(answer.aborted)
    for place, header in () if answer.error else headers(answer.records):
        span = min(header.next_offset, end) - start
        hidden = aborted.hides(header, answer.records[place : place + header.size])
        records = 0 if hidden else min(header.records if header.records > 0 else 1, span)
        sample.offsets += span
        sample.holes += span - records
        sample.transactional |= header.is_transactional
        start += span
