"""``plan``: what a run would do, and what would prevent it. It reads both clusters and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from mirror_pipeline.config.starts import StartMap
from mirror_pipeline.engine.driver.topics.start_offsets import impossible_starts
from mirror_pipeline.errors import UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.halts import DIRECTED, FILLED_HINT, filled_message
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.needs import SOURCE_NEEDS, TARGET_NEEDS
from mirror_pipeline.kafka.offsets import led
from mirror_pipeline.lags import BEHIND, MirrorLag, TopicLag
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state.archive_cost import archive_note
from mirror_pipeline.operations.state.cluster_view import ClusterView
from mirror_pipeline.operations.state.exact_needs import exact_needs
from mirror_pipeline.operations.state.held_by_copies import copy_plans
from mirror_pipeline.operations.state.lag import first_ends
from mirror_pipeline.operations.state.lag import lag as lag_of
from mirror_pipeline.operations.state.price import backlog_sizes, price_of
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.reports import MirrorPlan, TopicPlan
from mirror_pipeline.topics import rights
from mirror_pipeline.topics.claims import chained, of_claims
from mirror_pipeline.topics.configs import as_created, retention_ms
from mirror_pipeline.topics.manage import broker_defaults, plan_targets
from mirror_pipeline.topics.plan import TargetPlan
from mirror_pipeline.units import format_duration

Notes = Callable[[Flow], tuple[str, ...]]
"""What a feature has to say of a mirror, a line each."""


def plan(flow: Flow, notes: Sequence[Notes] = (), *, priced: bool = True) -> MirrorPlan:
    """See :meth:`Mirror.plan`; ``notes`` are what features have to say. ``priced``: with a price, which reads some records."""
    one = _one_cluster(flow)
    with Snapshot(flow) as snapshot:
        snapshot.source.client.require(SOURCE_NEEDS)
        snapshot.target.client.require(TARGET_NEEDS)
        return _plan(snapshot, one, notes, priced=priced)


def _plan(snapshot: Snapshot, one: tuple[str, ...], said: Sequence[Notes], *, priced: bool) -> MirrorPlan:
    flow, selected, source, target = snapshot.flow, snapshot.selected, snapshot.source.admin, snapshot.target.admin
    begun = set(snapshot.ledger.copied)
    plans = _that_may_be_made(target, plan_targets(flow.settings, source, target, selected.topics, partner=snapshot.directions.partner))
    lag = lag_of(snapshot, plan=True)
    misplaced = _misplaced(snapshot, [name for name in plans if name not in begun])
    lags = {topic.topic: topic for topic in lag.topics}
    old = _too_old(snapshot, plans, lag)
    new = [made.target_topic for name, made in plans.items() if not made.create and name not in begun]
    filled = filled_topics(snapshot.target, new) if not flow.settings.shared else {}
    sizes = backlog_sizes(snapshot, lag) if priced else {}
    exact = exact_needs(snapshot, plans, lag)
    copies = chained(flow.config, flow.settings, list(plans))
    claimed = of_claims(flow.claims(), {name: made.target_topic for name, made in plans.items()}, begun)
    rows = tuple(
        TopicPlan(
            topic=name,
            target_topic=made.target_topic,
            partitions=made.partitions,
            records=lags[name].lag_records if name in lags else 0,
            bytes=sizes.get(name),
            actions=made.actions,
            warnings=(
                *made.warnings, *(lags[name].warnings if name in lags else ()), *old.get(name, ()), *claimed.warnings.get(name, ()),
                *copies.get(name, ()), *(exact[name].warnings if name in exact else ()),
            ),
            blockers=(
                *one, *made.blockers, *misplaced.get(name, ()), *claimed.blockers.get(name, ()),
                *(exact[name].blockers if name in exact else _filled(filled.get(made.target_topic, 0), made.target_topic)),
            ),
        )
        for name, made in sorted(plans.items())
    )
    halted = {topic.topic: topic for topic in lag.topics if topic.state not in ("ok", BEHIND)}
    gone = (TopicPlan(t.topic, t.target_topic, len(t.partitions), t.lag_records, None) for name, t in halted.items() if name not in plans)
    shown = tuple(_with_halt(row, halted.get(row.topic)) for row in sorted((*rows, *gone), key=lambda row: row.topic))
    hidden = rights.unseen(source.cluster, flow.settings.topics.include, list(selected.topics))
    cost = archive_note(flow.config.buffer, snapshot.stores)
    notes = dict.fromkeys(note for note in (*lag.notes, *(note for notes_of in said for note in notes_of(flow)), hidden, cost) if note)
    payable = {row.topic: row.bytes for row in shown if row.bytes is not None and not row.blockers}
    price = price_of(snapshot, plans, payable) if priced else None
    return MirrorPlan(flow.name, shown, selected.excluded, tuple(notes), price, copy_plans(flow, lag) if priced else ())


def _one_cluster(flow: Flow) -> tuple[str, ...]:
    try:
        flow.meet()
    except UsageError as error:
        return (error.message,)
    return ()


def _that_may_be_made(target: Admin, plans: dict[str, TargetPlan]) -> dict[str, TargetPlan]:
    """The plans; a topic that this principal may not create gets a blocker."""
    new = [(made.target_topic, made.partitions, made.replication_factor, dict(made.configs)) for made in plans.values() if made.create]
    refused = set(rights.may_not_create(target, new))
    return {
        name: replace(made, create=False, actions=(), blockers=(rights.sentence(target.cluster, made.target_topic, rights.NEW),))
        if made.target_topic in refused
        else made
        for name, made in plans.items()
    }


def _with_halt(row: TopicPlan, halt: TopicLag | None) -> TopicPlan:
    if halt is None:
        return row
    if halt.code in DIRECTED:  # nothing is done with it
        row = replace(row, records=0, actions=(), warnings=(), blockers=())
    return replace(row, state=halt.state, code=halt.code, reason=halt.reason, hint=halt.hint)


def _filled(count: int, target_topic: str) -> tuple[str, ...]:
    return (f"{filled_message(target_topic, count)}: {FILLED_HINT}",) if count else ()


def filled_topics(target: ClusterView, topics: Collection[str]) -> dict[str, int]:
    """The target topics that hold records, with the number of offsets they span; partitions that cannot be asked now are left out."""
    metadata = target.metadata(topics)
    found = (topic for topic in metadata.topics.values() if not topic.error)
    parts, _ = led(metadata, (TopicPartition(topic.name, number) for topic in found for number in topic.partitions))
    starts, ends = (target.offsets(parts, which, isolation=0) for which in (EARLIEST_TIME, LATEST_TIME))
    counts: dict[str, int] = {}
    for tp in parts:
        if isinstance(start := starts[tp], int) and isinstance(end := ends[tp], int):
            counts[tp.topic] = counts.get(tp.topic, 0) + end - start
    return {name: count for name, count in counts.items() if count}


def _misplaced(snapshot: Snapshot, fresh: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Topics that have not begun and cannot begin at the offsets that ``start`` names."""
    start = snapshot.flow.settings.start
    if not isinstance(start, StartMap):
        return {}
    metadata = snapshot.source.metadata(fresh)
    now = [name for name in fresh if not metadata.topics[name].error and first_ends(snapshot.ledger, metadata, name) != {}]
    return {name: (said,) for name, said in impossible_starts(snapshot.source.client, start, now).items()}


def _too_old(snapshot: Snapshot, plans: Mapping[str, TargetPlan], lag: MirrorLag) -> dict[str, tuple[str, ...]]:
    """Topics whose oldest records the target's own retention would delete at once."""
    target = snapshot.target.admin
    there = [made.target_topic for made in plans.values() if not made.create]
    known = target.topic_configs(there) if there else {}
    broker = broker_defaults(target) if any(made.create for made in plans.values()) else None
    kept = {
        name: retention_ms(as_created(made.configs, broker) if made.create else known.get(made.target_topic))
        for name, made in plans.items()
    }
    at_risk = [topic for topic in lag.topics if kept.get(topic.topic) is not None]
    next_up = {TopicPartition(t.topic, p.partition): p.position for t in at_risk for p in t.partitions if p.lag}
    times = snapshot.source.first_times(next_up)
    now = time.time()
    warnings: dict[str, tuple[str, ...]] = {}
    for name, limit in kept.items():
        oldest = min((at for tp, at in times.items() if tp.topic == name), default=None)
        if oldest is not None and limit is not None and oldest < now - limit / 1000:
            ages = format_duration(now - oldest), format_duration(limit / 1000)
            said = f"its oldest records are {ages[0]} old, {plans[name].target_topic} keeps records for {ages[1]} (retention.ms)"
            warnings[name] = (f"{said}: it may delete them once they are copied",)
    return warnings


def backfill_blockers(flow: Flow, topic: str, target_topic: str, from_time: int) -> list[str]:
    """What prevents copying records from ``from_time`` on into ``target_topic``: rights, settings, retention."""
    with Snapshot(flow) as snapshot:
        target = snapshot.target.admin
        made = plan_targets(flow.settings, snapshot.source.admin, target, {topic: target_topic})[topic]
        configs = {} if made.create else target.topic_configs([target_topic])
    blockers = list(made.blockers)
    if not made.create:
        kept = retention_ms(configs.get(target_topic))
        if kept is not None and from_time < time.time() * 1000 - kept:
            blockers.append(
                f"topic {target_topic} keeps records for {kept / 3_600_000:.1f} hours (retention.ms) and would delete the older part of"
                " this range at once: raise its retention.ms, or copy into a new topic with --into"
            )
    return blockers
