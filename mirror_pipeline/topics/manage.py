"""Brings target topics into the state that their plan describes.

Over 300 lines: planning and carrying out share what may be overtaken by others.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mirror_pipeline.config import ClusterSettings, MirrorConfig
from mirror_pipeline.config.naming import same_to_kafka
from mirror_pipeline.errors import BrokerError, MirrorError, TopicHalted
from mirror_pipeline.halts import blocked, not_begun, settings_refused, target_smaller
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.cluster_info import TopicInfo
from mirror_pipeline.kafka.codes import INVALID_REPLICATION_FACTOR, LEADER_NOT_AVAILABLE, broker_error
from mirror_pipeline.topics import rights
from mirror_pipeline.topics.configs import AFTER, BEFORE, DIFFERENCE, FOREVER, Settings, desired_configs, number
from mirror_pipeline.topics.plan import USUAL_REPLICAS, TargetCluster, TargetPlan, TopicRules, plan_target

__all__ = [
    "Ensured",
    "TopicRules",
    "TargetCluster",
    "TargetPlan",
    "desired_configs",
    "ensure_target_topic",
    "ensure_target_topics",
    "plan_target",
    "plan_targets",
]

# A controller elects leaders of a new topic within a second. A run does not hold up other topics for one that takes longer.
LED_SECONDS = 2.0
# A busy cluster may need many: for a command that has nothing else to do.
LED_PATIENCE_SECONDS = 30.0
# How often a topic is planned anew because somebody else has just created or grown it.
TARGET_LOOKS = 3
TOO_FEW = ("INVALID_REPLICATION_FACTOR",)
OVERTAKEN = ("TOPIC_ALREADY_EXISTS", "INVALID_PARTITIONS")
# Of topics created in one request: a controller refuses a request that needs more than 10,000 metadata records.
MOST_PARTITIONS = 2_000
_POLL = 0.1
_ADJUSTMENTS = 8
_UNKNOWN = re.compile(r"Unknown topic config name: ([\w.]+)")
_TOO_SMALL = re.compile(r"Invalid value \S+ for configuration ([\w.]+): Value must be at least ([0-9.]+)")
_log = logging.getLogger(__name__)


Again = Callable[[Collection[str]], Mapping[str, TargetPlan]]
"""New plans for some source topics, by topic."""


@dataclass(frozen=True, slots=True)
class Ensured:
    """A target topic that is ready, and what was done to it."""

    info: TopicInfo
    done: tuple[str, ...] = ()


def plan_targets(
    mirror: MirrorConfig, source: Admin, target: Admin, names: Mapping[str, str], *, partner: MirrorConfig | None = None
) -> dict[str, TargetPlan]:
    """Ask both clusters what :func:`plan_target` needs; one plan for each source topic of ``names`` that exists.

    The run and ``mirror plan`` both use it. Topics that this principal may not read or write are blocked with what to grant.

    Args:
        mirror: its ``topics`` rules.
        source: the source cluster.
        target: the target cluster.
        names: target name of each source topic.
        partner: the mirror of the other direction, if it has one.

    Raises:
        ClusterUnreachable: one of the clusters does not answer.
    """
    sources, existing = source.topics(), target.topics()
    targets = {topic: name for topic, name in names.items() if topic in sources}
    there = [name for name in targets.values() if name in existing]
    source_configs, target_configs = source.topic_configs(list(targets)), target.topic_configs(there)
    readable, writable = source.topic_operations(list(targets)), target.topic_operations(list(targets.values()))
    by_form = {same_to_kafka(name): name for name in existing}
    managed = mirror.topics
    rules = TopicRules(managed.manage, managed.replication_factor, managed.configs.exclude, _equal_counts(mirror, partner))
    cluster = _target_cluster(target, rules.replication_factor)
    plans = {}
    for topic, name in targets.items():
        plan = plan_target(
            sources[topic],
            _or_none(source_configs.get(topic)),
            existing.get(name),
            _or_none(target_configs.get(name)),
            target_topic=name,
            cluster=cluster,
            rules=rules,
            collides_with=by_form.get(same_to_kafka(name)) if name not in existing else None,
        )
        needed = rights.NEW if plan.create else (*rights.TARGET, *(("ALTER",) if plan.grow else ()))
        missing = (
            (source.cluster, topic, rights.lacking(readable.get(topic), rights.SOURCE)),
            (target.cluster, name, rights.lacking(writable.get(name), needed)),
        )
        plans[topic] = _with_rights(plan, [lack for lack in missing if lack[2]])
    return plans


def _equal_counts(mirror: MirrorConfig, partner: MirrorConfig | None) -> str:
    """Why both sides must have the same number of partitions; "" if they need not."""
    if mirror.offsets == "exact":
        return "offsets: exact needs the same number on both sides"
    if partner is None:
        return ""
    pair = partner if partner.reverse_of else mirror
    return f"mirror {pair.name} is the reverse of {pair.reverse_of}: after a failover the keys of new records would go to other partitions"


def _with_rights(plan: TargetPlan, missing: Sequence[tuple[ClusterSettings, str, tuple[str, ...]]]) -> TargetPlan:
    """The plan blocked by rights that a run cannot do without; it warns of the others."""
    said = [(rights.sentence(cluster, name, lacking), not rights.WISHED.issuperset(lacking)) for cluster, name, lacking in missing]
    warned = replace(plan, warnings=(*plan.warnings, *(text for text, blocks in said if not blocks)))
    blockers = [text for text, blocks in said if blocks]
    return _blocked(warned, blockers) if blockers else warned


def _target_cluster(target: Admin, wanted: int | None) -> TargetCluster:
    """The target as it is now; brokers that are down are looked for only where those that are up may be too few."""
    alias, servers = target.cluster.alias, ",".join(target.cluster.bootstrap_servers)
    up, settings = len(target.describe().brokers), broker_defaults(target)
    made = TargetCluster(alias, servers, up, settings)
    if up >= (wanted or max(USUAL_REPLICAS, number(settings or {}, "default.replication.factor") or 1)):
        return made
    with WireClient(target.cluster) as client:
        brokers = client.brokers()
    return replace(made, brokers=len(brokers.up), down=tuple(sorted(brokers.down)), listed=brokers.listed)


def broker_defaults(target: Admin) -> Settings | None:
    """The settings of a broker; None without DESCRIBE_CONFIGS on the cluster, which is not worth refusing a mirror for.

    Raises:
        ClusterUnreachable: the cluster does not answer.
    """
    try:
        return target.broker_configs()
    except BrokerError:
        return None


def _or_none(answer: Settings | BrokerError | None) -> Settings | None:
    return None if isinstance(answer, BrokerError) else answer


def _blocked(plan: TargetPlan, blockers: list[str]) -> TargetPlan:
    return TargetPlan(plan.topic, plan.target_topic, plan.partitions, warnings=plan.warnings, blockers=(*blockers, *plan.blockers))


def ensure_target_topic(admin: Admin, plan: TargetPlan, again: Again | None = None, *, seconds: float = LED_PATIENCE_SECONDS) -> Ensured:
    """:func:`ensure_target_topics` for one topic.

    Raises:
        TopicHalted: the plan has blockers, or the target refuses; with the reason and what to do.
        BrokerError: the topic is not ready yet, or a passing fault outlasted the retries (``retryable``).
        ClusterUnreachable: the target does not answer.
    """
    answer = ensure_target_topics(admin, [plan], again, seconds=seconds)[plan.target_topic]
    if isinstance(answer, MirrorError):
        raise answer
    return answer


def ensure_target_topics(
    admin: Admin, plans: Sequence[TargetPlan], again: Again | None = None, *, seconds: float = LED_SECONDS
) -> dict[str, Ensured | TopicHalted | BrokerError]:
    """Carry out plans, and look once whether every partition of the topics has a leader. Safe to repeat.

    Args:
        admin: the target cluster.
        plans: from :func:`plan_target`.
        again: makes new plans where somebody else was first; otherwise such a topic is taken as it is.
        seconds: how long topics that were just created or grown may take until they have leaders.

    Returns:
        By target topic that it is ready, or why it is not; a BrokerError that is ``retryable`` says what it waits for.

    Raises:
        ClusterUnreachable: the target does not answer.
    """
    results: dict[str, Ensured | TopicHalted | BrokerError] = {}
    for look in range(TARGET_LOOKS):
        found, overtaken = _ensure(admin, plans, seconds)
        results |= found
        if not overtaken or look == TARGET_LOOKS - 1:
            break
        time.sleep(_POLL)
        plans = [replace(plan, create=False, grow=False) for plan in overtaken] if again is None else _planned_again(again, overtaken)
    return results


def _planned_again(again: Again, overtaken: Sequence[TargetPlan]) -> list[TargetPlan]:
    for plan in overtaken:
        _log.info("target topic planned again: topic=%s", plan.target_topic)
    return list(again([plan.topic for plan in overtaken]).values())


def _ensure(
    admin: Admin, plans: Sequence[TargetPlan], seconds: float
) -> tuple[dict[str, Ensured | TopicHalted | BrokerError], list[TargetPlan]]:
    """What became of the plans, and those that somebody else has made out of date."""
    results: dict[str, Ensured | TopicHalted | BrokerError] = {}
    created = _create_together(admin, plans)
    done: dict[str, list[str]] = {}
    for plan in plans:
        try:
            done[plan.target_topic] = created.get(plan.target_topic) or _carry_out(admin, plan)
        except (TopicHalted, BrokerError) as error:
            results[plan.target_topic] = error
            continue
        for line in done[plan.target_topic]:
            _log.info("target topic changed: topic=%s action=%s", plan.target_topic, line)
    carried_out = [plan for plan in plans if plan.target_topic in done]
    infos = _look(admin, carried_out, {name for name, lines in done.items() if lines}, seconds)
    overtaken = [plan for plan in plans if isinstance(e := results.get(plan.target_topic), BrokerError) and e.name in OVERTAKEN]
    for plan in carried_out:
        name, info = plan.target_topic, infos[plan.target_topic]
        results[name] = _result(admin.cluster.alias, plan, info, done[name])
        if isinstance(info, TopicInfo) and info.partitions < plan.partitions and not done[name]:
            overtaken.append(plan)
    return results, overtaken


def _result(alias: str, plan: TargetPlan, info: TopicInfo | BrokerError, done: list[str]) -> Ensured | TopicHalted | BrokerError:
    if isinstance(info, BrokerError):
        return info
    unled = [*info.leaderless, *range(info.partitions, plan.partitions)]
    if info.partitions < plan.partitions and not done:
        return target_smaller(plan.topic, info.name, info.partitions, plan.partitions).error()
    if unled:
        return broker_error(LEADER_NOT_AVAILABLE, f"{info.name}[{unled[0]}] on cluster {alias}")
    return Ensured(info, tuple(done))


def _create_together(admin: Admin, plans: Sequence[TargetPlan]) -> dict[str, list[str]]:
    """Create what can be created in one request; whatever is refused is left to be tried alone, where its reason is dealt with."""
    new = [plan for plan in plans if plan.create and not plan.blockers and not plan.waits]
    if len(new) < 2 or sum(plan.partitions for plan in new) > MOST_PARTITIONS:
        return {}
    refused = admin.create_topics([(plan.target_topic, plan.partitions, plan.replication_factor, dict(plan.configs)) for plan in new])
    return {plan.target_topic: list(plan.actions) for plan in new if refused[plan.target_topic] is None}


def _carry_out(admin: Admin, plan: TargetPlan) -> list[str]:
    if plan.blockers:
        raise blocked(plan.topic, plan.blockers).error()
    if plan.waits:
        raise too_few_brokers(plan.waits)
    try:
        return _create(admin, plan) if plan.create else _grow(admin, plan) if plan.grow else []
    except BrokerError as error:
        if error.retryable:
            raise
        if error.name in (*OVERTAKEN, *TOO_FEW):
            error.retryable = True
            raise
        raise not_begun(plan.topic, error).error() from None


def too_few_brokers(waits: str) -> BrokerError:
    """A topic waits for brokers of the target that are down."""
    hint = "start the broker, or set topics.replication_factor"
    return BrokerError(INVALID_REPLICATION_FACTOR, TOO_FEW[0], waits, hint=hint, retryable=True)


def _grow(admin: Admin, plan: TargetPlan) -> list[str]:
    admin.grow(plan.target_topic, plan.partitions)
    return list(plan.actions)


def _create(admin: Admin, plan: TargetPlan) -> list[str]:
    configs, notes = dict(plan.configs), list(plan.actions)
    for _ in range(_ADJUSTMENTS + len(configs)):
        refusal = admin.create_topics([(plan.target_topic, plan.partitions, plan.replication_factor, configs)])[plan.target_topic]
        if refusal is None:
            return notes
        note = adjust(configs, refusal.message) if refusal.name == "INVALID_CONFIG" else ""
        if not note:
            raise refusal
        notes.append(note)
    raise settings_refused(plan.topic, plan.target_topic, admin.cluster.alias).error()


def adjust(configs: dict[str, str], refusal: str) -> str:
    """Change, in place, the setting that a broker of another version refuses; says what was changed, "" when nothing can be.

    Kafka 4 does not know ``message.timestamp.difference.max.ms``, Kafka before 3.6 only that; Kafka 4 wants segments of 1 MiB (KIP-1030).
    """
    unknown, small = _UNKNOWN.search(refusal), _TOO_SMALL.search(refusal)
    if unknown and unknown.group(1) in configs:
        key = unknown.group(1)
        del configs[key]
        if key in (BEFORE, AFTER):
            configs.pop(BEFORE, None)
            configs.pop(AFTER, None)
            configs[DIFFERENCE] = FOREVER
            return f"{DIFFERENCE} instead of {BEFORE} and {AFTER}, which this version does not know"
        return f"without {key}, which this version does not know"
    if small and small.group(1) in configs and configs[small.group(1)] != small.group(2):
        key, least = small.groups()
        old, configs[key] = configs[key], least
        return f"{key}={least} instead of {old}, which this version finds too small"
    return ""


def _look(admin: Admin, plans: Sequence[TargetPlan], changed: Collection[str], seconds: float) -> dict[str, TopicInfo | BrokerError]:
    """The target topics as they are; those that were just created or grown are looked at until they have leaders."""
    infos: dict[str, TopicInfo | BrokerError] = {}
    deadline = time.monotonic() + seconds
    waiting = {plan.target_topic: plan for plan in plans}
    while waiting:
        infos |= admin.described(list(waiting))
        waiting = {name: plan for name, plan in waiting.items() if name in changed and not _has_leaders(infos[name], plan)}
        if not waiting or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    return infos


def _has_leaders(info: TopicInfo | BrokerError, plan: TargetPlan) -> bool:
    return isinstance(info, TopicInfo) and not info.leaderless and info.partitions >= plan.partitions
