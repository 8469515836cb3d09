"""A refused login is an error of the configuration at a first contact, and passes on a cluster that has taken it before."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pipeline.config import ClusterSettings, Security
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConfigError, ConnectionLost, MirrorError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.security.access import LOGIN_CHANGED, taken_before
from mirror_pipeline.kafka.security.tls import TlsFailed
from tests.support.scripted_broker import closed_port

REFUSALS = [
    BrokerError(58, "SASL_AUTHENTICATION_FAILED", "b:1: authentication failed", hint="check the password"),
    BrokerError(33, "UNSUPPORTED_SASL_MECHANISM", "b:1: it offers PLAIN"),
    TlsFailed("b:1: TLS certificate not trusted"),
    ConfigError("secret file x is empty", hint="put the secret there"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_refusal_is_a_lost_connection(refusal: MirrorError) -> None:
    with pytest.raises(ConnectionLost) as caught, taken_before("b:1"):
        raise refusal
    assert caught.value.retryable and not caught.value.timed_out
    assert refusal.message in caught.value.message and caught.value.message.startswith("b:1: ")
    assert caught.value.hint == (refusal.hint if isinstance(refusal, ConfigError) else LOGIN_CHANGED)


@pytest.mark.parametrize("other", [ConnectionLost("b:1: timed out", timed_out=True), RuntimeError("no")])
def test_other_errors_pass(other: Exception) -> None:
    with pytest.raises(type(other)) as caught, taken_before("b:1"):
        raise other
    assert caught.value is other


def test_a_file_that_cannot_be_used_now_is_fatal_at_a_first_contact_only(tmp_path: Path) -> None:
    with closed_port() as port:
        cluster = ClusterSettings("east", (f"127.0.0.1:{port}",), Security(protocol="SSL", ca_file=str(tmp_path / "missing")))
        with pytest.raises(ConfigError, match="no such file"), WireClient(cluster) as first:
            first.metadata([])
        with pytest.raises(ClusterUnreachable, match="no such file"), WireClient(cluster, known=True) as later:
            later.metadata([])
