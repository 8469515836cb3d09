"""Two scripted brokers that form a cluster."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid

from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.metadata import MetadataResponse

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.model import TopicPartition
from tests.support.scripted_broker import Request, negotiate, read_request, reply

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
KIND = MetadataResponse.MetadataResponseTopic


class Cluster:
    """Brokers 1 and 2; a silent one accepts connections and says nothing. ``leaders``: node and epoch by partition."""

    def __init__(self) -> None:
        self.leaders = {0: (1, 5), 1: (2, 5)}
        self.silent: set[int] = set()
        self.asked: list[tuple[int, int]] = []
        self.over = threading.Event()
        self.listeners = {node: socket.create_server(("127.0.0.1", 0)) for node in (1, 2)}
        self.topic_id = uuid.UUID(int=9)

    @property
    def settings(self) -> ClusterSettings:
        return ClusterSettings("east", tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in self.listeners.values()))

    def serve(self, node: int) -> None:
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                connected, _ = self.listeners[node].accept()
                threading.Thread(target=self.talk, args=(node, connected), daemon=True).start()

    def talk(self, node: int, connected: socket.socket) -> None:
        with connected, contextlib.suppress(EOFError, OSError):
            self.wait(node)
            negotiate(connected)
            while not self.over.is_set():
                request = read_request(connected)
                self.asked.append((node, request.api))
                self.wait(node)
                self.answer(node, connected, request)

    def answer(self, node: int, connected: socket.socket, request: Request) -> None:
        connected.sendall(self.metadata(request) if request.api == Api.METADATA else self.offsets(node, request))

    def wait(self, node: int) -> None:
        while node in self.silent and not self.over.wait(0.02):
            pass

    def metadata(self, request: Request) -> bytes:
        broker = MetadataResponse.MetadataResponseBroker
        brokers = [broker(node_id=n, host="127.0.0.1", port=each.getsockname()[1], rack=None) for n, each in self.listeners.items()]
        parts = [
            KIND.MetadataResponsePartition(
                partition_index=number, error_code=5 if node < 0 else 0, leader_id=node, leader_epoch=epoch, replica_nodes=[1, 2],
                isr_nodes=[1], offline_replicas=[],
            )
            for number, (node, epoch) in self.leaders.items()
        ]  # fmt: skip
        topic = KIND(error_code=0, name="t", topic_id=self.topic_id, is_internal=False, partitions=parts)
        answer = MetadataResponse(brokers=brokers, cluster_id="id", controller_id=1, topics=[topic])
        return reply(request, answer.encode(version=request.version), tags=b"\0")

    def offsets(self, node: int, request: Request) -> bytes:
        kind = ListOffsetsResponse.ListOffsetsTopicResponse
        parts = [
            kind.ListOffsetsPartitionResponse(partition_index=number, error_code=0, timestamp=-1, offset=100 + node, leader_epoch=5)
            for number, (leader, _) in self.leaders.items() if leader == node
        ]  # fmt: skip
        answer = ListOffsetsResponse(topics=[kind(name="t", partitions=parts)])
        return reply(request, answer.encode(version=request.version), tags=b"\0")
