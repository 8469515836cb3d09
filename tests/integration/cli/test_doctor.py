"""``mirror doctor`` on real clusters."""

from __future__ import annotations

from pathlib import Path

from mirror_pipeline import Mirror, load_config
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, write_config


def test_both_links_and_the_host_are_measured_and_nothing_stays_behind(clusters: ClusterPair, topic_name: str, tmp_path: Path) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name, 2)
    produce(east, topic_name, 20_000, partitions=2, size=500)
    report = make_mirror(tmp_path, east, west, [topic_name]).doctor(seconds=1.0)
    source, target = report.links
    assert (source.side, source.cluster, target.side, target.cluster) == ("source", "east", "target", "west")
    assert 0 < source.round_trip < 0.1 and 0 < target.round_trip < 0.1
    assert source.send_buffer and source.measured and source.bandwidth and source.predicted
    assert target.measured is None, "nothing is written to the target"
    assert {finding.what for finding in report.findings} == {"source east", "target west", "disk", "clock", "open files", "time zone"}
    assert [path for path in (tmp_path / "buffer").rglob("*") if path.is_file() and path.stat().st_size > 1 << 20] == []


def test_a_topic_without_records_and_a_cluster_that_is_down_are_said(clusters: ClusterPair, topic_name: str, tmp_path: Path) -> None:
    east = clusters[0].bootstrap_servers
    create_topic(east, topic_name)
    config = load_config(write_config(tmp_path, east, "127.0.0.1:1", [topic_name]))
    report = Mirror(config, "m").doctor(seconds=0.5)
    (source,) = report.links
    assert source.measured is None and source.expected is None
    (wrong,) = [finding for finding in report.findings if not finding.ok]
    assert wrong.what == "target west" and "cannot be reached" in wrong.detail
