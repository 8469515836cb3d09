"""Little is verified in this process: no Java is started, and none is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import flow
from mirror_pipeline.errors import UsageError
from mirror_pipeline.verify.external import verify_external
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce


def test_a_small_copy_is_made_and_verified_without_java(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java(*_: Any, **__: Any) -> Any:
        raise UsageError("no Java was found")

    monkeypatch.setattr(flow, "find_java", no_java)
    monkeypatch.setattr(flow, "build_context", no_java)
    monkeypatch.setattr("mirror_pipeline.verify.external.build_context", no_java)
    topic = new_topic_name()
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic, 3)
    produce(east, topic, 3000, partitions=3)
    mirror = make_mirror(tmp_path, east, west, [topic], engine={"inline_bytes": str(2**63 - 1)})
    assert mirror.run(once=True).records == 3000
    report = mirror.verify()
    assert (report.ok, report.records) == (True, 3000)
    assert mirror.repair(topic).ok
    assert verify_external(mirror.flow.config, "east", "west", {topic: f"east.{topic}"}).ok
    produce(west, f"east.{topic}", 1, start=7)  # and differences are found
    assert [difference.kind for difference in mirror.verify().differences] == ["extra"]
