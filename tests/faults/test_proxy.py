"""The proxy does what its rules say: seen from the client, and from the broker's log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.produce import receive_produce, send_produce
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.model import TopicPartition
from tests.support.proxy import FETCH, PRODUCE, Harm, Rule
from tests.support.proxy_cluster import proxied_cluster
from tests.support.wire_tools import batch, new_topic, read_values, settings, stamped

TIMEOUT = 2.0
LOSING = {
    Harm.CUT_BEFORE: False, Harm.CUT_REQUEST_MIDDLE: False,
    Harm.CUT_AFTER: True, Harm.CUT_RESPONSE_MIDDLE: True, Harm.DROP_RESPONSE: True,
}  # fmt: skip
"""Whether the broker has carried out the request whose answer is lost."""


def test_every_harm_is_done_and_only_once(own_clusters: Callable[[LocalCluster], None], tmp_path: Path) -> None:
    kafka = proxied_cluster(tmp_path / "kafka", seed=1, brokers=1)  # so that it is known which proxy a rule meets
    (front,) = kafka.proxy.each
    own_clusters(kafka.cluster)
    tp = TopicPartition(new_topic(kafka.direct), 0)
    there: list[bytes] = []
    with WireClient(settings(kafka.via), timeout=TIMEOUT) as client:
        stamp = client.init_producer_id()

        def attempt(value: bytes) -> int:
            connection = client.connection(client.leader(tp))
            send_produce(connection, {tp: stamped(batch([value]), stamp, len(there))}, timeout_ms=500)
            return receive_produce(connection)[tp].error

        def send(value: bytes) -> None:
            assert attempt(value) == 0
            there.append(value)

        send(b"first")
        for harm, carried_out in LOSING.items():
            kafka.proxy.arm(Rule(harm, FETCH))
            rule = kafka.proxy.arm(Rule(harm, PRODUCE))
            with pytest.raises(ConnectionLost):
                attempt(harm.encode())
            assert rule.fired.wait(TIMEOUT)
            time.sleep(0.1)  # what was forwarded is being carried out
            there += [harm.encode()] if carried_out else []
            assert [value for _, value in read_values(kafka.direct, tp)] == there, harm
            send(b"after " + harm.encode())
        for harm in (Harm.DUPLICATE, Harm.REPLAY):
            rule = kafka.proxy.arm(Rule(harm, PRODUCE, seconds=0.1))
            send(harm.encode())
            assert rule.fired.wait(TIMEOUT)
            send(b"after " + harm.encode())
        for harm in (Harm.DELAY_REQUEST, Harm.DELAY_RESPONSE):
            rule = kafka.proxy.arm(Rule(harm, PRODUCE, seconds=0.5))
            began = time.monotonic()
            send(harm.encode())
            assert rule.fired.is_set() and time.monotonic() - began >= 0.5
        kafka.proxy.arm(Rule(Harm.THROTTLE, PRODUCE, seconds=1.0, rate=100))
        send(b"throttled")
        front.refusing.set()
        kafka.proxy.cut_all()
        with pytest.raises(ConnectionLost):
            attempt(b"refused")
        front.refusing.clear()
        send(b"last")
    assert [value for _, value in read_values(kafka.direct, tp)] == there
    kafka.proxy.close()
