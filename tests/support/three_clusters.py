"""Help for tests of several mirrors between three clusters of one broker each."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.support.groups import consumer

Trio = dict[str, LocalCluster]
"""Clusters by alias: east, west and north."""
ENGINE = {"inline_bytes": "1TB", "request_timeout": "5s", "source_wait": "10s", "target_wait": "10s"}


def mirrors_of(folder: Path, trio: Trio, *mirrors: Mapping[str, Any]) -> dict[str, Mirror]:
    """The mirrors of one file by name; one without a name is called ``east-west`` after its clusters."""
    named = [{"name": f"{each['source']}-{each['target']}", **each} for each in mirrors]
    clusters = {alias: {"bootstrap_servers": cluster.bootstrap_servers} for alias, cluster in trio.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mirror.yaml"
    path.write_text(json.dumps({"clusters": clusters, "buffer": {"uri": "./buffer"}, "engine": ENGINE, "mirrors": named}))
    config = load_config(path)
    return {str(each["name"]): Mirror(config, str(each["name"])) for each in named}


def flow(source: str, target: str, include: str, **settings: Any) -> dict[str, Any]:
    """A mirror of a file; keys of ``topics`` other than ``include`` are given as ``topics``."""
    return {"source": source, "target": target, **settings, "topics": {"include": [include], **settings.get("topics", {})}}


def copied(mirrors: Mapping[str, Mirror], *names: str) -> dict[str, dict[str, int]]:
    """Run mirrors once, one after the other; the records of each topic that each one copied, without halted ones."""
    found: dict[str, dict[str, int]] = {}
    for name in names or mirrors:
        report = mirrors[name].run(once=True)
        assert [(row.topic, row.code, row.reason) for row in report.topics if row.state != "ok"] == []
        found[name] = {row.topic: row.records for row in report.topics}
    return found


def read_by_regex(cluster: LocalCluster, pattern: str, count: int, *, group: str, quiet: float = 1.0) -> Counter[str]:
    """The values that a consumer subscribed to a regex reads: until ``count`` have come and then nothing for ``quiet`` seconds.

    It gives up after a minute without a record.
    """
    client = consumer(cluster.bootstrap_servers, group, **{"topic.metadata.refresh.interval.ms": 500})
    client.subscribe([f"^{pattern}$"])
    found: Counter[str] = Counter()
    last = time.monotonic()
    try:
        while time.monotonic() - last < (60 if found.total() < count else quiet):
            message = client.poll(0.2)
            if message is not None and message.error() is None:
                found[(message.value() or b"").decode().rstrip(".")] += 1
                last = time.monotonic()
        client.commit(asynchronous=False)
    finally:
        client.close()
    return found


def expected(*ranges: Sequence[int]) -> Counter[str]:
    """Every value of these numbers once, as :func:`tests.support.mirrors.produce` writes them."""
    return Counter(f"value-{number}" for numbers in ranges for number in numbers)
