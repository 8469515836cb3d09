"""A broker's log file in which one header is damaged: the mirror halts with the damaged offsets, and goes on where that is accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters, stop_clusters
from mirror_pipeline.local.shapes.ground import Ground, raw_batch
from tests.support.mirrors import create_topic, make_mirror, values

pytestmark = pytest.mark.long

BATCHES, DAMAGED = 10, 3
LAST_OFFSET_DELTA = 23 * 8  # its sign bit, which the checksum covers


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_damaged_header_halts_with_its_own_offsets(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, policy: str
) -> None:
    """One broker: with several, another replica would be asked."""
    (cluster,) = cluster_factory(names=["source"], brokers=1, heap="256m")
    (target,) = cluster_factory(names=["target"], brokers=1, heap="256m")
    create_topic(cluster.bootstrap_servers, "t", cleanup__policy=policy)
    ground = Ground(cluster.bootstrap_servers)
    size = 0
    for number in range(BATCHES):
        rows = [(1_700_000_000_000 + at, b"k%d" % at, b"v%d" % at, ()) for at in range(10 * number, 10 * number + 10)]
        batch = raw_batch(rows)
        ground.append("t", 0, batch)
        size += len(batch) if number < DAMAGED else 0
    ground.close()
    folder = cluster.directory.parent
    stop_clusters(folder, "source")
    segment = cluster.brokers[0].data / "t-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[size + LAST_OFFSET_DELTA // 8] ^= 0x80
    segment.write_bytes(data)
    (again,) = start_clusters(folder, names=["source"])
    mirror = make_mirror(tmp_path, again.bootstrap_servers, target.bootstrap_servers, ["t"], engine={"inline_bytes": "1GB"})
    report = mirror.run(once=True)
    assert [(topic.state, topic.code) for topic in report.topics] == [("halted", "corrupt")], report.topics
    (halt,) = mirror.halts()
    assert (halt.start, halt.end) == (30, 40)
    mirror.resolve("t", "corrupt")
    assert mirror.run(once=True).state == "ok"
    assert values(mirror, "east.t") == [f"v{at}" for at in [*range(30), *range(40, 100)]]
    assert [(gap.start, gap.end, gap.cause.value) for gap in mirror.gaps()] == [(30, 40, "quarantined")]
