"""Brokers that have IPv6 addresses only, and advertise them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline.local.embedded import cluster, ports, settings
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")
@pytest.mark.long
def test_a_mirror_between_ipv6_addresses(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "HOST", "[::1]")
    monkeypatch.setattr(cluster, "HOST", "[::1]")
    monkeypatch.setattr(ports, "HOST", "::1")
    monkeypatch.setattr(cluster, "free_port", lambda taken=(): _free_port())
    source, target = (made.bootstrap_servers for made in cluster_factory(2, brokers=1))  # what a broker advertises is the same for three
    assert source.startswith("[::1]:")
    create_topic(source, topic_name, 2)
    produce(source, topic_name, 100, partitions=2)
    mirror = make_mirror(tmp_path, source, target, [topic_name])
    assert all(finding.ok for finding in mirror.check())
    report = mirror.run(once=True)
    assert (report.state, report.records) == ("ok", 100)
    assert_identical(mirror, [topic_name])
