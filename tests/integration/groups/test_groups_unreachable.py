"""Groups while a cluster does not answer: what was last seen on the source is carried over as its records arrive."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place

from mirror_pipeline import Mirror
from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import ClusterUnreachable
from tests.support.groups import commit, committed, mirror_of, rows
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, nowhere, produce

pytestmark = pytest.mark.long

IMPATIENT = {"inline_bytes": "1GB", "target_wait": "3s", "source_wait": "3s", "request_timeout": "3s"}


@pytest.fixture
def prefix(topic_name: str) -> str:
    return f"{topic_name}-"


def staged(clusters: ClusterPair, folder: Path, prefix: str) -> Mirror:
    """A mirror with 100 records on the target, 50 in the buffer, and a group that committed 140 while only the source was there."""
    east = clusters[0].bootstrap_servers
    topic, group = f"{prefix}t", f"{prefix}g"
    create_topic(east, topic)
    produce(east, topic, 100)
    commit(east, group, {Place(topic, 0): 30})
    mirror = mirror_of(clusters, folder, prefix, engine=IMPATIENT)
    assert mirror.run(once=True).state == "ok"
    assert rows(mirror, group)[0].target_offset == 30
    produce(east, topic, 50, start=100)
    commit(east, group, {Place(topic, 0): 140}, metadata="left by the consumer")
    here, mirror.flow.target = mirror.flow.target, nowhere(mirror.flow.target)
    with pytest.raises(ClusterUnreachable) as caught:
        mirror.run(once=True)
    assert caught.value.cluster == "west"
    mirror.flow.target = here
    return mirror


@pytest.mark.parametrize("drain", [False, True], ids=["run", "drain"])
def test_what_was_seen_last_is_carried_over_without_the_source(
    clusters: ClusterPair, tmp_path: Path, prefix: str, drain: bool
) -> None:
    west, group = clusters[1].bootstrap_servers, f"{prefix}g"
    mirror = staged(clusters, tmp_path, prefix)
    place = (f"east.{prefix}t", 0)
    assert committed(west, group)[place] == (30, ""), "the record is not there yet"
    mirror.flow.source = nowhere(mirror.flow.source)
    if drain:
        assert mirror.run(drain=True).records == 50
    else:
        with pytest.raises(ClusterUnreachable) as caught:
            mirror.run(once=True)
        assert caught.value.cluster == "east"
    assert committed(west, group)[place] == (140, "left by the consumer")
    report = mirror.groups()
    assert [(row.source_offset, row.target_offset, row.state) for row in report.groups] == [(140, 140, "in_step")]
    (note,) = report.notes
    assert note.startswith("cluster east unreachable since 20") and report.source_down_since is not None
    if not drain:
        assert mirror.undelivered().source_down_since is not None


def test_lag_says_since_when_the_source_is_unreachable(
    clusters: ClusterPair, tmp_path: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same time in a second run, and none once the source has answered."""
    mirror = staged(clusters, tmp_path, prefix)
    there, mirror.flow.source = mirror.flow.source, nowhere(mirror.flow.source)
    with pytest.raises(ClusterUnreachable):
        mirror.run(once=True)
    since = mirror.undelivered().source_down_since
    assert since is not None
    assert mirror.run(drain=True).state == "ok"
    assert mirror.undelivered().source_down_since == since
    path = tmp_path / "mirror.yaml"
    address = clusters[0].bootstrap_servers.split(",")
    text = path.read_text()
    for one in address:
        text = text.replace(one, mirror.flow.source.bootstrap_servers[0])
    path.write_text(text)
    capsys.readouterr()
    assert main(["lag", "-c", str(path)]) == 3
    assert "source unreachable since 20" in capsys.readouterr().out.replace("\n", " ")
    mirror.flow.source = there
    assert mirror.run(once=True).state == "ok"
    assert mirror.undelivered().source_down_since is None


def test_a_source_that_never_answered_is_an_error(clusters: ClusterPair, tmp_path: Path, prefix: str) -> None:
    mirror = mirror_of(clusters, tmp_path, prefix, engine=IMPATIENT)
    mirror.flow.source = nowhere(mirror.flow.source)
    with pytest.raises(ClusterUnreachable):
        mirror.groups()
