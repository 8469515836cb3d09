"""Brings target topics into the state their plan asks for."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from mirror_pipeline.clusters.admin import Admin
from mirror_pipeline.clusters.info import TopicInfo
from mirror_pipeline.config import MirrorConfig
from mirror_pipeline.errors import BrokerError, TopicHalted
from mirror_pipeline.topics.naming import same_to_kafka
from mirror_pipeline.topics.plan import Rules, TargetCluster, TargetPlan, plan_target
from mirror_pipeline.topics.settings import AFTER, BEFORE, DIFFERENCE, FOREVER, Settings, desired_configs

__all__ = ["Ensured", "Rules", "TargetCluster", "TargetPlan", "desired_configs", "ensure_target_topic", "plan_target", "plan_targets"]

READY_TIMEOUT = 30.0  # a controller elects leaders of a new topic within a second; a busy cluster may need many
_POLL = 0.1
_ADJUSTMENTS = 8
_UNKNOWN = re.compile(r"Unknown topic config name: ([\w.]+)")
_TOO_SMALL = re.compile(r"Invalid value \S+ for configuration ([\w.]+): Value must be at least ([0-9.]+)")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ensured:
    """A target topic that is ready, and what was done to it."""

    info: TopicInfo
    done: tuple[str, ...] = ()


def plan_targets(mirror: MirrorConfig, source: Admin, target: Admin, names: Mapping[str, str]) -> dict[str, TargetPlan]:
    """Ask both clusters what :func:`plan_target` needs; one plan for each source topic of ``names`` that exists.

    The run and ``mirror plan`` both use it. Topics that this principal may not read or write are blocked with what to grant.

    Args:
        mirror: its ``topics`` rules.
        source: the source cluster.
        target: the target cluster.
        names: target name of each source topic.

    Raises:
        ClusterUnreachable: one of the clusters does not answer.
    """
    sources, existing = source.topics(), target.topics()
    wanted = {topic: name for topic, name in names.items() if topic in sources}
    there = [name for name in wanted.values() if name in existing]
    source_configs, target_configs = source.topic_configs(list(wanted)), target.topic_configs(there)
    readable, writable = source.topic_operations(list(wanted)), target.topic_operations(there)
    by_form = {same_to_kafka(name): name for name in existing}
    cluster = _target_cluster(target)
    rules = Rules(mirror.topics.manage, mirror.topics.replication_factor)
    plans = {}
    for topic, name in wanted.items():
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
        rights = [*_lacking(readable.get(topic), "READ", topic, source), *_lacking(writable.get(name), "WRITE", name, target)]
        plans[topic] = _blocked(plan, rights) if rights else plan
    return plans


def _target_cluster(target: Admin) -> TargetCluster:
    try:
        settings: Settings | None = target.broker_configs()
    except BrokerError:
        settings = None  # needs DESCRIBE_CONFIGS on the cluster, which is not worth refusing a mirror for
    settings_of = target.cluster
    return TargetCluster(settings_of.alias, ",".join(settings_of.bootstrap_servers), len(target.describe().brokers), settings)


def _or_none(answer: Settings | BrokerError | None) -> Settings | None:
    return None if isinstance(answer, BrokerError) else answer


def _lacking(operations: frozenset[str] | BrokerError | None, right: str, topic: str, admin: Admin) -> list[str]:
    # An empty answer comes from brokers that do not tell (before 2.3): the data path will find out.
    if not operations or isinstance(operations, BrokerError) or right in operations:
        return []
    user = admin.cluster.security.username or "<principal>"
    grant = f"--add --allow-principal User:{user} --operation {right.capitalize()} --topic {topic}"
    return [f"no right to {right} topic {topic} on cluster {admin.cluster.alias}; grant it: kafka-acls.sh --bootstrap-server ... {grant}"]


def _blocked(plan: TargetPlan, blockers: list[str]) -> TargetPlan:
    return TargetPlan(plan.topic, plan.target_topic, plan.partitions, warnings=plan.warnings, blockers=(*blockers, *plan.blockers))


def ensure_target_topic(admin: Admin, plan: TargetPlan, *, timeout: float = READY_TIMEOUT) -> Ensured:
    """Carry out a plan and wait until every partition of the topic has a leader. Safe to repeat.

    Args:
        admin: the target cluster.
        plan: from :func:`plan_target`.
        timeout: seconds to wait for the leaders.

    Raises:
        TopicHalted: the plan has blockers, or the target refuses; with the reason and what to do.
        BrokerError: a passing fault outlasted the retries (``retryable``).
        ClusterUnreachable: the target does not answer.
    """
    if plan.blockers:
        raise TopicHalted(plan.topic, "; ".join(plan.blockers))
    done: list[str] = []
    if plan.create:
        done += _attempt(plan, "TOPIC_ALREADY_EXISTS", lambda: _create(admin, plan))
    elif plan.grow:
        done += _attempt(plan, "INVALID_PARTITIONS", lambda: _grow(admin, plan))
    for line in done:
        _log.info("target topic changed: topic=%s action=%s", plan.target_topic, line)
    info = _await_ready(admin, plan, timeout)
    if info.partitions < plan.partitions:
        raise TopicHalted(
            plan.topic,
            f"topic {plan.target_topic} has {info.partitions} partitions, its source {plan.partitions}: somebody else created it just now",
            hint="run again",
        )
    return Ensured(info, tuple(done))


def _attempt(plan: TargetPlan, already: str, act: Callable[[], list[str]]) -> list[str]:
    """Run a change; ``already`` is the answer when another run, or an earlier try without answer, was first."""
    try:
        return act()
    except BrokerError as error:
        if error.name == already:
            return []
        if error.retryable:
            raise
        raise TopicHalted(plan.topic, error.message, hint=error.hint) from None


def _grow(admin: Admin, plan: TargetPlan) -> list[str]:
    admin.grow(plan.target_topic, plan.partitions)
    return list(plan.actions)


def _create(admin: Admin, plan: TargetPlan) -> list[str]:
    configs, notes = dict(plan.configs), list(plan.actions)
    for _ in range(_ADJUSTMENTS):
        try:
            admin.create_topic(plan.target_topic, plan.partitions, plan.replication_factor, configs)
            return notes
        except BrokerError as error:
            note = adjust(configs, error.message) if error.name == "INVALID_CONFIG" else ""
            if not note:
                raise
            notes.append(note)
    raise TopicHalted(plan.topic, f"cluster {admin.cluster.alias} refuses every form of the settings of topic {plan.target_topic}")


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


def _await_ready(admin: Admin, plan: TargetPlan, timeout: float) -> TopicInfo:
    def look() -> TopicInfo | None:
        info = admin.topics([plan.target_topic]).get(plan.target_topic)
        settled = info is not None and (info.partitions >= plan.partitions or not (plan.create or plan.grow))
        return info if settled and info is not None and not info.leaderless else None

    try:
        found = Retrying(stop=stop_after_delay(timeout), wait=wait_fixed(_POLL), retry=retry_if_result(lambda info: info is None))(look)
    except RetryError:
        found = None
    if found is None:
        raise TopicHalted(
            plan.topic,
            f"topic {plan.target_topic} on cluster {admin.cluster.alias} has partitions without a leader after {timeout:.0f} s",
            hint="look at the brokers of that cluster; the run goes on with the other topics",
        )
    return found
