"""How many bytes wait in topics of which nothing was read: Spark is started for gigabytes, not for many small records."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.driver.topics import begin
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.model import LEAST_BYTES_PER_OFFSET, TopicPartition


@pytest.mark.long
@pytest.mark.parametrize(("record_bytes", "codec"), [(100, "none"), (100, "lz4"), (1000, "none"), (1000, "lz4")])
def test_a_look_at_the_first_batches(
    cluster_factory: Callable[..., list[LocalCluster]], monkeypatch: pytest.MonkeyPatch, record_bytes: int, codec: str
) -> None:
    (cluster,) = cluster_factory(1)
    topic = f"backlog-{record_bytes}-{codec}"
    fill_bulk(cluster.bootstrap_servers, topic, 3, 6_000_000, record_bytes, 16_384, codec, repeats=2)
    files = [log for broker in cluster.brokers for log in Path(broker.data).glob(f"{topic}-*/*.log")]
    logs = sum(log.stat().st_size for log in files) / (len(files) / 3)  # every replica is a file
    with closing(WireClient(ClusterSettings("east", tuple(cluster.bootstrap_servers.split(","))))) as client:
        parts = [TopicPartition(topic, number) for number in range(3)]
        begins, ends = (client.list_offsets(dict.fromkeys(parts, at)) for at in (EARLIEST_TIME, LATEST_TIME))
        bounds = {tp: (begins[tp].offset, ends[tp].offset) for tp in parts}
        offsets = sum(end - begin for begin, end in bounds.values())
        assert begin.backlog_bytes(client, bounds) == offsets * LEAST_BYTES_PER_OFFSET < logs
        monkeypatch.setattr(begin, "WORTH_A_LOOK", 1)
        assert 0.9 < begin.backlog_bytes(client, bounds) / logs < 1.1
        gone = {TopicPartition("no-such-topic", 0): (0, 1000)}
        assert begin.backlog_bytes(client, gone) == 1000 * LEAST_BYTES_PER_OFFSET
