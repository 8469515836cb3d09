"""Before each unplanned failover `lag` says what will be missing: the number and the age of the oldest are those that are missing then."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.faults.campaign import ENGINE, INLINE
from tests.faults.child import MirrorChild, finished, wait_for
from tests.faults.clients import Writer, log_end
from tests.faults.report import CampaignReport
from tests.support.mirrors import create_topic, end_offsets, write_config

PARTITIONS = 3
SLACK_SECONDS = 0.05


def first_time(servers: str, places: list[Place]) -> float:
    """The time of the oldest of some records, in seconds since the epoch."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "time", "auto.offset.reset": "error"})
    times = []
    try:
        for place in places:
            consumer.assign([place])
            found = consumer.poll(30)
            assert found is not None and not found.error(), place
            times.append(found.timestamp()[1] / 1000)
    finally:
        consumer.close()
    return min(times)


def test_what_would_be_missing_is_what_is_missing(
    plan: Callable[[str], CampaignReport], cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path
) -> None:
    report = plan("loss")
    chance = random.Random(report.seed)
    source, target = cluster_factory(names=["east", "west"], brokers=1, heap="256m")
    east, west = source.bootstrap_servers, target.bootstrap_servers
    report.say(f"seed {report.seed}, {report.wanted} failovers wanted, folder {tmp_path}")
    lost = 0
    for number in range(report.wanted):
        topic, folder = f"loss-{number}", tmp_path / str(number)
        create_topic(east, topic, PARTITIONS)
        config = write_config(folder, east, west, [topic], engine={**ENGINE, **INLINE, "source_wait": "5s", "target_wait": "20s"})
        writer = Writer(east, topic, PARTITIONS, f"w{number}")
        writer.start()
        child = MirrorChild(config, "run", "--for", "10m", "--json")
        wait_for("the first records", lambda topic=topic: log_end(west, f"east.{topic}", PARTITIONS) > 0, 90, poll=0.2)  # type: ignore[misc]
        time.sleep(chance.uniform(0, 2))
        child.kill_tree()
        child.close()
        time.sleep(chance.uniform(0, 1.5))
        writer.halt()
        writer.settle()
        mirror = Mirror(load_config(config), "m")
        shown, at = mirror.lag(), time.time()
        source.pause()
        try:
            code, body, said = finished(config, "failover", "m", "--unplanned", seconds=180)
            assert code == 0, said[-600:]
        finally:
            source.resume()
        (handed,) = body["topics"]
        copied = {part["partition"]: part["source_offset"] for part in handed["partitions"]}
        ends = end_offsets(mirror, topic, target=False)
        missing = {part: end - copied[part] for part, end in ends.items()}
        report.fault("failover", f"{sum(missing.values())} of {sum(ends.values())} records are missing, {shown.unread_records} were shown")
        assert shown.unread_records == sum(missing.values()), (shown, missing)
        if shown.unread_records:
            oldest = first_time(east, [Place(topic, part, copied[part]) for part, count in missing.items() if count])
            assert shown.unread_seconds is not None
            assert abs(at - shown.unread_seconds - oldest) < SLACK_SECONDS, (at - shown.unread_seconds, oldest)
        lost += sum(missing.values())
    assert lost, "nothing was ever missing: the kills came too late"
