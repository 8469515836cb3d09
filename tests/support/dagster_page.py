"""A running ``mirror up`` for tests: started, asked over GraphQL as the web page does it, fed with records, ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from mirror_pipeline.local.shapes.ground import known_everywhere, local_settings
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.up import graphql
from tests.support.kafka_source import ClusterPair
from tests.support.replicas import replicas_for

MIRROR = Path(sys.executable).with_name("mirror")
NAME = "east-to-west"
START_SECONDS = 240.0
WORK_SECONDS = 240.0
"""Generous: a lane starts Python, Dagster and Spark, on a machine that runs brokers and other tests."""

ASSET = """
query($key: AssetKeyInput!) { assetOrError(assetKey: $key) { __typename ... on Asset {
  definition { groupName isPartitioned }
  assetMaterializations(limit: 100) { runId timestamp partition metadataEntries { label ... on IntMetadataEntry { intValue } } }
  assetObservations(limit: 20) { metadataEntries { label ... on IntMetadataEntry { intValue } } } } } }
"""
SENSORS = """
query($at: RepositorySelector!) { sensorsOrError(repositorySelector: $at) { ... on Sensors { results {
  name sensorState { status ticks(limit: 50) { status skipReason error { message } } } } } } }
"""
RUNS = """
query($filter: RunsFilter) { runsOrError(filter: $filter) { ... on Runs { results {
  runId status tags { key value } assetSelection { path } } } } }
"""
BACKFILL = """
mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }
"""
BACKFILL_STATE = """
query($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
  status error { message } runs { runId status } } } }
"""
ENDED = ("COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED")
FAILURES = """
query($id: ID!) { runOrError(runId: $id) { ... on Run { eventConnection { events {
  ... on RunFailureEvent { message } ... on ExecutionStepFailureEvent { error { message } } } } } } }
"""
TERMINATE = """
mutation($ids: [String!]!) { terminateRuns(runIds: $ids) { __typename } }
"""


@dataclass
class Up:
    """A running ``mirror up``."""

    process: subprocess.Popen[bytes]
    url: str
    token: str
    config: Path
    east: str
    west: str

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        return graphql.call(self.url, query, variables, token=self.token)

    def topic(self, name: str) -> str:
        """A source topic that the mirror selects."""
        return f"{prefix_of(self.config)}-{name}"

    def target(self, topic: str) -> str:
        """Its name on the target."""
        return f"{prefix_of(self.config)}.east.{topic}"

    def asset(self, kind: str, topic: str) -> dict[str, Any]:
        return self.ask(ASSET, key={"path": [NAME, kind, topic]})["assetOrError"]

    def numbers(self, topic: str, label: str, *, events: str = "assetMaterializations", kind: str = "target") -> list[int]:
        """The values of one metadata name, oldest first."""
        found = self.asset(kind, topic).get(events, [])
        return [e["intValue"] for event in reversed(found) for e in event["metadataEntries"] if e["label"] == label]

    def lane_runs(self, *statuses: str) -> list[dict[str, Any]]:
        tags = [{"key": names.KIND_TAG, "value": names.KIND_LANE}]
        chosen = {"statuses": list(statuses)} if statuses else {}
        return self.ask(RUNS, filter={"tags": tags, **chosen})["runsOrError"]["results"]

    def failures(self, run_id: str) -> list[str]:
        """Why a run failed: what its failed steps say, then the run itself."""
        events = self.ask(FAILURES, id=run_id)["runOrError"]["eventConnection"]["events"]
        return [(event.get("error") or event)["message"] for event in events if event]

    def backfilled(self, topics: list[str], **params: Any) -> list[dict[str, Any]]:
        """Launch backfills of these topics as the page does; their runs when all have ended."""
        keys = [{"path": [NAME, "backfill", topic]} for topic in topics]
        answer = self.ask(BACKFILL, params={"assetSelection": keys, **params})["launchPartitionBackfill"]
        assert answer["__typename"] == "LaunchBackfillSuccess", answer

        def ended() -> list[dict[str, Any]] | None:
            state = self.ask(BACKFILL_STATE, id=answer["backfillId"])["partitionBackfillOrError"]
            return state["runs"] if state["status"] in ENDED else None

        return until("the backfill has ended", ended)

    def reasons(self, sensor: str) -> list[str]:
        """Skip reasons of the sensors whose name begins so, newest first; an error of a tick fails the test."""
        errors = self.errors(sensor)
        assert not errors, errors[0]
        return [tick["skipReason"] for tick in self._ticks(sensor) if tick["skipReason"]]

    def errors(self, sensor: str) -> list[str]:
        """What failed ticks of those sensors say, newest first."""
        return [tick["error"]["message"] for tick in self._ticks(sensor) if tick["error"]]

    def _ticks(self, sensor: str) -> list[dict[str, Any]]:
        at = {"repositoryName": "__repository__", "repositoryLocationName": names.LOCATION}
        found = self.ask(SENSORS, at=at)["sensorsOrError"]["results"]
        return [tick for s in found if s["name"].startswith(sensor) for tick in s["sensorState"]["ticks"]]


def until(what: str, condition: Callable[[], Any], seconds: float = WORK_SECONDS) -> Any:
    """Poll until the condition is true; its value."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.5)


def start(config: Path, east: str, west: str) -> Up:
    log = (config.parent / "up.log").open("ab")
    out = config.parent / "up.out"
    with out.open("wb") as answers:
        process = subprocess.Popen([MIRROR, "up", "-c", config, "--port", "0"], stdout=answers, stderr=log, cwd=config.parent)
    prefix = "Dagster UI: "

    def address() -> str:
        assert process.poll() is None, (config.parent / "up.log").read_text()
        return next((line.removeprefix(prefix) for line in out.read_text().splitlines() if line.startswith(prefix)), "")

    url, _, token = until("the address is printed", address, START_SECONDS).partition("/?token=")
    return Up(process, url, token, config, east, west)


def family(up: Up) -> set[int]:
    """Every process that this ``mirror up`` brought into the world, JVMs and Python workers of Spark included."""
    mark = f"MIRROR_UP_PID={up.process.pid}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment, state = (entry / "environ").read_bytes(), (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if mark in environment.split(b"\0") and state != "Z":
                found.add(int(entry.name))
    return found


def end(up: Up, number: signal.Signals = signal.SIGINT) -> int:
    up.process.send_signal(number)
    return up.process.wait(180)


def configure(folder: Path, clusters: ClusterPair) -> tuple[Path, str, str]:
    """A mirror.yaml of a mirror with topics of its own, because other tests share the clusters; both addresses."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    prefix = f"up{uuid.uuid4().hex[:6]}"
    topics = {"include": [f"{prefix}-.*"]}
    document = {
        "clusters": {"east": {"bootstrap_servers": east}, "west": {"bootstrap_servers": west}},
        "mirrors": [{"name": NAME, "source": "east", "target": "west", "naming": prefix + ".{source}.{topic}", "topics": topics}],
        "engine": {"spark_master": "local[4]"},
    }
    config = folder / "mirror.yaml"
    config.write_text(yaml.safe_dump(document))
    return config, east, west


def prefix_of(config: Path) -> str:
    """What all topics of this configuration begin with."""
    return str(yaml.safe_load(config.read_text())["mirrors"][0]["naming"]).split(".")[0]


def produce(servers: str, topic: str, values: list[str], *, at: datetime | None = None, partitions: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    if topic not in admin.list_topics(timeout=15).topics:
        # Retention must not delete records with old timestamps.
        admin.create_topics([NewTopic(topic, partitions, replicas_for(servers), config={"retention.ms": "-1"})])[topic].result(15)
        known_everywhere(local_settings(servers), topic, partitions)
    producer = Producer({"bootstrap.servers": servers})
    for number, value in enumerate(values):
        stamp: dict[str, Any] = {"timestamp": int(at.timestamp() * 1000) + number} if at else {}
        producer.produce(topic, value.encode(), f"key {number}".encode(), partition=number % partitions, **stamp)
    assert producer.flush(30) == 0


def consume(servers: str, topic: str) -> list[str]:
    """Every value of a topic, aborted ones included; [] while it does not exist or has no leaders yet."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
    )
    try:
        found = consumer.list_topics(timeout=15).topics.get(topic)
        parts = [TopicPartition(topic, number, 0) for number in found.partitions] if found else []
        left = {p.partition: consumer.get_watermark_offsets(p, timeout=15)[1] for p in parts}
        values, deadline = [], time.monotonic() + 60
        consumer.assign(parts)
        while any(left.values()) and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                values.append((message.value() or b"").decode())
                offset, partition = message.offset(), message.partition()
                assert offset is not None and partition is not None
                if offset + 1 >= left[partition]:
                    left[partition] = 0
        return values
    except KafkaException:
        return []
    finally:
        consumer.close()
