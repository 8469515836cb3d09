"""Which requests we speak in which versions, their headers, and kafka-python's schemas for the cold ones."""

from __future__ import annotations

import os
import struct
import sys
from enum import IntEnum
from typing import Any, NamedTuple

from kafka.protocol.admin import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeAclsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeGroupsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse

from mirror_pipeline.errors import UsageError

__all__ = [
    "CHANGES",
    "OPENING_APIS",
    "SPOKEN",
    "Api",
    "ApiVersionsRequest",
    "DeleteTopicsRequest",
    "DescribeClusterRequest",
    "DescribeProducersRequest",
    "InitProducerIdRequest",
    "ListOffsetsRequest",
    "MetadataRequest",
    "OffsetForLeaderEpochRequest",
    "SaslAuthenticateRequest",
    "SaslHandshakeRequest",
    "Versions",
    "decode",
    "encode",
    "header",
    "reply_header_size",
]


if sys.flags.optimize:  # its decoders read inside assert statements
    raise UsageError("Python runs without assertions (-O), under which kafka-python misreads answers", hint="unset PYTHONOPTIMIZE")


class Api(IntEnum):
    """Request keys of the Kafka protocol that this project sends."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    WRITE_TXN_MARKERS = 27
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_ACLS = 29
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61


class Versions(NamedTuple):
    """Lowest and highest version we speak, and the first with flexible headers (KIP-482)."""

    lowest: int
    highest: int
    flexible: int


NEVER = 1 << 15
# Produce and Fetch name topics by id where the broker can (4.1 and 3.1): a topic of the same name elsewhere is never meant. Tests turn
# this off, to run what older brokers get.
BY_TOPIC_ID = os.environ.get("MIRROR_TOPIC_IDS", "on") != "off"
# What opens a connection, or tells itself whose broker answers; and what changes a cluster, and waits until that is known.
OPENING_APIS = frozenset((Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE, Api.METADATA))
CHANGES = frozenset((Api.PRODUCE, Api.OFFSET_COMMIT, Api.DELETE_TOPICS, Api.INIT_PRODUCER_ID, Api.WRITE_TXN_MARKERS))

SPOKEN: dict[int, Versions] = {
    Api.PRODUCE: Versions(3, 13 if BY_TOPIC_ID else 8, 9),  # v3: RecordBatch v2; v9 to v12 add nothing that we need; v13: by topic id
    Api.FETCH: Versions(4, 13 if BY_TOPIC_ID else 11, 12),  # v4: isolation level; v12 adds nothing that we need; v13: by topic id
    Api.LIST_OFFSETS: Versions(2, 7, 6),  # v2: isolation level; v7: -3 is the newest timestamp
    Api.METADATA: Versions(7, 12, 9),  # v7: leader epochs; v10: topic ids
    Api.OFFSET_COMMIT: Versions(8, 8, 8),  # from v10 by topic id; v9 is for members of the new protocol; written by hand, as v8 only
    Api.OFFSET_FETCH: Versions(8, 8, 6),  # v8: many groups at once; from v10 by topic id
    Api.FIND_COORDINATOR: Versions(4, 4, 3),  # v4: many groups at once
    Api.DESCRIBE_GROUPS: Versions(5, 5, 5),  # v3: what we may do; v6 calls a group that does not exist an error
    Api.LIST_GROUPS: Versions(4, 5, 3),  # v4: states; v5: kinds of groups
    Api.SASL_HANDSHAKE: Versions(1, 1, NEVER),  # v1: tokens travel in SaslAuthenticate
    Api.API_VERSIONS: Versions(0, 3, 3),
    Api.DELETE_TOPICS: Versions(6, 6, 4),  # v6: by topic id
    Api.INIT_PRODUCER_ID: Versions(0, 4, 2),
    Api.WRITE_TXN_MARKERS: Versions(1, 1, 1),  # v2 wants a transaction version; written by hand
    Api.OFFSET_FOR_LEADER_EPOCH: Versions(2, 4, 4),  # v2: current leader epoch, allowed to consumers (KIP-320)
    Api.DESCRIBE_ACLS: Versions(1, 3, 2),  # v1: prefixed patterns
    Api.DESCRIBE_CONFIGS: Versions(1, 2, 4),  # v1: where a value comes from; from v3 with its type and a text; written by hand
    Api.SASL_AUTHENTICATE: Versions(0, 2, 2),  # v1: session lifetime
    Api.DESCRIBE_CLUSTER: Versions(2, 2, 0),  # v2: brokers that are down (KIP-1073)
    Api.DESCRIBE_PRODUCERS: Versions(0, 0, 0),
}

_RESPONSES: dict[int, Any] = {
    Api.LIST_OFFSETS: ListOffsetsResponse,
    Api.METADATA: MetadataResponse,
    Api.OFFSET_COMMIT: OffsetCommitResponse,
    Api.OFFSET_FETCH: OffsetFetchResponse,
    Api.FIND_COORDINATOR: FindCoordinatorResponse,
    Api.DESCRIBE_GROUPS: DescribeGroupsResponse,
    Api.LIST_GROUPS: ListGroupsResponse,
    Api.SASL_HANDSHAKE: SaslHandshakeResponse,
    Api.API_VERSIONS: ApiVersionsResponse,
    Api.DELETE_TOPICS: DeleteTopicsResponse,
    Api.INIT_PRODUCER_ID: InitProducerIdResponse,
    Api.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochResponse,
    Api.DESCRIBE_ACLS: DescribeAclsResponse,
    Api.SASL_AUTHENTICATE: SaslAuthenticateResponse,
    Api.DESCRIBE_CLUSTER: DescribeClusterResponse,
    Api.DESCRIBE_PRODUCERS: DescribeProducersResponse,
}

_HEADER = struct.Struct(">ihhih")


def header(body_size: int, api: int, version: int, correlation_id: int, client_id: bytes) -> bytes:
    """The frame size and request header (v1, or v2 with its empty tag section) in front of a body."""
    tags = b"\0" if version >= SPOKEN[api].flexible else b""
    size = 10 + len(client_id) + len(tags) + body_size
    return _HEADER.pack(size, api, version, correlation_id, len(client_id)) + client_id + tags


def reply_header_size(api: int, version: int) -> int:
    """Bytes between frame size and body: correlation id, and the tag section of flexible versions but ApiVersions."""
    return 5 if version >= SPOKEN[api].flexible and api != Api.API_VERSIONS else 4


def encode(message: Any, version: int) -> bytes:
    """The body of a kafka-python request."""
    return bytes(message.encode(version=version))


def decode(api: int, version: int, body: memoryview) -> Any:
    """A kafka-python response, independent of the buffer it came in."""
    return _RESPONSES[api].decode(bytes(body), version=version)
