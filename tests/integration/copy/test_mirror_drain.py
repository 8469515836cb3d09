"""The source is gone, or one of its topics is: what is staged still reaches the target, and how far it is is said."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.spans.spans import SpanTable
from mirror_pipeline.cli.main import main
from mirror_pipeline.errors import ClusterUnreachable, UsageError
from mirror_pipeline.local.embedded.start import LocalCluster
from mirror_pipeline.reports import RunReport
from tests.integration.processes import wait_until
from tests.support.deleted_topics import delete_everywhere
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, make_mirror, nowhere, produce, values

pytestmark = pytest.mark.long

IN_PROCESS: dict[str, Any] = {"inline_bytes": "1GB", "target_wait": "8s", "source_wait": "8s"}


def staged(folder: Path, clusters: ClusterPair, topics: list[str], engine: dict[str, Any], session: SparkSession | None = None) -> Mirror:
    """A mirror with 100 records of each topic on the target and 50 more in the buffer."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    for topic in topics:
        create_topic(east, topic)
        produce(east, topic, 100)
    mirror = make_mirror(folder, east, west, topics, engine=engine)
    assert mirror.run(once=True, session=session).state == "ok"
    for topic in topics:
        produce(east, topic, 50, start=100)
    here, mirror.flow.target = mirror.flow.target, nowhere(mirror.flow.target)
    with pytest.raises(ClusterUnreachable) as caught:
        mirror.run(once=True, session=session)
    assert caught.value.cluster == "west"
    mirror.flow.target = here
    assert mirror.status().staged_records == 50 * len(topics)
    return mirror


def positions(report: RunReport | None) -> dict[str, dict[int, int]]:
    assert report is not None
    return {row.topic: row.positions for row in report.topics}


def expected(count: int) -> list[str]:
    return [f"value-{number}".ljust(20, ".") for number in range(count)]


def cli(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    code = main([*words, "--json", "-c", str(folder / "mirror.yaml")])
    said = capsys.readouterr()
    return code, json.loads(said.out), said.err


def test_the_source_is_stopped_after_the_target_was_away(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = cluster_factory(2)
    east, west = first.bootstrap_servers, second.bootstrap_servers
    create_topic(east, "orders", 2)
    produce(east, "orders", 100, partitions=2)
    mirror = make_mirror(tmp_path, east, west, ["orders"], engine=IN_PROCESS)
    assert cli(capsys, tmp_path, "run", "--once")[0] == 0
    produce(east, "orders", 500, partitions=2, start=100)
    second.stop()
    assert cli(capsys, tmp_path, "run", "--once")[0] == 3
    assert mirror.status().staged_records == 500
    first.kill()
    second.start()
    code, document, error = cli(capsys, tmp_path, "run", "--once")
    assert code == 3 and "east" in error and document["error"]["exit_code"] == 3
    (told,) = document["mirrors"]
    assert (told["state"], told["records"], told["topics"][0]["positions"]) == ("failed", 500, {"0": 300, "1": 300})
    assert on_target(mirror) == [300, 300]
    assert mirror.status().staged_records == 0
    code, document, _ = cli(capsys, tmp_path, "run", "--drain")  # nothing is left, and that is fine
    assert (code, document["mirrors"][0]["state"], document["mirrors"][0]["records"]) == (0, "ok", 0)
    assert document["mirrors"][0]["topics"][0]["positions"] == {"0": 300, "1": 300}
    code, document, _ = cli(capsys, tmp_path, "run", "--once")  # nothing to deliver: an unreachable source and no more
    assert (code, document["mirrors"][0]["topics"]) == (3, [])

    stop, failures = threading.Event(), list[Exception]()
    first.start()
    patient = make_mirror(tmp_path, east, west, ["orders"], engine={**IN_PROCESS, "source_wait": "3m"})
    runner = threading.Thread(target=follow, args=(patient, stop, failures))
    runner.start()
    try:
        produce(east, "orders", 100, partitions=2, start=600)
        wait_until(lambda: on_target(mirror) == [350, 350], 60, "the copy to continue")
        first.kill()  # a source that goes away under a continuous run
        wait_until(lambda: runner.is_alive(), 1, "the run to stay")
        first.start()
        produce(east, "orders", 100, partitions=2, start=700)
        wait_until(lambda: on_target(mirror) == [400, 400], 90, "the copy to continue after the source came back")
    finally:
        stop.set()
        runner.join(60)
    assert failures == []
    assert_identical(mirror, ["orders"])


def on_target(mirror: Mirror) -> list[int]:
    return [len(values(mirror, "east.orders", number)) for number in (0, 1)]


def follow(mirror: Mirror, stop: threading.Event, failures: list[Exception]) -> None:
    try:
        mirror.run(stop=stop)
    except Exception as problem:  # noqa: BLE001 - looked at by the test
        failures.append(problem)


@pytest.mark.parametrize("source_there", [False, True])
def test_drain_asks_the_target_alone(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], spark: SparkSession, source_there: bool
) -> None:
    topics = [new_topic_name(), new_topic_name()]
    engine = IN_PROCESS if source_there else {**IN_PROCESS, "inline_bytes": 0}
    mirror = staged(tmp_path, clusters, topics, engine, spark)
    there = mirror.flow.source
    mirror.flow.source = there if source_there else nowhere(there)
    here, mirror.flow.target = mirror.flow.target, nowhere(mirror.flow.target)
    with pytest.raises(ClusterUnreachable) as caught:
        mirror.run(drain=True, session=spark)
    assert caught.value.cluster == "west"
    mirror.flow.target = here
    produce(there.bootstrap_servers[0], topics[0], 7, start=150)  # not staged: not for a drain
    report = mirror.run(drain=True, session=spark)
    assert (report.state, report.records, positions(report)) == ("ok", 100, {topic: {0: 150} for topic in topics})
    assert mirror.run(drain=True, session=spark).records == 0
    for topic in topics:
        assert values(mirror, f"east.{topic}") == expected(150)
    mirror.flow.source = there
    assert mirror.run(once=True, session=spark).records == 7
    assert_identical(mirror, topics)


def test_a_continuous_run_drains_waits_for_its_source_and_goes_on(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]
) -> None:
    topic = new_topic_name()
    mirror = staged(tmp_path, clusters, [topic], {**IN_PROCESS, "source_wait": "60s"})
    there, mirror.flow.source = mirror.flow.source, nowhere(mirror.flow.source)
    stop, failures, reports = threading.Event(), list[Exception](), list[RunReport]()

    def work() -> None:
        try:
            reports.append(mirror.run(stop=stop))
        except Exception as problem:  # noqa: BLE001 - looked at by the test
            failures.append(problem)

    runner = threading.Thread(target=work)
    runner.start()
    try:
        wait_until(lambda: len(values(mirror, f"east.{topic}")) == 150, 60, "what is staged to be delivered")
        produce(there.bootstrap_servers[0], topic, 25, start=150)
        mirror.flow.source = there
        wait_until(lambda: len(values(mirror, f"east.{topic}")) == 175, 60, "the copy to go on")
    finally:
        stop.set()
        runner.join(60)
    assert failures == [] and [(r.records, r.state) for r in reports] == [(75, "ok")]
    assert_identical(mirror, [topic])


def test_a_continuous_run_ends_when_its_source_stays_silent(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]
) -> None:
    topic = new_topic_name()
    mirror = staged(tmp_path, clusters, [topic], IN_PROCESS)
    mirror.flow.source = nowhere(mirror.flow.source)
    with pytest.raises(ClusterUnreachable) as caught:
        mirror.run()
    assert caught.value.cluster == "east" and positions(caught.value.report) == {topic: {0: 150}}
    assert values(mirror, f"east.{topic}") == expected(150)


def test_a_run_once_whose_source_dies_delivers_what_it_has_read(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    first, second = cluster_factory(2)
    east, west = first.bootstrap_servers, second.bootstrap_servers
    create_topic(east, "slow")
    produce(east, "slow", 40_000, size=1000)
    engine = {**IN_PROCESS, "bandwidth": "1MB", "micro_batch_bytes": "1MB", "source_wait": "5s"}
    mirror = make_mirror(tmp_path, east, west, ["slow"], engine=engine)
    failures: list[Exception] = []

    def work() -> None:
        try:
            mirror.run(once=True)
        except Exception as problem:  # noqa: BLE001 - looked at by the test
            failures.append(problem)

    runner = threading.Thread(target=work)
    runner.start()
    wait_until(lambda: sum(p.position for t in mirror.lag().topics for p in t.partitions) > 0, 60, "the first records")
    first.kill()
    runner.join(120)
    (failure,) = failures
    assert isinstance(failure, ClusterUnreachable) and failure.cluster == "east"
    ((end,),) = [tuple(each.values()) for each in positions(failure.report).values()]
    assert 0 < end < 40_000
    assert len(values(mirror, "east.slow")) == end and mirror.status().staged_records == 0


@pytest.mark.parametrize("continuous", [False, True])
def test_a_deleted_topic_is_delivered_and_shown_until_that_is_accepted(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str], continuous: bool
) -> None:
    topic, other = new_topic_name(), new_topic_name()
    east = clusters[0].bootstrap_servers
    mirror = staged(tmp_path, clusters, [topic, other], IN_PROCESS)
    delete_everywhere(east, topic)
    produce(east, other, 10, start=150)
    report = mirror.run(seconds=8) if continuous else mirror.run(once=True)
    assert {row.topic: (row.state, row.code, row.records) for row in report.topics} == {
        topic: ("halted", "source_gone", 50),
        other: ("ok", "", 60),
    }
    assert values(mirror, f"east.{topic}") == expected(150)
    assert_identical(mirror, [other])
    again = {row.topic: row.code for row in mirror.run(once=True).topics}
    assert again == {topic: "source_gone", other: ""}
    assert {row.topic: row.code for row in mirror.plan().topics} == again
    assert {row.topic: row.code for row in mirror.lag().topics} == again
    assert [row.topic for lane in mirror.status().lanes for row in lane.topics if row.code == "source_gone"] == [topic]
    assert [f.what for f in mirror.check() if not f.ok] == [f"topic {topic}"]
    assert mirror.resolve(topic, "source_gone").accepted == "source_gone"
    for names in (
        [row.topic for row in mirror.run(once=True).topics],
        [row.topic for row in mirror.plan().topics],
        [row.topic for row in mirror.lag().topics],
        [row.topic for lane in mirror.status().lanes for row in lane.topics],
    ):
        assert names == [other]
    assert mirror.gaps() == []
    mirror.flow.config = replace(mirror.flow.config, buffer=replace(mirror.flow.config.buffer, retention=0))
    mirror.evict()
    assert [span for store in mirror.flow.lane_stores() for span in SpanTable(store).spans() if span.topic == topic] == []
    create_topic(east, topic)
    produce(east, topic, 5)
    assert {row.topic: row.code for row in mirror.run(once=True).topics} == {topic: "recreated", other: ""}


def test_a_topic_that_is_not_delivered_cannot_be_given_up(
    clusters: ClusterPair, tmp_path: Path, new_topic_name: Callable[[], str]
) -> None:
    topic, other = new_topic_name(), new_topic_name()
    mirror = staged(tmp_path, clusters, [topic, other], IN_PROCESS)
    delete_everywhere(clusters[0].bootstrap_servers, topic)
    here, mirror.flow.target = mirror.flow.target, nowhere(mirror.flow.target)
    with pytest.raises(ClusterUnreachable):
        mirror.run(once=True)
    with pytest.raises(UsageError, match="50 offsets of .* are staged and not on the target yet"):
        mirror.resolve(topic, "source_gone")
    mirror.flow.target = here
    assert mirror.run(drain=True).records == 100
    assert values(mirror, f"east.{topic}") == expected(150)
