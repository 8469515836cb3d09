"""``mirror up`` in an instance that holds runs of others, and with a mirror.yaml that somebody breaks meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from mirror_pipeline.orchestration import names
from tests.support.dagster_page import RUNS, Up, configure, consume, end, prefix_of, produce, start, until
from tests.support.kafka_source import ClusterPair

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
PRUNE = """
mutation($config: RunConfigData!) { launchRun(executionParams: {selector: {repositoryName: "__repository__", repositoryLocationName:
  "mirror_pipeline", jobName: "mirror_prune"}, runConfigData: $config}) { __typename ... on LaunchRunSuccess { run { runId } } } }
"""


@dg.asset
def ledger_of_others() -> None: ...


@dg.job
def billing() -> None: ...


@pytest.fixture(scope="module")
def theirs() -> dict[str, set[str]]:
    """The ids of runs of others, by what became of them."""
    return {"ended": set(), "at_work": set()}


@pytest.fixture(scope="module")
def up(clusters: ClusterPair, tmp_path_factory: pytest.TempPathFactory, theirs: dict[str, set[str]]) -> Iterator[Up]:
    config, east, west = configure(tmp_path_factory.mktemp("guests"), clusters)
    home = config.parent / ".mirror" / "dagster_home"
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        theirs["ended"] |= {dg.materialize([ledger_of_others], instance=instance).run_id for _ in range(3)}
        another = {names.KIND_TAG: names.KIND_LANE, names.PROJECT_TAG: "another", names.MIRROR_TAG: "east-to-west"}
        theirs["ended"].add(billing.execute_in_process(instance=instance, tags=another).run_id)
        theirs["at_work"] |= {
            instance.create_run_for_job(billing, tags=tags, status=dg.DagsterRunStatus.STARTED).run_id
            for tags in ({}, another | {names.LANE_TAG: "east-to-west/0"})
        }
    (home / "dagster.yaml").unlink()
    produce(east, f"{prefix_of(config)}-first", [f"first {n}" for n in range(30)])
    running = start(config, east, west)
    yield running
    if running.process.poll() is None:
        end(running)


def runs(up: Up) -> dict[str, str]:
    return {run["runId"]: run["status"] for run in up.ask(RUNS)["runsOrError"]["results"]}


def prune(up: Up) -> str:
    """The id of a run that deletes all finished runs that are its own."""
    op = {"config": {"older_than_days": 0.0, "upkeep_older_than_days": 0.0}}
    launched: dict[str, Any] = up.ask(PRUNE, config={"ops": {names.PRUNE_OP: op}})["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return str(launched["run"]["runId"])


def test_a_lane_of_the_same_name_elsewhere_does_not_keep_ours_from_starting(up: Up) -> None:
    target = up.target(up.topic("first"))
    until("the records are on the target", lambda: len(consume(up.west, target)) == 30)


def test_pruning_deletes_our_runs_alone(up: Up, theirs: dict[str, set[str]]) -> None:
    first = prune(up)
    until("it has ended", lambda: runs(up)[first] == "SUCCESS")
    second = prune(up)
    until("the second has deleted the first", lambda: runs(up).get(second) == "SUCCESS" and first not in runs(up))
    assert theirs["ended"] | theirs["at_work"] <= set(runs(up))


def test_a_typo_ends_no_lane_and_is_said_where_one_looks(up: Up) -> None:
    topic = up.topic("first")
    target = up.target(topic)
    (lane,) = until("a lane runs", lambda: up.lane_runs("STARTED") and [r for r in up.lane_runs("STARTED") if is_ours(r)])
    good = up.config.read_text()
    up.config.write_text(good.replace("naming:", "namin:"))
    terminal = up.config.parent / "up.log"
    until("the terminal says so", lambda: "namin" in terminal.read_text(), 30)
    assert f"{up.config}:" in terminal.read_text()
    until("the reaper leaves it alone", lambda: any("cannot judge: " in r and "namin" in r for r in up.reasons("mirror_reaper")))
    until("a failed tick says so", lambda: any("namin" in error for error in up.errors("mirror_file")))
    produce(up.east, topic, [f"meanwhile {n}" for n in range(30)])
    until("the lane copies on", lambda: len(consume(up.west, target)) == 60, 60)
    run = prune(up)
    until("a run that starts meanwhile finds its job", lambda: runs(up)[run] in ("SUCCESS", "FAILURE"))
    assert runs(up)[run] == "SUCCESS"
    up.config.write_text(good)
    until("the terminal says that it loads again", lambda: f"{up.config} loads again" in terminal.read_text(), 30)
    assert runs(up)[lane["runId"]] == "STARTED"


def is_ours(run: dict[str, Any]) -> bool:
    return {"key": names.PROJECT_TAG, "value": "another"} not in run["tags"]


def test_nothing_of_others_is_judged_or_ended(up: Up, theirs: dict[str, set[str]]) -> None:
    assert {runs(up)[run_id] for run_id in theirs["at_work"]} == {"STARTED"}
    assert end(up) == 0
    home = up.config.parent / ".mirror" / "dagster_home"
    with dg.DagsterInstance.from_config(str(home)) as instance:
        left = {run.run_id: run.status.value for run in instance.get_runs()}
    assert {left[run_id] for run_id in theirs["at_work"]} == {"STARTED"}
    assert {left[run_id] for run_id in theirs["ended"]} == {"SUCCESS"}
    assert not [run_id for run_id, status in left.items() if status in ("STARTED", "QUEUED") and run_id not in theirs["at_work"]]
