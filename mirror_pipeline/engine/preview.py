"""``plan`` and ``check``: what a run would do and what would stop it. Both ask, neither changes anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from mirror_pipeline.buffer.ledger import Ledger
from mirror_pipeline.buffer.store import open_lane
from mirror_pipeline.clusters.admin import Admin
from mirror_pipeline.clusters.info import ConfigValue
from mirror_pipeline.engine import looking
from mirror_pipeline.engine.selection import Selected, select_topics
from mirror_pipeline.engine.targets import FILLED_HINT, filled_message, log_bounds
from mirror_pipeline.errors import BrokerError, MirrorError
from mirror_pipeline.local.java import find_java
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.reports import Finding, MirrorPlan, TopicPlan
from mirror_pipeline.topics.manage import plan_targets
from mirror_pipeline.topics.select import unmatched
from mirror_pipeline.wire.client import WireClient

if TYPE_CHECKING:
    from mirror_pipeline.engine.facade import Mirror


def plan(mirror: Mirror) -> MirrorPlan:
    """See :meth:`Mirror.plan`."""
    source, target = mirror.source_admin(), mirror.target_admin()
    selected = select_topics(mirror.config, mirror.mirror, list(source.topics()))
    plans = plan_targets(mirror.mirror, source, target, selected.topics)
    lags = _lags(mirror, {name: selected.topics[name] for name in plans})
    begun = {name for store in mirror.lane_stores() for name in Ledger(store).incarnations()}
    filled = filled_topics(mirror, [made.target_topic for name, made in plans.items() if not made.create and name not in begun])
    rows = tuple(
        TopicPlan(
            topic=name,
            target_topic=made.target_topic,
            partitions=made.partitions,
            records=lags.get(name, 0),
            bytes=None,
            actions=made.actions,
            warnings=made.warnings,
            blockers=(*made.blockers, *_filled(filled.get(made.target_topic, 0), made.target_topic)),
        )
        for name, made in sorted(plans.items())
    )
    return MirrorPlan(mirror.name, rows, selected.excluded)


def _filled(count: int, target_topic: str) -> tuple[str, ...]:
    return (f"{filled_message(target_topic, count)}: {FILLED_HINT}",) if count else ()


def filled_topics(mirror: Mirror, targets: Collection[str]) -> dict[str, int]:
    """Those of the target topics that hold records, with how many offsets they span."""
    client = WireClient(mirror.target, timeout=mirror.mirror.engine.request_timeout)
    try:
        found = client.metadata(sorted(targets)).topics if targets else {}
        parts = [TopicPartition(t.name, number) for t in found.values() if not t.error for number in t.partitions]
        counts: dict[str, int] = {}
        for tp, (start, end) in log_bounds(client, parts).items():
            counts[tp.topic] = counts.get(tp.topic, 0) + end - start
        return {name: count for name, count in counts.items() if count}
    finally:
        client.close()


def _lags(mirror: Mirror, targets: Mapping[str, str]) -> dict[str, int]:
    """Offsets that are still to be copied, by topic; an upper bound of the records."""
    client = WireClient(mirror.source, timeout=mirror.mirror.engine.request_timeout)
    try:
        lag = looking.lag_of(mirror.name, targets, client, looking.standing(mirror.lane_stores()), ages=False)
    finally:
        client.close()
    return {topic.topic: topic.lag_records for topic in lag.topics}


def check(mirror: Mirror) -> list[Finding]:
    """See :meth:`Mirror.check`."""
    findings = [
        _try("Java", lambda: f"found {find_java()}"),
        _try("buffer", lambda: f"{open_lane(mirror.config.buffer, mirror.name, mirror.lanes[0]).uri} can be written"),
        _try(f"source {mirror.mirror.source}", lambda: _reach(mirror.source_admin(), WireClient(mirror.source))),
        _try(f"target {mirror.mirror.target}", lambda: _reach(mirror.target_admin(), WireClient(mirror.target))),
    ]
    if all(finding.ok for finding in findings[2:]):
        findings += _topic_findings(mirror)
    return findings


def _reach(admin: Admin, client: WireClient) -> str:
    """Both client stacks must get in: librdkafka for administration, the wire for data."""
    try:
        client.metadata([])
        info = admin.describe()
    finally:
        client.close()
    return f"{len(info.brokers)} broker{'s' if len(info.brokers) != 1 else ''}, cluster id {info.cluster_id}"


def _topic_findings(mirror: Mirror) -> list[Finding]:
    names = list(mirror.source_admin().topics())
    try:
        selected = select_topics(mirror.config, mirror.mirror, names)
    except MirrorError as problem:
        return [_failed("topics", problem)]
    return [_selection(mirror, names, selected), *_plan_findings(mirror)] if selected.topics else [_selection(mirror, names, selected)]


def _selection(mirror: Mirror, names: list[str], selected: Selected) -> Finding:
    silent = unmatched(names, mirror.mirror.topics.include)
    count = len(selected.topics)
    detail = "; ".join([f"{count} of {len(names)} topics selected", *silent])
    hint = "" if count else "regexes match whole names; `mirror plan` shows why each topic is left out"
    return Finding("topics", bool(count), detail, hint)


def _plan_findings(mirror: Mirror) -> Iterable[Finding]:
    for topic in plan(mirror).topics:
        if topic.blockers:
            yield Finding(f"topic {topic.topic}", False, "; ".join(topic.blockers))
        elif topic.warnings:
            yield Finding(f"topic {topic.topic}", True, f"to {topic.target_topic}; {'; '.join(topic.warnings)}")
        else:
            yield Finding(f"topic {topic.topic}", True, f"to {topic.target_topic}")


def _try(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except MirrorError as problem:
        return _failed(what, problem)


def _failed(what: str, problem: MirrorError) -> Finding:
    return Finding(what, False, problem.message, problem.hint)


def backfill_blockers(mirror: Mirror, topic: str, target_topic: str, from_time: int) -> list[str]:
    """What speaks against copying records from ``from_time`` on into ``target_topic``: rights, settings, retention."""
    target = mirror.target_admin()
    made = plan_targets(mirror.mirror, mirror.source_admin(), target, {topic: target_topic})[topic]
    blockers = list(made.blockers)
    if not made.create:
        kept = retention_ms(target.topic_configs([target_topic]).get(target_topic))
        if kept is not None and from_time < time.time() * 1000 - kept:
            blockers.append(
                f"topic {target_topic} keeps records for {kept / 3_600_000:.1f} hours (retention.ms) and would delete the older part of"
                " this range at once: raise its retention.ms, or copy into a new topic with --into"
            )
    return blockers


def retention_ms(configs: dict[str, ConfigValue] | BrokerError | None) -> int | None:
    """How long a topic keeps records; None for ever, not by time, or unknown."""
    if configs is None or isinstance(configs, BrokerError) or "delete" not in (configs["cleanup.policy"].value or ""):
        return None
    value = int(configs["retention.ms"].value or -1)
    return value if value >= 0 else None
