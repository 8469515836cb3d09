"""Leaders of many partitions in one question, and brokers that are silent: what they cost those that are not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.wire.messages import Api
from mirror_pipeline.model import TopicPartition
from tests.support.scripted_cluster import FIRST, SECOND, Cluster

pytestmark = pytest.mark.timeout(60)




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


def test_a_leader_that_is_lost_while_another_one_is_looked_up(cluster: Cluster) -> None:
    """One metadata response renews all partitions of a topic, also those whose leader was cached."""
    with WireClient(cluster.settings) as client:
        for ask in ("leaders", "list_offsets"):
            cluster.leaders[0] = (1, 9)
            client.forget(FIRST)
            assert client.leaders([FIRST, SECOND])[1] == {}
            client.forget(SECOND)
            cluster.leaders[0] = (-1, 9)
            if ask == "leaders":
                leaders, errors = client.leaders([FIRST, SECOND], patience=0)
                assert (leaders, set(errors)) == ({SECOND: 2}, {FIRST})
            else:
                answers = client.list_offsets({FIRST: -1, SECOND: -1}, within=0.3)
                assert answers[FIRST].error and not answers[SECOND].error


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


def test_who_follows_another_client_asks_neither_for_leaders_nor_for_ids(cluster: Cluster) -> None:
    with WireClient(cluster.settings) as first, WireClient(cluster.settings, known=True) as second:
        first.leaders([FIRST, SECOND])
        asked = len(cluster.asked)
        second.follow(first.routes())
        assert second.leaders([FIRST, SECOND]) == ({FIRST: 1, SECOND: 2}, {})
        assert second.routes() == first.routes()
        assert len(cluster.asked) == asked
        assert second.connection(1).version(Api.FETCH), "it knows the address"
