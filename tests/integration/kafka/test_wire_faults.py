"""Brokers that stop, hang and die under a connection: outcomes are unknown, and nothing is doubled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mirror_pipeline.errors import ClusterUnreachable, ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.fetch import fetch
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.model import TopicPartition
from tests.support.wire_tools import batch, new_topic, put, read_values, settings, stamped

LIMITS: dict[str, Any] = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20}


@pytest.mark.long
def test_a_broker_that_hangs_and_one_that_is_killed(cluster_factory: Callable[..., list[LocalCluster]]) -> None:
    (cluster,) = cluster_factory(brokers=1)  # nobody else may answer
    servers = cluster.bootstrap_servers
    tp = TopicPartition(new_topic(servers), 0)
    with WireClient(settings(servers), timeout=2.0) as impatient, WireClient(settings(servers), timeout=60.0) as client:
        stamp = client.init_producer_id()
        assert put(client, tp, batch([b"a"]), stamp, 0)[:2] == (0, 0)
        hung = impatient.connection(impatient.leader(tp))

        cluster.pause()
        send_produce(hung, {tp: stamped(batch([b"b"]), stamp, 1)}, timeout_ms=500)
        with pytest.raises(ConnectionLost, match="timed out"):
            receive_produce(hung)
        with pytest.raises(ClusterUnreachable, match="timed out"):
            impatient.metadata([tp.topic])
        cluster.resume()
        # The broker had the request in its socket: whether it was carried out shows when it is sent again.
        assert put(client, tp, batch([b"b"]), stamp, 1)[:2] == (0, 1)

        connection = client.connection(client.leader(tp))
        for i in range(2, 5):
            send_produce(connection, {tp: stamped(batch([b"%d" % i]), stamp, i)}, timeout_ms=20_000)
        cluster.kill()
        with pytest.raises(ConnectionLost):
            while connection.in_flight:  # the broker may have answered all of them before it died
                receive_produce(connection)
            send_produce(connection, {tp: stamped(batch([b"4"]), stamp, 4)}, timeout_ms=20_000)
            receive_produce(connection)
        with pytest.raises(ConnectionLost, match="refused"):
            client.connection(1)
        with pytest.raises(ClusterUnreachable, match="refused"):
            client.metadata([])

        cluster.start()
        for i in range(2, 5):
            assert put(client, tp, batch([b"%d" % i]), stamp, i)[:2] == (0, i)
    assert [value for _, value in read_values(cluster.bootstrap_servers, tp)] == [b"a", b"b", b"2", b"3", b"4"]


@pytest.mark.long
def test_one_broker_of_three_down(cluster_factory: Callable[..., list[LocalCluster]]) -> None:
    (cluster,) = cluster_factory()
    topic = new_topic(cluster.bootstrap_servers, partitions=6, replicas=1)  # a replica serves consumers, too (KIP-392)
    tps = [TopicPartition(topic, i) for i in range(6)]
    with WireClient(settings(cluster.bootstrap_servers), timeout=60.0) as client:
        stamp = client.init_producer_id()
        for tp in tps:
            assert put(client, tp, batch([b"x"]), stamp, 0)[:2] == (0, 0)
        leaders = {tp: client.leader(tp) for tp in tps}
        assert set(leaders.values()) == {1, 2, 3}
        assert {a.offset for a in client.list_offsets(dict.fromkeys(tps, -1)).values()} == {1}

        wrong = next(node for node in leaders.values() if node != leaders[tps[0]])
        assert fetch(client.connection(wrong), {tps[0]: (0, 1000)}, **LIMITS)[tps[0]].error == 6

        cluster.kill(node=3)
        answers = client.list_offsets(dict.fromkeys(tps, -1))
        for tp in tps:
            if leaders[tp] == 3:
                assert answers[tp].error in {5, 13}, answers[tp]
            else:
                assert (answers[tp].error, answers[tp].offset) == (0, 1)
        cluster.start()
        again = client.list_offsets(dict.fromkeys(tps, -1))
        assert {tp: (a.error, a.offset) for tp, a in again.items()} == dict.fromkeys(tps, (0, 1))
