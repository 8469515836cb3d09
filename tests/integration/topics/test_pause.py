"""``mirror pause``: a running lane stops reading a topic and goes on with the others; ``mirror resume`` continues without a gap."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from mirror_pipeline.cli.main import app
from mirror_pipeline.errors import UsageError
from tests.integration.processes import document, kill_tree, start_mirror, wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import assert_identical, create_topic, end_offsets, make_mirror, produce, write_config

FOLLOW_SECONDS = 180.0  # a lane looks every 30 s; a test machine may stand still for longer


@pytest.mark.long
def test_a_running_lane_leaves_a_paused_topic_alone_and_then_goes_on(clusters: ClusterPair, tmp_path: Path, topic_name: str) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    held, other = f"{topic_name}-held", f"{topic_name}-other"
    for topic in (held, other):
        create_topic(east, topic, 2)
        produce(east, topic, 100, partitions=2)
    config = write_config(tmp_path, east, west, [held, other])
    mirror = make_mirror(tmp_path, east, west, [held, other])
    process = start_mirror(config, "run", "--for", "10m", "--json")

    def state(topic: str) -> str:
        return next((row.state for lane in mirror.status().lanes for row in lane.topics if row.topic == topic), "")

    def copied(topic: str) -> int:
        return sum(end_offsets(mirror, f"east.{topic}", target=True).values())

    try:
        wait_until(lambda: state(held) == state(other) == "ok" and mirror.lag().lag_records == 0, 90, "everything on the target")
        done = mirror.pause(held)
        assert (done.topic, done.paused) == (held, True)
        assert state(held) == "paused", "it is shown before the lane knows"
        time.sleep(35)
        produce(east, held, 50, partitions=2, start=100)
        produce(east, other, 50, partitions=2, start=100)
        wait_until(lambda: copied(other) == 150, FOLLOW_SECONDS, "the other topic")
        assert copied(held) == 100
        (row,) = [row for row in mirror.lag().topics if row.topic == held]
        assert (row.state, row.code, row.lag_records) == ("paused", "paused", 50) and done.decided_by in row.reason
        assert mirror.health().state == "fine"
        mirror.resume()
        wait_until(lambda: copied(held) == 150, FOLLOW_SECONDS, "what waited")
        process.terminate()
        assert process.wait(60) == 0
        (report,) = document(config)["mirrors"]  # type: ignore[misc]
        assert {topic["state"] for topic in report["topics"]} == {"ok"}
    finally:
        kill_tree(process)
    assert_identical(mirror, [held, other])


def test_runs_that_begin_while_a_mirror_is_paused_copy_nothing_and_are_no_failure(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, spark: SparkSession
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    create_topic(east, topic_name)
    produce(east, topic_name, 20)
    mirror = make_mirror(tmp_path, east, west, [topic_name])
    config = str(tmp_path / "mirror.yaml")
    with pytest.raises(UsageError, match="does not select topic elsewhere"):
        mirror.pause("elsewhere")
    said = CliRunner().invoke(app, ["pause", "-c", config]).output
    assert said == "mirror m: all topics paused: a running lane follows within half a minute\n"
    first = CliRunner().invoke(app, ["run", "--once", "-c", config])
    assert first.exit_code == 0, first.output
    assert mirror.lag().lag_records == 20
    assert CliRunner().invoke(app, ["resume", "-c", config]).exit_code == 0
    assert mirror.run(once=True, session=spark).state == "ok"
    produce(east, topic_name, 20, start=20)
    mirror.pause(topic_name)
    assert [row.state for row in mirror.run(once=True, session=spark).topics] == ["paused"]
    assert [row.state for row in mirror.plan().topics] == ["paused"]
    mirror.resume(topic_name)
    assert mirror.run(once=True, session=spark).state == "ok"
    assert_identical(mirror, [topic_name])
