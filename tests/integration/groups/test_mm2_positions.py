"""MirrorMaker's stored positions on a real cluster, without a MirrorMaker: the latest record of a key counts, a tombstone removes it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mirror_pipeline import Mirror
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.model import TopicPartition
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce

pytestmark = pytest.mark.long


@pytest.fixture
def mirror(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> Mirror:
    return make_mirror(tmp_path, clusters[0].bootstrap_servers, clusters[1].bootstrap_servers, [topic_name])


def store(servers: str, alias: str, records: list[tuple[object, object]]) -> str:
    """Write records as Connect does, each to the partition of its key."""
    topic = f"mm2-offsets.{alias}.internal"
    create_topic(servers, topic, 5, cleanup__policy="compact")
    producer = Producer({"bootstrap.servers": servers})
    for key, value in records:
        producer.produce(topic, None if value is None else json.dumps(value).encode(), json.dumps(key).encode())
    assert producer.flush(30) == 0
    return topic


def key(alias: str, partition: int) -> object:
    return ["MirrorSourceConnector", {"cluster": alias, "partition": partition, "topic": "t"}]


def test_the_latest_position_of_each_partition_counts(clusters: ClusterPair, mirror: Mirror) -> None:
    alias = uuid.uuid4().hex[:8]
    heartbeat = ["MirrorHeartbeatConnector", {"sourceClusterAlias": alias, "targetClusterAlias": "x"}]
    gone = [(key(alias, 2), {"offset": 5}), (key(alias, 2), None)]
    last = [(key(alias, 0), {"offset": 9}), (key(alias, 0), {"offset": 12}), (key(alias, 1), {"offset": 0})]
    store(clusters[1].bootstrap_servers, alias, [*gone, *last, (heartbeat, {"offset": 0}), (key("other", 0), {"offset": 77})])
    assert mirror.mm2_positions(alias) == {TopicPartition("t", 0): 13, TopicPartition("t", 1): 1}


def test_an_alias_that_mirrormaker_never_had_is_named(mirror: Mirror) -> None:
    with pytest.raises(UsageError, match=r"cluster west has no topic mm2-offsets\.nope\.internal") as caught:
        mirror.mm2_positions("nope")
    assert "mm2.properties" in caught.value.hint


def test_nothing_is_adopted_by_positions_that_are_not_understood_or_go_beyond_the_copy(
    clusters: ClusterPair, mirror: Mirror, topic_name: str
) -> None:
    """The copy is whole, but MirrorMaker's position says that there was more; and a topic that something else writes."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    for servers, topic in ((east, topic_name), (west, f"east.{topic_name}")):
        create_topic(servers, topic)
        produce(servers, topic, 10, at=1_700_000_000_000)
    ahead, strange = uuid.uuid4().hex[:8], uuid.uuid4().hex[:8]
    position = ["MirrorSourceConnector", {"cluster": ahead, "partition": 0, "topic": topic_name}]
    store(west, ahead, [(position, {"offset": 10})])
    store(west, strange, [({"no": "list"}, {"offset": 10})])
    with pytest.raises(ProblemFound, match=rf"beyond what east\.{topic_name} holds: {topic_name}\[0\] offset 10"):
        mirror.adopt(topic_name, mm2_alias=ahead)
    with pytest.raises(ProblemFound, match="is not a record of MirrorMaker 2"):
        mirror.adopt(topic_name, mm2_alias=strange)
    assert mirror.flow.lane_stores() == [] or mirror.offset_map() == ()
    assert mirror.adopt(topic_name).state == "adopted"  # by the data alone
