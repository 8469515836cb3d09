"""Failover and failback as jobs of a running ``mirror up``, launched over GraphQL as its page does it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from mirror_pipeline.orchestration import names
from tests.support.dagster_page import NAME, RUNS, TERMINATE, Up, configure, consume, end, prefix_of, produce, start, until
from tests.support.kafka_source import ClusterPair

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LAUNCH = """
mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }
"""
RUN = """
query($id: ID!) { runOrError(runId: $id) { ... on Run { status eventConnection { events { __typename
  ... on ExecutionStepOutputEvent { metadataEntries { label ... on TextMetadataEntry { text } ... on MarkdownMetadataEntry { mdStr } } }
  ... on ExecutionStepFailureEvent { error { message } failureMetadata { description } } } } } } }
"""
SHOWN = """
query($key: AssetKeyInput!) { assetOrError(assetKey: $key) { ... on Asset { definition { description tags { key value } } } } }
"""


@pytest.fixture
def up(clusters: ClusterPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    config, east, west = configure(tmp_path_factory.mktemp("failover"), clusters)
    body = yaml.safe_load(config.read_text())
    body["mirrors"].append({**body["mirrors"][0], "name": "back", "source": "west", "target": "east", "reverse_of": NAME})
    config.write_text(yaml.safe_dump(body))
    for servers in (east, west):
        produce(servers, f"{prefix_of(config)}-orders", [])
    produce(east, f"{prefix_of(config)}-orders", [f"first {n}" for n in range(300)])
    running = start(config, east, west)
    yield running
    if running.process.poll() is None:
        end(running)


def launch(up: Up, job: str, **config: Any) -> dict[str, Any]:
    """The run of a job when it has ended: its status, output and failure."""
    at = {"repositoryName": "__repository__", "repositoryLocationName": names.LOCATION, "jobName": f"{job}_{names.word(NAME)}"}
    node = f"{job}_op_{names.word(NAME)}"
    params = {"selector": at, "runConfigData": {"ops": {node: {"config": config}}}}
    answer = up.ask(LAUNCH, params=params)["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = up.ask(RUN, id=answer["run"]["runId"])["runOrError"]
        return found if found["status"] in ("SUCCESS", "FAILURE", "CANCELED") else None

    return until(f"{job} has ended", ended)


def output(run: dict[str, Any]) -> dict[str, str]:
    assert run["status"] == "SUCCESS", run
    entries = [entry for event in run["eventConnection"]["events"] for entry in event.get("metadataEntries", ())]
    return {entry["label"]: entry.get("text") or entry.get("mdStr") or "" for entry in entries}


def refusal(run: dict[str, Any]) -> str:
    assert run["status"] == "FAILURE", run
    return " ".join(str(event["error"]) for event in run["eventConnection"]["events"] if event.get("error"))


def test_a_topic_is_handed_over_and_led_back(up: Up) -> None:
    topic = up.topic("orders")
    until("the records are on the target", lambda: len(consume(up.west, up.target(topic))) == 300)
    (run,) = until("a lane runs", lambda: up.lane_runs("STARTED"))
    assert "is held by" in refusal(launch(up, "failover", dry_run=False)), "not while a lane runs"
    up.ask(TERMINATE, ids=[run["runId"]])
    until("the lane has ended", lambda: any(r["runId"] == run["runId"] for r in up.lane_runs("CANCELED")))

    looked = output(launch(up, "failover"))
    assert looked["state"] == "ready" and "nothing was changed" in looked["report"]
    done = output(launch(up, "failover", dry_run=False, topics=[topic]))
    assert done["state"] == "promoted"
    assert f"| {topic} | {up.target(topic)} | 0 | 100 | 100 |" in done["report"]
    until("the sensor says so", lambda: up.reasons("lag_east")[:1] == [f"promoted: {topic}"])

    def shown() -> bool:
        found = up.ask(SHOWN, key={"path": [NAME, "target", topic]})["assetOrError"]["definition"]
        return found["description"].startswith("**Promoted**") and {"key": "mirror/state", "value": "promoted"} in found["tags"]

    until("the asset says so", shown)
    before = len(up.ask(RUNS, filter={"tags": [{"key": names.LANE_TAG, "value": f"{NAME}/0"}]})["runsOrError"]["results"])
    produce(up.east, topic, [f"late {n}" for n in range(20)])
    count = len(up.reasons("lag_east"))
    until("the sensor looks twice more", lambda: len(up.reasons("lag_east")) >= min(50, count + 2))
    assert up.reasons("lag_east")[0] == f"promoted: {topic}"
    assert len(up.ask(RUNS, filter={"tags": [{"key": names.LANE_TAG, "value": f"{NAME}/0"}]})["runsOrError"]["results"]) == before

    assert "never came over" in refusal(launch(up, "failback", dry_run=False))
    assert output(launch(up, "failback", tail="leave", dry_run=False))["state"] == "open"
    produce(up.west, topic, [f"new primary {n}" for n in range(30)])
    back = f"{prefix_of(up.config)}.west.{topic}"
    until("the other direction copies", lambda: sum(value.startswith("new primary") for value in consume(up.east, back)) == 30)
