"""Client quotas on both clusters (KIP-13, KIP-219): everything takes longer, and nothing fails."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline.local.embedded.start import LocalCluster
from tests.integration.processes import kill_tree, start_mirror
from tests.support.mirrors import assert_identical, create_topic, make_mirror, produce, write_config
from tests.support.quotas import set_quotas

pytestmark = pytest.mark.long

SECONDS = 500
INLINE = {"inline_bytes": "512MB", "request_timeout": "30s"}


def ended(config: Path, *arguments: str) -> int:
    process = start_mirror(config, *arguments)
    try:
        return process.wait(SECONDS)
    finally:
        kill_tree(process)


def test_a_crash_is_mended_and_verified_under_quotas_of_both_clusters(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent and not written down is read back from the target's log, slowly; then compared, slowly."""
    source, target = cluster_factory(names=["east", "west"], heap="256m")
    east, west = source.bootstrap_servers, target.bootstrap_servers
    create_topic(east, "t", 2)
    produce(east, "t", 8000, partitions=2, size=1000)
    config = write_config(tmp_path, east, west, ["t"], engine=INLINE)
    monkeypatch.setenv("MIRROR_CRASH_AT", "record.before")
    assert ended(config, "run", "--once") == -signal.SIGKILL
    monkeypatch.delenv("MIRROR_CRASH_AT")
    set_quotas(west, {"consumer_byte_rate": 300_000.0, "producer_byte_rate": 300_000.0})
    set_quotas(east, {"consumer_byte_rate": 1_000_000.0})
    produce(east, "t", 1000, partitions=2, start=8000, size=1000)
    errors = tmp_path / "stderr.txt"
    assert ended(config, "run", "--once") == 0, errors.read_text()[-2000:]
    assert ended(config, "verify", "--mirror", "m") == 0, errors.read_text()[-2000:]
    produce(east, "t", 100, partitions=2, start=9000, size=1000)
    assert ended(config, "lag", "--mirror", "m") == 0, errors.read_text()[-2000:]
    set_quotas(west, {"consumer_byte_rate": None, "producer_byte_rate": None})
    set_quotas(east, {"consumer_byte_rate": None})
    assert ended(config, "run", "--once") == 0, errors.read_text()[-2000:]
    assert_identical(make_mirror(tmp_path, east, west, ["t"], engine=INLINE), ["t"])
