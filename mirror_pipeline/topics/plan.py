"""What has to happen to a target topic before records are sent to it. A pure function: facts in, plan out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mirror_pipeline.config.settings import KEPT_BY_TARGET
from mirror_pipeline.kafka.cluster_info import TopicInfo
from mirror_pipeline.topics.configs import Settings, as_created, desired_configs, not_copied, number, text
from mirror_pipeline.topics.differences import differences

USUAL_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class TargetCluster:
    """What planning needs to know of the target: alias and addresses for messages, size, a broker's settings (None: not readable).

    ``brokers`` are up, ``down`` are not; ``listed``: the cluster has no others.
    """

    alias: str
    bootstrap_servers: str
    brokers: int
    settings: Settings | None = None
    down: tuple[int, ...] = ()
    listed: bool = True

    @property
    def default_replicas(self) -> int:
        """How many replicas a new topic gets unless the mirror says it: what the cluster's own would get, or up to three."""
        known = self.brokers + len(self.down)
        default = number(self.settings or {}, "default.replication.factor") or 1
        if default > 1:
            return min(default, known) if self.listed else default
        return max(1, min(USUAL_REPLICAS, known))


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The mirror's ``topics.manage``, ``topics.replication_factor`` and ``topics.configs.exclude``.

    ``equal_counts``: why a target topic may not have more partitions than its source; "" if it may.
    """

    manage: bool = True
    replication_factor: int | None = None
    exclude: tuple[str, ...] = KEPT_BY_TARGET
    equal_counts: str = ""


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """What to do with one target topic. ``actions``, ``warnings`` and ``blockers`` are sentences; ``waits``: what it must wait for."""

    topic: str
    target_topic: str
    partitions: int
    create: bool = False
    grow: bool = False
    replication_factor: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    waits: str = ""


def plan_target(
    source: TopicInfo,
    source_configs: Settings | None,
    target: TopicInfo | None,
    target_configs: Settings | None,
    *,
    target_topic: str,
    cluster: TargetCluster,
    rules: TopicRules = TopicRules(),
    collides_with: str | None = None,
) -> TargetPlan:
    """Decide whether to create, grow or leave a target topic, and what is worth a warning.

    Args:
        source: the source topic.
        source_configs: its settings in force; None when they may not be read.
        target: the target topic; None when it does not exist.
        target_configs: its settings in force; None when it does not exist or they may not be read.
        target_topic: its name.
        cluster: the target cluster.
        rules: what the mirror may do.
        collides_with: an existing target topic whose name is the same to Kafka (``.`` and ``_`` alike).
    """
    configs = source_configs or {}
    unread = (
        ()
        if source_configs is not None
        else (
            "the source topic's settings may not be read (DESCRIBE_CONFIGS): the target's defaults apply,"
            " and missing offsets halt the topic, because compaction cannot be distinguished from loss",
        )
    )
    if target is None:
        return _plan_new(source, configs, target_topic, cluster, rules, collides_with, unread)
    return _plan_existing(source, configs, target, target_configs, cluster, rules, unread)


def _plan_new(
    source: TopicInfo,
    configs: Settings,
    name: str,
    cluster: TargetCluster,
    rules: TopicRules,
    collides_with: str | None,
    unread: tuple[str, ...],
) -> TargetPlan:
    target_configs = desired_configs(configs, cluster.settings, rules.exclude)
    replicas = rules.replication_factor or cluster.default_replicas
    plan = TargetPlan(source.name, name, source.partitions, replication_factor=replicas, configs=target_configs)
    blockers = []
    if collides_with:
        blockers.append(
            f"cluster {cluster.alias} has topic {collides_with}: Kafka refuses {name} while that topic exists"
            " (. and _ are the same in metric names); choose another naming, or exclude the topic"
        )
    known = cluster.brokers + len(cluster.down)
    if rules.replication_factor and replicas > known:
        blockers.append(f"topics.replication_factor is {replicas}, cluster {cluster.alias} has {known} brokers")
    if not rules.manage:
        blockers.append(
            f"topic {name} does not exist on cluster {cluster.alias} and topics.manage is false; create it: {create_command(plan, cluster)}"
        )
    if blockers:
        return TargetPlan(source.name, name, source.partitions, blockers=tuple(blockers), warnings=unread)
    action = f"create {name} on {cluster.alias}: {_partitions(source.partitions)}, replication factor {replicas}, " + ", ".join(
        f"{key}={value}" for key, value in target_configs.items()
    )
    copied = (difference.sentence for difference in differences(configs, as_created(target_configs, cluster.settings)))
    waits = _waits_for_brokers(replicas, cluster)
    warnings = (*unread, *_source_warnings(configs, rules.exclude), *copied, *([waits] if waits else []))
    return TargetPlan(source.name, name, source.partitions, True, False, replicas, target_configs, (action,), warnings, waits=waits)


def _waits_for_brokers(replicas: int, cluster: TargetCluster) -> str:
    """Why a topic cannot be created now: the brokers that are up are too few for its replicas; "" if they are not."""
    if replicas <= cluster.brokers:
        return ""
    nodes = ", ".join(map(str, cluster.down))
    who = f"broker{'s' if len(cluster.down) > 1 else ''} {nodes}" if nodes else "another broker"
    fewer = "" if nodes else "; if it has no more, set topics.replication_factor"
    up = "1 broker is" if cluster.brokers == 1 else f"{cluster.brokers} brokers are"
    return f"waits for {who} of cluster {cluster.alias}: {replicas} replicas, {up} up{fewer}"


def _plan_existing(
    source: TopicInfo,
    configs: Settings,
    target: TopicInfo,
    target_configs: Settings | None,
    cluster: TargetCluster,
    rules: TopicRules,
    unread: tuple[str, ...],
) -> TargetPlan:
    name, blockers, actions = target.name, [], []
    grow = target.partitions < source.partitions
    lack = f"topic {name} on {cluster.alias} has {_partitions(target.partitions)}, its source {source.name} has {source.partitions}"
    if grow and rules.manage:
        actions.append(f"add partitions to {name} on {cluster.alias}: from {target.partitions} to {source.partitions}")
    elif grow:
        command = f"kafka-topics.sh --bootstrap-server {cluster.bootstrap_servers} --alter --topic {name} --partitions {source.partitions}"
        blockers.append(f"{lack}, and topics.manage is false; add them: {command}")
    warnings = list(unread)
    if target.partitions > source.partitions and rules.equal_counts:
        blockers.append(f"{lack}, and {rules.equal_counts}: add partitions to {source.name}, or name another target topic")
    elif target.partitions > source.partitions:
        warnings.append(f"{lack}: the surplus stays empty")
    warnings += _fewer_replicas(target, cluster, rules)
    if target_configs is None:
        warnings.append(
            f"the settings of {name} on {cluster.alias} may not be read (DESCRIBE_CONFIGS): retention and sizes were not compared"
        )
    else:
        blockers += _compaction(configs, target_configs, name, cluster)
        warnings += _source_warnings(configs, None)
        warnings += _difference_lines(configs, target_configs, name, cluster)
    return TargetPlan(
        source.name,
        name,
        source.partitions,
        grow=grow and not blockers,
        replication_factor=target.replication_factor,
        actions=() if blockers else tuple(actions),
        warnings=tuple(warnings),
        blockers=tuple(blockers),
    )


def _fewer_replicas(target: TopicInfo, cluster: TargetCluster, rules: TopicRules) -> Iterator[str]:
    """A warning where the topic has fewer replicas than it would get if it was made today."""
    have, wanted = target.replication_factor, rules.replication_factor or cluster.default_replicas
    if 0 < have < wanted:
        count = "1 replica" if have == 1 else f"{have} replicas"
        yield f"{target.name} on {cluster.alias} has {count}, made today it would get {wanted}: kafka-reassign-partitions.sh adds them"


def _compaction(source: Settings, target: Settings, name: str, cluster: TargetCluster) -> list[str]:
    if not source or "compact" in text(source, "cleanup.policy") or "compact" not in text(target, "cleanup.policy"):
        return []
    command = alter_command(name, {"cleanup.policy": text(source, "cleanup.policy", "delete")}, cluster)
    return [
        f"topic {name} on {cluster.alias} is compacted, its source is not: it refuses records without a key and drops older ones of a key;"
        f" change it: {command}"
    ]


def _source_warnings(source: Settings, exclude: Sequence[str] | None) -> Iterator[str]:
    if text(source, "message.timestamp.type") == "LogAppendTime":
        yield "the source sets record times itself (LogAppendTime): records keep that time and are re-encoded for it"
    left = not_copied(source, exclude) if exclude is not None else []
    if left:
        yield f"not copied, the target's own values apply: {', '.join(left)}"


def _difference_lines(source: Settings, target: Settings, name: str, cluster: TargetCluster) -> list[str]:
    """The differences to an existing topic, and the one command that removes them."""
    differing = list(differences(source, target))
    changes = {difference.key: difference.value for difference in differing}
    command = [f"to end this: {alter_command(name, changes, cluster)}"] if changes else []
    return [*(difference.sentence for difference in differing), *command]


def create_command(plan: TargetPlan, cluster: TargetCluster) -> str:
    """The ``kafka-topics`` line that does what the plan would."""
    words = ["kafka-topics.sh", "--bootstrap-server", cluster.bootstrap_servers, "--create", "--topic", plan.target_topic]
    words += ["--partitions", str(plan.partitions), "--replication-factor", str(plan.replication_factor)]
    return shlex.join(words + [word for key, value in plan.configs.items() for word in ("--config", f"{key}={value}")])


def alter_command(name: str, changes: Mapping[str, str], cluster: TargetCluster) -> str:
    """The ``kafka-configs`` line that sets these settings of a topic."""
    pairs = ",".join(f"{key}=[{value}]" if "," in value else f"{key}={value}" for key, value in changes.items())
    words = ["kafka-configs.sh", "--bootstrap-server", cluster.bootstrap_servers, "--alter", "--entity-type", "topics"]
    return shlex.join([*words, "--entity-name", name, "--add-config", pairs])


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
