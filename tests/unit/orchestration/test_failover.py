"""Failover and failback in Dagster: the jobs' configuration and answers, and how topics that are left alone are shown."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.ledger.promotions import FAILOVER_LANE, Promotion, Promotions, PromotionState
from mirror_pipeline.buffer.place.place import open_lane
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.features.failover.report import (
    FailbackOptions,
    FailbackReport,
    FailoverOptions,
    FailoverReport,
    HandedGroup,
    HandedPartition,
    HandedTopic,
    Missing,
    OpenedTopic,
    TailPartition,
)
from mirror_pipeline.halts import PROMOTED, STANDBY
from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.assets import source_spec, target_spec
from mirror_pipeline.orchestration.checks import verdict
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.failover import failback_job, failover_job
from mirror_pipeline.orchestration.project import read_project
from mirror_pipeline.orchestration.sensors import catalogue_sensor
from mirror_pipeline.orchestration.sensors.lag_decision import LagMemory, decide
from mirror_pipeline.topics.catalogue import Catalogue, CatalogueTopic
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, NoSpark, known, mirror_lag, topic_lag, write_project

HANDED = HandedTopic("orders", "east.orders", (HandedPartition(0, 120, 100),))


@dataclass
class ChangingMirror(FakeMirror):
    """Answers failover and failback with what was asked for."""

    refusal: Exception | None = None

    def failover(self, options: FailoverOptions, **rest: Any) -> FailoverReport:
        self.calls.append({"call": "failover", "options": options, **rest})
        if self.refusal is not None:
            raise self.refusal
        state = "ready" if options.dry_run else "promoted"
        return FailoverReport(
            NAME, 1, state, "planned", options.dry_run, "east", "west", ("w:9092",), (HANDED,),
            (HandedGroup("billing", "east.orders", 0, 40),), (Missing("orders", 0, 120, None, "not known"),),
            file="" if options.dry_run else "f",
        )  # fmt: skip

    def failback(self, options: FailbackOptions, **rest: Any) -> FailbackReport:
        self.calls.append({"call": "failback", "options": options, **rest})
        state = "ready" if options.dry_run else "open"
        topics, tail = (OpenedTopic("orders", "orders", "west.orders"),), (TailPartition("orders", 0, 120, 127),)
        return FailbackReport(NAME, "back", 2, state, options.dry_run, topics, tail, options.tail)


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> ChangingMirror:
    mirror = ChangingMirror()
    monkeypatch.setattr(FakeMirrors, "fakes", {NAME: mirror})
    return mirror


def run(job: dg.JobDefinition, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    (node,) = job.nodes
    return job.execute_in_process(
        run_config={"ops": {node.name: {"config": config}}}, instance=instance, raise_on_error=False,
        resources={"mirror_project": FakeMirrors(), "mirror_spark": NoSpark()},
    )  # fmt: skip


def output(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def observed(result: dg.ExecuteInProcessResult) -> list[tuple[dg.AssetKey | None, dict[str, Any]]]:
    events = [event for event in result.all_events if event.event_type_value == "ASSET_OBSERVATION"]
    return [
        (event.asset_key, {n: v.value for n, v in event.asset_observation_data.asset_observation.metadata.items()}) for event in events
    ]


def test_a_failover_is_a_dry_run_unless_told_otherwise(changing: ChangingMirror, instance: dg.DagsterInstance) -> None:
    result = run(failover_job(known("orders")), instance)
    assert result.success
    (call,) = changing.calls
    assert call["options"] == FailoverOptions(None, dry_run=True, planned=True, wait=60.0)
    assert output(result)["state"] == "ready"
    assert "a dry run: nothing was changed" in output(result)["report"]
    assert observed(result) == []


def test_a_failover_says_what_it_promoted_in_the_run_and_on_the_assets(changing: ChangingMirror, instance: dg.DagsterInstance) -> None:
    config = {"mode": "unplanned", "topics": ["orders"], "wait": 5, "accept_differences": True, "dry_run": False}
    result = run(failover_job(known("orders")), instance, **config)
    assert changing.calls[0]["options"] == FailoverOptions(["orders"], False, unplanned=True, wait=5.0, accept_differences=True)
    facts = output(result)
    assert facts["state"] == "promoted"
    for text in ("| orders | east.orders | 0 | 120 | 100 |", "| billing | east.orders | 0 | 40 |", "missing: orders[0] from offset 120"):
        assert text in facts["report"]
    ((key, said),) = observed(result)
    assert key == names.target_key(NAME, "orders")
    assert (said["state"], said["positions"], said["target_topic"]) == ("promoted", {"0": 120}, "east.orders")


def test_a_refusal_is_one_line_with_its_hint(changing: ChangingMirror, instance: dg.DagsterInstance) -> None:
    changing.refusal = ProblemFound("cluster east is still written to", hint="stop its producers")
    result = run(failover_job(known("orders")), instance, dry_run=False)
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    said = failed.step_failure_data.user_failure_data
    assert said is not None and said.description == f"failover of {NAME}: cluster east is still written to (stop its producers)"


@pytest.mark.parametrize("config", [{"mode": "perhaps"}, {"topics": "orders"}, {"dry_run": "no"}, {"wait": "1e9h"}, {"unknown": 1}])
def test_a_wrong_configuration_is_refused_before_the_run(changing: ChangingMirror, instance: dg.DagsterInstance, config: Any) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError):
        run(failover_job(known("orders")), instance, **config)
    assert changing.calls == []


def test_a_failback_deletes_nothing_of_a_source(changing: ChangingMirror, instance: dg.DagsterInstance) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError):
        run(failback_job(known("orders")), instance, tail="rebuild", dry_run=False)
    assert changing.calls == []
    run(failback_job(known("orders")), instance, dry_run=False)
    assert not changing.calls[0]["options"].may_rebuild, "also one that was begun on the command line"


def test_a_failback_takes_the_choice_for_the_tail(changing: ChangingMirror, instance: dg.DagsterInstance) -> None:
    result = run(failback_job(known("orders")), instance, tail="copy-aside", dry_run=False)
    assert changing.calls[0]["options"] == FailbackOptions(None, dry_run=False, tail="copy-aside", may_rebuild=False)
    assert output(result)["state"] == "open"
    assert "| orders | 0 | 120 | 127 | 0 |" in output(result)["report"]
    assert run(failback_job(known("orders")), instance).success
    assert changing.calls[1]["options"] == FailbackOptions(None, dry_run=True, tail=None, may_rebuild=False)


def project_with_reverse(folder: Path) -> Path:
    path = write_project(folder, ["orders", "pay"]).path
    body = yaml.safe_load(path.read_text())
    back = {**body["mirrors"][0], "name": "back", "source": "west", "target": "east", "reverse_of": NAME}
    path.write_text(json.dumps({**body, "buffer": {"uri": str(folder / "buffer")}, "mirrors": [*body["mirrors"], back]}))
    rows = [{"name": "orders", "target_topic": "west.orders", "partitions": 3, "topic_id": "id"}]
    saved = {"version": 1, "mirror": "back", "refreshed_at": 1, "source_cluster_id": "c", "topics": rows, "excluded": []}
    (folder / ".mirror" / "back.catalogue.json").write_text(json.dumps(saved))
    return path


def promote(path: Path, topic: str) -> None:
    store = open_lane(load_config(path).buffer, NAME, FAILOVER_LANE)
    Promotions(store).add([Promotion(topic, 0, "g", PromotionState.PROMOTED, 120, 100, f"east.{topic}", "ann@box", 1)])


def test_each_mirror_has_a_failover_job_and_those_with_a_reverse_a_failback_job(tmp_path: Path) -> None:
    jobs = {job.name for job in build(read_project(project_with_reverse(tmp_path))).resolve_all_job_defs()}
    assert {"failover_east_to_west", "failback_east_to_west", "failover_back", "failback_back"} <= jobs
    alone = tmp_path / "alone"
    alone.mkdir()
    jobs = {job.name for job in build(write_project(alone, ["orders"])).resolve_all_job_defs()}
    assert "failover_east_to_west" in jobs and "failback_east_to_west" not in jobs


def test_promoted_and_standby_topics_are_shown_as_such_on_their_assets(tmp_path: Path) -> None:
    path = project_with_reverse(tmp_path)
    promote(path, "orders")
    forth, back = read_project(path).mirrors
    assert {t.topic: t.state for t in forth.topics or ()} == {"orders": PROMOTED, "pay": ""}
    assert {t.topic: t.state for t in back.topics or ()} == {"orders": STANDBY}
    orders, pay = forth.topics or ()
    for spec in (target_spec(forth, orders), source_spec(forth, orders)):
        assert spec.tags[names.STATE_TAG] == "promoted" and spec.metadata["state"] == "promoted"
        assert (spec.description or "").startswith("**Promoted**: applications write to `east.orders`")
    assert names.STATE_TAG not in target_spec(forth, pay).tags and "state" not in target_spec(forth, pay).metadata
    assert (target_spec(back, (back.topics or ())[0]).description or "").startswith("**Standby**")


def test_the_catalogue_sensor_reloads_when_a_topic_was_promoted(changing: ChangingMirror, instance: dg.DagsterInstance) -> None:
    changing.catalogue = Catalogue(NAME, 1, "c", (CatalogueTopic("orders", "east.orders", 3, "id"),), ())

    def said(state: str) -> str:
        mirror = known("orders")
        shown = replace(mirror, topics=tuple(replace(topic, state=state) for topic in mirror.topics or ()))
        with dg.build_sensor_context(instance=instance) as context:
            return catalogue_sensor.tick(context, shown, FakeMirrors()).skip_message or ""

    assert said("").startswith("no change")
    changing.states = {"orders": PROMOTED}
    assert said("").startswith("topics changed (partitions, names or states)")
    assert said(PROMOTED).startswith("no change")


def lag_with(**states: str) -> MirrorLag:
    lag = mirror_lag(**dict.fromkeys(states, 0))
    return replace(lag, topics=tuple(replace(topic, state=states[topic.topic]) for topic in lag.topics))


def test_the_lag_sensor_skips_with_the_state_and_retries_nothing() -> None:
    for states, reasons in (
        ({"orders": PROMOTED, "pay": PROMOTED}, ("promoted: orders, pay",)),
        ({"orders": PROMOTED, "pay": "ok"}, ("no lag in 1 topic", "promoted: orders")),
        ({"orders": STANDBY}, ("standby: orders",)),
    ):
        decision = decide(lag_with(**states), [], homes={}, now=1e9)
        assert (decision.starts, decision.reasons) == ((), reasons)


def test_a_promotion_is_observed_once_though_no_offset_moved() -> None:
    memory = LagMemory(None)
    before = MirrorLag(NAME, (topic_lag("orders", 0),), 0.0)
    after = MirrorLag(NAME, (replace(topic_lag("orders", 0), state=PROMOTED, code=PROMOTED),), 0.0)
    assert len(memory.see(before, 1000.0)) == 1
    assert [len(memory.see(lag, at)) for lag, at in ((before, 1010.0), (after, 1020.0), (after, 1030.0), (before, 1040.0))] == [0, 1, 0, 1]
    old = json.loads(memory.cursor())
    for topic in old["topics"].values():
        del topic["directed"]
    assert LagMemory(json.dumps(old)).stuck() == memory.stuck(), "a cursor of before is read"


def test_the_check_of_a_promoted_topic_passes_and_says_why() -> None:
    result = verdict(names.target_key(NAME, "orders"), PROMOTED, {"reason": "applications write there", "hint": "lead back"})
    assert result.passed
    assert result.description == "promoted: applications write there (lead back)"


def test_a_backfill_of_a_promoted_topic_needs_another_target(tmp_path: Path) -> None:
    path = project_with_reverse(tmp_path)
    promote(path, "orders")
    with pytest.raises(UsageError, match=r"east\.orders on cluster west was promoted at .* by ann@box") as caught:
        Mirror(load_config(path), NAME).backfill_target("orders")
    assert "--into" in caught.value.hint
