"""Source and target that are one cluster: refused in one sentence, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.errors import UsageError
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.shapes.ground import local_settings
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, write_config

ONE = "clusters east and west are one cluster"


def addresses(servers: str) -> str:
    """The same brokers under another name of this host."""
    return servers.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("naming", ["prefix", "identity"])
def test_one_cluster_is_refused_by_check_plan_and_run(clusters: ClusterPair, tmp_path: Path, topic_name: str, naming: str) -> None:
    servers = clusters[0].bootstrap_servers
    create_topic(servers, topic_name)
    if naming == "prefix":
        produce(servers, topic_name, 10)
    mirror = make_mirror(tmp_path, servers, addresses(servers), [f".*{topic_name}"], naming=naming, engine={"inline_bytes": "1GB"})
    (refusal,) = [finding.detail for finding in mirror.check() if not finding.ok]
    assert refusal.startswith(ONE)
    (row,) = mirror.plan().topics
    assert ONE in row.blockers[0]
    for _ in range(2):
        with pytest.raises(UsageError, match=ONE):
            mirror.run(once=True)
    with WireClient(local_settings(servers)) as client:
        names = {name for name in client.metadata(None).topics if topic_name in name}
    assert names == {topic_name}


def test_a_loop_over_two_names_of_one_cluster_is_seen(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    a, b = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(a, topic_name)
    produce(a, topic_name, 10)
    body: dict[str, Any] = {
        "clusters": {"east": {"bootstrap_servers": a}, "west": {"bootstrap_servers": b}, "again": {"bootstrap_servers": addresses(a)}},
        "engine": {"inline_bytes": "1GB"},
    }
    path = write_config(tmp_path, a, b, [topic_name], naming="identity", **body)
    text = path.read_text()
    back = '{"name": "back", "source": "west", "target": "again", "naming": "identity", "topics": {"include": [".*"]}}'
    path.write_text(text.rstrip().removesuffix("}").rstrip().removesuffix("]") + f", {back}]}}")
    with pytest.raises(UsageError, match="would loop forever: m -> back -> m"):
        Mirror(load_config(path), "m").run(once=True)
