"""Metadata responses for a scripted broker."""

from __future__ import annotations

import socket
import uuid

from kafka.protocol.metadata import MetadataResponse

from tests.support.scripted_broker import Request, reply


def serve_metadata(
    connected: socket.socket, request: Request, topics: list[object], port: int = 9092, *, cluster_id: str = "id"
) -> None:
    broker = MetadataResponse.MetadataResponseBroker(node_id=4, host="127.0.0.1", port=port, rack=None)
    response = MetadataResponse(brokers=[broker], cluster_id=cluster_id, controller_id=4, topics=topics)
    connected.sendall(reply(request, response.encode(version=request.version), tags=b"\0"))


def topic(name: str, error: int, leader: int = -1, part_error: int = 0, topic_id: uuid.UUID | None = None) -> object:
    kind = MetadataResponse.MetadataResponseTopic
    part = kind.MetadataResponsePartition(
        partition_index=0, error_code=part_error, leader_id=leader, leader_epoch=7, replica_nodes=[4, 5], isr_nodes=[4], offline_replicas=[]
    )
    return kind(error_code=error, name=name, topic_id=topic_id or uuid.UUID(int=0), is_internal=False, partitions=[] if error else [part])
