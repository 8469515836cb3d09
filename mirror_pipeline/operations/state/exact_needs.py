"""What `offsets: exact` needs for a topic before it runs: markers for holes, padding of a log that begins late, and the rights for both.

Holes are counted in samples, the first and the last batches of each partition's backlog: how many there are is known once it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirror_pipeline.engine.driver.topics.padding import WORTH_PADDING
from mirror_pipeline.engine.tasks.write.filling import MAX_FILL
from mirror_pipeline.lags import MirrorLag, TopicLag
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state.log_samples import LogSample, sampled
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.text import count, plural
from mirror_pipeline.topics import rights
from mirror_pipeline.topics.plan import TargetPlan

# Of the last offsets of a partition, this many are looked at.
LAST_OFFSETS = 200


@dataclass(frozen=True, slots=True)
class ExactNeeds:
    """Sentences for the plan of a topic: what it will cost, and what a run would stop at."""

    warnings: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()


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
        holes = _holes(row, samples.get(row.topic, LogSample()), grant)
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


def _holes(row: TopicLag, sample: LogSample, grant: str) -> ExactNeeds:
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


def _samples(snapshot: Snapshot, rows: Sequence[TopicLag]) -> dict[str, LogSample]:
    """The first and the last batches of what is to be copied; of partitions that are in step, the last ones."""
    bounds = {TopicPartition(row.topic, part.partition): (part.position, part.end) for row in rows for part in row.partitions}
    last = {tp: (max(0, end - LAST_OFFSETS), end) for tp, (_, end) in bounds.items()}
    return sampled(snapshot.source, [last, {tp: both for tp, both in bounds.items() if both[0] < last[tp][0]}])
