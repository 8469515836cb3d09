"""How ACLs of target topics follow those of their source topics: what is carried, what is not, what is deleted again. Pure.

A copy has one writer, the mirror. So of what is allowed only reading is carried: READ, DESCRIBE, DESCRIBE_CONFIGS, and ALL as READ.
What is denied is carried as it is, unless it would lock out the mirror itself.

An ACL on one topic becomes one on its copy. A PREFIXED one stays PREFIXED where target names begin as source names do: ``prefix``,
``identity``, or a template that ends with ``{topic}``. Elsewhere, and for the LITERAL ``*``, each mirrored topic gets a LITERAL one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.config.naming import NamingRule, fill, template_of
from mirror_pipeline.kafka.security.acls import ALL_TOPICS, ALLOW, LITERAL, PREFIXED, Acl

SYNCED_OPERATIONS = {"READ": "READ", "DESCRIBE": "DESCRIBE", "DESCRIBE_CONFIGS": "DESCRIBE_CONFIGS", "ALL": "READ"}
"""Operations of ALLOW that are carried, and as what."""
# What the mirror itself needs on its target topics.
NEEDED = frozenset({"ALL", "READ", "WRITE", "DESCRIBE", "CREATE", "ALTER", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"})
EVERYONE = "User:*"


@dataclass(slots=True)
class Carried:
    """What the target should have, each with the source's ACL that it follows; and what is not carried, in words."""

    wanted: dict[Acl, Acl] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AclStep:
    """What to ``create`` and ``delete`` on the target.

    ``made`` are the ACLs that are the mirror's after that, each with the source's; ``forget`` those that are not any more.
    """

    create: frozenset[Acl]
    delete: frozenset[Acl]
    made: Mapping[Acl, Acl]
    forget: frozenset[Acl]


def own_principals(target: ClusterSettings) -> frozenset[str]:
    """The principals that the mirror is on the target, as far as its settings say: by a certificate it may be any name."""
    return frozenset({EVERYONE, f"User:{target.security.user or 'ANONYMOUS'}"})


def carried_acls(
    source: Collection[Acl], targets: Mapping[str, str], naming: NamingRule, alias: str, own: Collection[str]
) -> Carried:
    """Translate ACLs of the source.

    Args:
        source: its ACLs on topics.
        targets: target topic by source topic, of the copies.
        naming: how target topics are named.
        alias: of the source cluster.
        own: principals that the mirror is on the target.
    """
    found = Carried()
    for acl in sorted(source):
        operation = SYNCED_OPERATIONS.get(acl.operation) if acl.permission == ALLOW else acl.operation
        if operation is None:
            continue
        there = list(_places(acl, targets, naming, alias))
        if there and acl.permission != ALLOW and acl.principal in own and operation in NEEDED:
            found.refused.append(f"{acl.words()} is not carried: the mirror itself could not go on on the target")
            continue
        for name, pattern in there:
            found.wanted.setdefault(acl._replace(name=name, pattern=pattern, operation=operation), acl)
    return found


def keeps_prefixes(naming: NamingRule) -> bool:
    """Whether all source topics with one beginning get target names with one beginning, and no others do."""
    return isinstance(naming, str) and template_of(naming).endswith("{topic}")


def _places(acl: Acl, targets: Mapping[str, str], naming: NamingRule, alias: str) -> Iterator[tuple[str, str]]:
    """Names and patterns on the target."""
    concerned = [target for topic, target in targets.items() if acl.covers(topic)]
    if concerned and acl.pattern == PREFIXED and keeps_prefixes(naming):
        yield fill(naming, alias, acl.name), PREFIXED
    elif acl.pattern == PREFIXED or acl.name == ALL_TOPICS:
        yield from ((name, LITERAL) for name in concerned)
    else:
        yield from ((name, acl.pattern) for name in concerned)


def acl_step(
    carried: Carried, source: Collection[Acl], held: Collection[Acl], made: Mapping[Acl, Acl], handed_over: Collection[str]
) -> AclStep:
    """What to create and to delete. Only what the mirror has made is deleted, once the source's ACL that it followed is gone.

    Args:
        carried: from :func:`carried_acls`.
        source: the source's ACLs.
        held: the target's.
        made: those of the target that the mirror has made, each with the source's ACL.
        handed_over: target topics that belong to applications since a failover: what was made for them stays.
    """
    create = frozenset(carried.wanted.keys() - set(held))
    ours = {acl: origin for acl, origin in carried.wanted.items() if acl in create or acl in made}
    over = frozenset(
        acl for acl, origin in made.items()
        if acl not in carried.wanted and origin not in source and not any(acl.covers(topic) for topic in handed_over)
    )  # fmt: skip
    return AclStep(create, over & frozenset(held), ours, over)
