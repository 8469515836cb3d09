"""Help for tests of failover and failback: a mirror and its reverse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mirror_pipeline import Mirror, load_config
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import write_config

IN_PROCESS: dict[str, Any] = {"inline_bytes": "1GB", "target_wait": "8s", "source_wait": "8s"}


def pair(folder: Path, clusters: ClusterPair, topic: str, naming: str = "prefix", **settings: Any) -> tuple[Mirror, Mirror]:
    """Mirror ``m`` from east to west, and ``back``, its reverse."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    path = write_config(folder, east, west, [topic], engine=IN_PROCESS, naming=naming, **settings)
    body = json.loads(path.read_text())
    back = {**body["mirrors"][0], "name": "back", "source": "west", "target": "east", "reverse_of": "m"}
    path.write_text(json.dumps({**body, "mirrors": [*body["mirrors"], back]}))
    config = load_config(path)
    return Mirror(config, "m"), Mirror(config, "back")


def states(mirror: Mirror) -> dict[str, str]:
    """The state of each topic after a run."""
    return {row.topic: row.state for row in mirror.run(once=True).topics}
