"""A member of a share group (KIP-932), which neither client library of the tests can be: one heartbeat, written by hand."""

from __future__ import annotations

import socket
import struct
import uuid

from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.groups.group_client import GroupClient
from mirror_pipeline.local.shapes.ground import local_settings
from tests.integration.processes import wait_until

SHARE_GROUP_HEARTBEAT, VERSION = 76, 1
NULL, NO_TAGS = b"\0", b"\0"


def join_share_group(servers: str, group: str, topic: str) -> None:
    """Make the group exist by a member that joins it and is not heard of again."""
    with WireClient(local_settings(servers)) as client:
        groups = GroupClient(client)
        wait_until(lambda: group in groups.operations([group]) and group in groups._coordinators, 30, "a coordinator")
        address = client.metadata(()).brokers[groups._coordinators[group]]
    member = _text(str(uuid.uuid4()))
    body = _text(group) + member + struct.pack(">i", 0) + NULL + bytes((2,)) + _text(topic) + NO_TAGS
    head = struct.pack(">hhih", SHARE_GROUP_HEARTBEAT, VERSION, 1, 4) + b"test" + NO_TAGS
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            _, _, _, code = struct.unpack_from(">ibih", answer.read(size))
    assert code == 0, f"share group heartbeat: error {code}"


def _text(value: str) -> bytes:
    return bytes((len(value) + 1,)) + value.encode()
