"""ACLs of topics on one cluster: read all, create and delete some, many in one request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from kafka.protocol.admin import DescribeAclsRequest

from mirror_pipeline.errors import BrokerError
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import broker_error

LITERAL, PREFIXED = "LITERAL", "PREFIXED"
ALLOW, DENY = "ALLOW", "DENY"
ALL_TOPICS = "*"
"""As the name of a LITERAL pattern."""
_KNOWN = frozenset(operation.value for operation in AclOperation)
# ACLs in one request.
ACLS_TOGETHER = 200


class Acl(NamedTuple):
    """One right of a principal on topics, in Kafka's words: ``pattern`` LITERAL or PREFIXED, ``permission`` ALLOW or DENY."""

    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str

    def words(self) -> str:
        """In words, e.g. ``ALLOW READ for User:ann on east.orders``."""
        where = "" if self.host == "*" else f" from {self.host}"
        kind = "" if self.pattern == LITERAL else "names that begin with "
        return f"{self.permission} {self.operation} for {self.principal}{where} on {kind}{self.name}"

    def covers(self, topic: str) -> bool:
        """Whether it concerns a topic of this name."""
        if self.pattern == PREFIXED:
            return topic.startswith(self.name)
        return self.name in (topic, ALL_TOPICS)


def topic_acls(client: WireClient) -> set[Acl]:
    """Every ACL on topics; those with an operation that this client does not know are left out.

    librdkafka answers this question with no ACLs where the broker refuses it, so it is asked here.

    Raises:
        BrokerError: SECURITY_DISABLED without an authorizer, CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on the cluster.
        ClusterUnreachable, ConnectionLost: the cluster does not answer.
    """
    everything = DescribeAclsRequest(
        resource_type_filter=ResourceType.TOPIC.value, resource_name_filter=None, pattern_type_filter=ResourcePatternType.ANY.value,
        principal_filter=None, host_filter=None, operation=AclOperation.ANY.value, permission_type=AclPermissionType.ANY.value,
    )  # fmt: skip
    answer = client.connection(min(client.metadata(()).brokers)).request(everything)
    if answer.error_code:
        raise broker_error(answer.error_code, f"cluster {client.cluster.alias}: ACLs of topics")
    return {
        Acl(
            place.resource_name, ResourcePatternType(place.pattern_type).name, row.principal, row.host, AclOperation(row.operation).name,
            AclPermissionType(row.permission_type).name,
        )
        for place in answer.resources
        for row in place.acls
        if row.operation in _KNOWN
    }  # fmt: skip


def create_acls(admin: Admin, acls: Collection[Acl]) -> dict[Acl, BrokerError | None]:
    """Create ACLs; an error or None for each. One that is there already is left as it is. Raises ClusterUnreachable."""

    def start(client: Any, timeout: float, part: list[Acl]) -> Mapping[Acl, Future[Any]]:
        futures = client.create_acls([_binding(acl) for acl in part], request_timeout=timeout)
        return {_acl(binding): future for binding, future in futures.items()}

    return _in_parts(admin, acls, "create the ACL {}", start)


def delete_acls(admin: Admin, acls: Collection[Acl]) -> dict[Acl, BrokerError | None]:
    """Delete precisely these ACLs; an error or None for each. One that is not there is no error. Raises ClusterUnreachable."""

    def start(client: Any, timeout: float, part: list[Acl]) -> Mapping[Acl, Future[Any]]:
        futures = client.delete_acls([AclBindingFilter(*_fields(acl)) for acl in part], request_timeout=timeout)
        return {_acl(binding): future for binding, future in futures.items()}

    return _in_parts(admin, acls, "delete the ACL {}", start)


def _in_parts(
    admin: Admin, acls: Collection[Acl], said: str, start: Callable[[Any, float, list[Acl]], Mapping[Acl, Future[Any]]]
) -> dict[Acl, BrokerError | None]:
    ordered, answers = sorted(acls), dict[Acl, BrokerError | None]()
    for first in range(0, len(ordered), ACLS_TOGETHER):
        found = admin.ask(lambda acl: said.format(acl.words()), partial(_started, start, ordered[first : first + ACLS_TOGETHER]))
        answers |= {acl: answer if isinstance(answer, BrokerError) else None for acl, answer in found.items()}
    return answers


def _started(
    start: Callable[[Any, float, list[Acl]], Mapping[Acl, Future[Any]]], part: list[Acl], client: Any, timeout: float
) -> Mapping[Acl, Future[Any]]:
    return start(client, timeout, part)


def _acl(found: AclBinding | AclBindingFilter) -> Acl:
    pattern, operation = ResourcePatternType(found.resource_pattern_type), AclOperation(found.operation)
    return Acl(found.name, pattern.name, found.principal, found.host, operation.name, AclPermissionType(found.permission_type).name)


def _fields(acl: Acl) -> tuple[Any, ...]:
    pattern, operation, permission = ResourcePatternType[acl.pattern], AclOperation[acl.operation], AclPermissionType[acl.permission]
    return (ResourceType.TOPIC, acl.name, pattern, acl.principal, acl.host, operation, permission)


def _binding(acl: Acl) -> AclBinding:
    return AclBinding(*_fields(acl))
