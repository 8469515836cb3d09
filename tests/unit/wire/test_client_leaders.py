"""Leaders of many partitions in one question, and brokers that are silent: what they cost those that are not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.metadata import MetadataResponse

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.messages import Api
from mirror_pipeline.model import TopicPartition
from tests.unit.wire.scripted_broker import Request, negotiate, read_request, reply

pytestmark = pytest.mark.timeout(60)
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


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    for node in made.listeners:
        threading.Thread(target=made.serve, args=(node,), daemon=True).start()
    yield made
    made.over.set()
    for listener in made.listeners.values():
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def count(cluster: Cluster, api: int) -> int:
    return sum(1 for _, asked in cluster.asked if asked == api)


def test_leaders_of_all_partitions_are_one_question(cluster: Cluster) -> None:
    many = {number: (-1, 5) for number in range(2, 50)}
    cluster.leaders |= many
    with WireClient(cluster.settings) as client:
        leaders, errors = client.leaders([TopicPartition("t", number) for number in range(50)], patience=0)
    assert (leaders, {tp.partition for tp in errors}) == ({FIRST: 1, SECOND: 2}, set(many))
    assert {error.code for error in errors.values()} == {5} and count(cluster, Api.METADATA) == 1


def test_those_without_a_leader_share_one_patience(cluster: Cluster) -> None:
    cluster.leaders = {number: (-1, 5) for number in range(20)}
    began = time.monotonic()
    with WireClient(cluster.settings) as client:
        _, errors = client.leaders([TopicPartition("t", number) for number in range(20)], patience=0.5)
    assert len(errors) == 20 and time.monotonic() - began < 10


def test_a_broker_that_has_not_heard_of_the_last_change_does_not_name_the_leader(cluster: Cluster) -> None:
    with WireClient(cluster.settings) as client:
        client.leaders([FIRST])
        cluster.leaders[0] = (2, 4)
        client.metadata(["t"])
        assert client.leader(FIRST) == 1
        cluster.leaders[0] = (2, 6)
        client.metadata(["t"])
        assert client.leader(FIRST) == 2
        cluster.topic_id, cluster.leaders[0] = uuid.UUID(int=10), (1, 0)
        client.metadata(["t"])
        assert client.leader(FIRST) == 1, "a new topic of that name begins with its own epochs"


def test_a_silent_leader_is_waited_for_once_and_named(cluster: Cluster) -> None:
    with WireClient(cluster.settings) as client:
        client.list_offsets({FIRST: -1, SECOND: -1})
        cluster.silent = {2}
        answers = client.list_offsets({FIRST: -1, SECOND: -1}, within=0.3)
        assert (answers[FIRST].offset, answers[FIRST].error, answers[SECOND].error) == (101, 0, 13)
        assert list(client.take_silent()) == [2] and client.take_silent() == {}


def test_brokers_to_avoid_are_asked_nothing(cluster: Cluster) -> None:
    with WireClient(cluster.settings) as client:
        client.leaders([FIRST, SECOND])
        cluster.silent = {1}
        client.avoid({1})
        cluster.asked.clear()
        answers = client.list_offsets({FIRST: -1, SECOND: -1}, within=5.0)
        client.metadata(["t"])
    assert (answers[FIRST].error, answers[SECOND].offset) == (13, 102)
    assert {node for node, _ in cluster.asked} == {2}


def test_metadata_is_told_by_another_when_the_last_one_falls_silent(cluster: Cluster) -> None:
    with WireClient(cluster.settings, timeout=30.0) as client:
        client.metadata([])
        cluster.silent = {1}
        cluster.asked.clear()
        assert client.metadata(["t"]).topics["t"].partitions
        client.metadata(["t"])
    assert cluster.asked == [(1, Api.METADATA), (2, Api.METADATA), (2, Api.METADATA)]


def test_a_broker_that_does_not_open_is_named_as_silent(cluster: Cluster) -> None:
    with WireClient(cluster.settings) as client:
        client.leaders([FIRST, SECOND])
        cluster.silent = {2}
        with pytest.raises(ConnectionLost) as caught:
            client.connection(2, 7, within=0.3)
        assert caught.value.timed_out and list(client.take_silent()) == [2]
