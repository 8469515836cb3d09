"""What a principal must be allowed on a cluster, and the commands that grant what it lacks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence

from confluent_kafka import KafkaError

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.admin import Admin

# Fetch and ListOffsets; the settings tell a compacted topic from one that lost records, and how the copy is to be made.
SOURCE = ("READ", "DESCRIBE_CONFIGS")
# Read: the end of the log decides what was sent, and verification reads it back.
TARGET = ("READ", "WRITE", "DESCRIBE_CONFIGS")
NEW = ("CREATE", *TARGET)
# List groups and fetch their offsets; commit offsets, which implies listing them.
GROUPS_SOURCE = ("DESCRIBE",)
GROUPS_TARGET = ("READ",)
# Optional rights, requested together with the required ones.
WISHED = frozenset({"DESCRIBE_CONFIGS"})

Operations = frozenset[str] | BrokerError | None


def lacking(operations: Operations, needed: Sequence[str]) -> tuple[str, ...]:
    """Those of the needed operations that are not allowed on a topic or a group.

    Args:
        operations: a broker's answer. An empty one comes from brokers that do not tell (before 2.3): the data path will find out.
        needed: ACL operation names.
    """
    if isinstance(operations, BrokerError):
        return tuple(needed) if operations.code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED) else ()
    return tuple(right for right in needed if right not in operations) if operations else ()


def sentence(cluster: ClusterSettings, topic: str, rights: Sequence[str]) -> str:
    """Which rights are missing on which topic, and the command that grants them."""
    named = [right for right in rights if right not in WISHED] or rights
    listed = " and ".join(part for part in (", ".join(named[:-1]), named[-1]) if part)
    return f"no right to {listed} topic {topic} on cluster {cluster.alias}; grant it: {grant(cluster, rights, topic)}"


def groups_sentence(cluster: ClusterSettings, pattern: str, rights: Sequence[str]) -> str:
    """Which rights are missing on the groups of a regex, and the command that grants them."""
    name, prefixed = resource_of(pattern)
    command = grant(cluster, rights, name, prefixed=prefixed, resource="group")
    return f"no right to {' and '.join(rights)} groups {pattern} on cluster {cluster.alias}; grant it: {command}"


def grant(cluster: ClusterSettings, rights: Iterable[str], name: str, *, prefixed: bool = False, resource: str = "topic") -> str:
    """The command that allows this principal some operations on a topic (or a ``group``), or on all whose names begin so."""
    pattern = " --resource-pattern-type prefixed" if prefixed else ""
    return f"{_allow(cluster, rights)}{pattern} --{resource} {shlex.quote(name)}"


def grant_cluster(cluster: ClusterSettings, rights: Iterable[str]) -> str:
    """The command that allows this principal some operations on the cluster itself."""
    return f"{_allow(cluster, rights)} --cluster"


def _allow(cluster: ClusterSettings, rights: Iterable[str]) -> str:
    user = shlex.quote(f"User:{cluster.security.user or '<principal>'}").strip("'")
    words = " ".join(f"--operation {''.join(part.capitalize() for part in right.split('_'))}" for right in rights)
    return f"kafka-acls.sh --bootstrap-server ... --add --allow-principal {user} {words}"


def unseen(cluster: ClusterSettings, include: Sequence[str], names: Collection[str]) -> str:
    """What to grant when an include regex matches no topic, which may be there and hidden; "" where nothing is hidden."""
    if cluster.security.protocol == "PLAINTEXT":
        return ""
    silent = [pattern for pattern in include if not any(re.fullmatch(pattern, name) for name in names)]
    commands = [grant(cluster, SOURCE, topic, prefixed=prefixed) for topic, prefixed in map(resource_of, silent)]
    user = cluster.security.user or "this principal"
    return f"{user} sees only topics that it may describe; if these exist, grant: {'; '.join(commands)}" if commands else ""


def resource_of(pattern: str) -> tuple[str, bool]:
    """The narrowest ACL resource for a regex: a name, a prefix (True), or all (``*``)."""
    plain = pattern.replace("\\.", ".")
    if re.fullmatch(r"[\w.-]+", plain):
        return plain, False
    head = re.match(r"(?:[\w-]|\\\.)*", pattern)
    prefix = head[0].replace("\\.", ".") if head else ""
    return (prefix, True) if prefix else ("*", False)


def may_not_create(target: Admin, topics: Sequence[tuple[str, int, int, dict[str, str]]]) -> list[str]:
    """Those of the topics that a broker would not let this principal create; nothing is created.

    Args:
        target: the cluster.
        topics: name, partitions, replication factor and settings of each.

    Raises:
        ClusterUnreachable: it does not answer.
    """
    if not topics or "CREATE" in target.cluster_operations():
        return []
    codes = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    # One partition: a controller refuses a request that is large as a whole.
    small = [(name, 1, 1, dict[str, str]()) for name, *_ in topics]
    answers = target.create_topics(small, validate_only=True)
    return [name for name, refusal in answers.items() if refusal is not None and refusal.code in codes]
