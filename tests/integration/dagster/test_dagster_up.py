"""``mirror up`` over two real clusters, watched and driven over GraphQL as the web page does it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.request import urlopen

import pytest

from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.backfill import START_ENV
from tests.support.dagster_page import (
    NAME,
    TERMINATE,
    Up,
    configure,
    consume,
    end,
    family,
    prefix_of,
    produce,
    start,
    until,
)
from tests.support.kafka_source import ClusterPair

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def up(clusters: ClusterPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    config, east, west = configure(tmp_path_factory.mktemp("up"), clusters)
    produce(east, f"{prefix_of(config)}-first", [f"first {n}" for n in range(300)])
    with pytest.MonkeyPatch.context() as environment:
        # Dagster records each hour of a run before it starts: 1,400 an asset for the default of a month take minutes here.
        environment.setenv(START_ENV, f"{datetime.now(UTC) - timedelta(days=2):%Y-%m-%d}")
        running = start(config, east, west)
    yield running
    if running.process.poll() is None:
        end(running)


def test_the_sensor_starts_a_lane_and_the_plots_grow(up: Up) -> None:
    topic = up.topic("first")
    target = up.target(topic)
    until("the first records are on the target", lambda: len(consume(up.west, target)) == 300)
    until("a first materialization", lambda: up.numbers(topic, "records"))
    produce(up.east, topic, [f"second {n}" for n in range(200)])
    until("the second records are on the target", lambda: len(consume(up.west, target)) == 500)
    grown = until("the plot has grown", lambda: (n := up.numbers(topic, "records")) and n[-1] == 500 and n)
    assert len(grown) >= 2
    assert grown == sorted(grown)
    assert sorted(consume(up.west, target)) == sorted(consume(up.east, topic))
    (run,) = up.lane_runs("STARTED")
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    assert tags[names.LANE_TAG] == f"{NAME}/0"
    assert run["assetSelection"] == [{"path": [NAME, "target", topic]}]


def test_the_source_asset_shows_the_lag_and_the_sensor_says_what_it_saw(up: Up) -> None:
    topic = up.topic("first")
    assert up.asset("source", topic)["definition"] == {"groupName": "east_to_west/from_east", "isPartitioned": False}
    seen = until("lag was observed", lambda: up.numbers(topic, "lag_records", events="assetObservations", kind="source"))
    assert seen[0] == 300
    until("the sensor sees no lag", lambda: any(reason.startswith("no lag in") for reason in up.reasons("lag_")))


def test_metrics_are_served_beside_the_page(up: Up) -> None:
    (address,) = re.findall(r"^metrics: (http://127\.0\.0\.1:\d+/metrics)$", (up.config.parent / "up.log").read_text(), re.M)

    def confirmed() -> bool:
        with urlopen(address, timeout=10) as answer:  # noqa: S310 - an address of our own
            return f'mirror_records_total{{mirror="{NAME}",topic="{up.topic("first")}"}} 500.0' in answer.read().decode()

    until("what the lane has sent is counted", confirmed)


def test_a_new_topic_is_copied_and_gets_its_asset_without_a_restart(up: Up) -> None:
    topic = up.topic("new.comer")
    produce(up.east, topic, [f"value {n}" for n in range(50)])
    until("the new topic is on the target", lambda: len(consume(up.west, up.target(topic))) == 50)
    until("the new topic has an asset", lambda: up.asset("target", topic).get("definition"))
    assert any("code location reloaded" in reason for reason in up.reasons("catalogue_"))
    until("its copy is recorded", lambda: up.numbers(topic, "records") == [50] or up.numbers(topic, "records")[-1:] == [50])


def test_a_backfill_launched_over_the_page_copies_exactly_its_range(up: Up) -> None:
    topic = up.topic("hours")
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=8)
    for number in range(6):
        produce(up.east, topic, [f"hour {number} value {n}" for n in range(40 + number)], at=hour + timedelta(hours=number, minutes=10))
    until("the topic has a backfill asset", lambda: up.asset("backfill", topic).get("definition"))
    into = f"{up.target(topic)}.again"
    keys = [f"{hour + timedelta(hours=number):%Y-%m-%d-%H:%M}" for number in (2, 3, 4)]
    op = f"backfill_{names.word(NAME)}_{names.word(topic)}"
    runs = up.backfilled([topic], partitionNames=keys, runConfigData={"ops": {op: {"config": {"into": into}}}})
    assert [run["status"] for run in runs] == ["SUCCESS"], "one run for the whole range"
    wanted = sorted(f"hour {number} value {n}" for number in (2, 3, 4) for n in range(40 + number))
    assert sorted(consume(up.west, into)) == wanted
    done = up.asset("backfill", topic)["assetMaterializations"]
    assert sorted(event["partition"] for event in done) == keys
    assert up.numbers(topic, "records", kind="backfill") == [len(wanted)] * 3


def test_materialize_all_copies_nothing_unless_everything_is_meant(up: Up) -> None:
    """*Materialize all* launches all partitions of the selected assets, without configuration."""
    topic = up.topic("first")
    runs = up.backfilled([topic], allPartitions=True)
    assert [run["status"] for run in runs] == ["FAILURE"]
    (why,) = [each for each in up.failures(runs[0]["runId"]) if "nothing was copied" in each]
    assert "this is every hour since" in why and "everything: true" in why and "\n" not in why.strip()
    assert consume(up.west, f"{up.target(topic)}.backfill") == []


@pytest.mark.slow
def test_terminate_ends_a_lane_in_order_and_the_sensor_says_so(up: Up) -> None:
    topic = up.topic("first")
    produce(up.east, topic, ["to have a lane"])
    (run,) = until("a lane runs", lambda: up.lane_runs("STARTED"))
    up.ask(TERMINATE, ids=[run["runId"]])
    until("the run is cancelled", lambda: any(r["runId"] == run["runId"] for r in up.lane_runs("CANCELED")))
    produce(up.east, topic, [f"after the end {n}" for n in range(10)])
    until("the sensor says so", lambda: any("was terminated at" in reason for reason in up.reasons("lag_")[:5]))
    until("the sensor starts the lane again", lambda: up.lane_runs("STARTED"))
    until("nothing is lost or doubled", lambda: sorted(consume(up.west, up.target(topic))) == sorted(consume(up.east, topic)))


def test_an_interrupt_ends_every_process(up: Up) -> None:
    """Last: the lane of the test before is at work, with its JVM."""
    until("a lane runs", lambda: up.lane_runs("STARTED"))
    members = family(up)
    assert len(members) >= 5
    assert end(up) == 0
    assert family(up) == set()
