"""A lane as Dagster runs it, over a mirror in memory."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.assets import lane_assets
from mirror_pipeline.orchestration.failures import failure
from mirror_pipeline.orchestration.step_thread import SupervisorGone, Worker
from mirror_pipeline.reports import Progress
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, NoSpark, known

OP = names.unique("lane", NAME, "lane-0")


def materialize(
    instance: dg.DagsterInstance, topics: list[str], *, select: list[str] | None = None, **config: Any
) -> dg.ExecuteInProcessResult:
    lane = lane_assets(known(*topics), "lane-0")
    return dg.materialize(
        [lane],
        selection=[names.target_key(NAME, topic) for topic in select] if select else None,
        resources={"mirror_project": FakeMirrors(), "mirror_spark": NoSpark()},
        instance=instance,
        run_config={"ops": {OP: {"config": config}}},
        raise_on_error=False,
    )


def latest(instance: dg.DagsterInstance, topic: str) -> dict[str, Any] | None:
    event = instance.get_latest_materialization_event(names.target_key(NAME, topic))
    if event is None or event.asset_materialization is None:
        return None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def test_one_result_for_each_selected_topic(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.records = {"orders": 5, "quiet": 0}
    result = materialize(instance, ["orders", "quiet"])
    assert result.success
    orders = latest(instance, "orders")
    assert orders is not None
    assert (orders["records"], orders["bytes"], orders["micro_batches"]) == (5, 50, 3)
    quiet = latest(instance, "quiet")
    assert quiet is not None and quiet["records"] == 0, "who selects a topic by hand gets a word on it"


def test_idle_topics_stay_silent_in_a_run_of_the_whole_lane(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.records = {"orders": 5, "quiet": 0}
    assert materialize(instance, ["orders", "quiet"], select=["orders"], whole_lane=True).success
    assert latest(instance, "orders") is not None
    assert latest(instance, "quiet") is None
    assert fake.calls[0]["topics"] is None


def test_a_selection_by_hand_copies_only_what_is_selected(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    assert materialize(instance, ["orders", "other"], select=["orders"], budget_seconds=90.0, idle_seconds=7.0).success
    call = fake.calls[0]
    assert (call["topics"], call["lane"], call["seconds"], call["idle_seconds"], call["session"]()) == ({"orders"}, 0, 90.0, 7.0, "session")


def test_the_copying_leaves_the_main_thread_to_dagster(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    assert materialize(instance, ["orders"]).success
    assert fake.calls[0]["thread"] is not threading.main_thread()


def test_progress_is_materialized_on_the_way(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    seen = threading.Event()

    def script(observer: Callable[[Progress], None], stop: threading.Event) -> None:
        observer(fake.picture(part=0.0))
        for part in (0.2, 0.4):
            observer(fake.picture(part=part))
            seen.wait(0.7)  # longer than one look of the main thread

    fake.script, fake.records = script, {"orders": 10}
    assert materialize(instance, ["orders"], report_interval=1.0).success
    events = instance.fetch_materializations(names.target_key(NAME, "orders"), limit=10).records
    numbers = [int(str(r.asset_materialization.metadata["records"].value)) for r in reversed(events) if r.asset_materialization]
    assert len(numbers) >= 2
    assert numbers == sorted(numbers)
    assert numbers[-1] == 10


def test_a_topic_that_appears_while_the_lane_runs_is_recorded(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.records = {"orders": 5, "brand.new": 3}
    assert materialize(instance, ["orders"], whole_lane=True).success
    found = latest(instance, "brand.new")
    assert found is not None and found["records"] == 3


def test_a_halted_topic_fails_the_run_and_the_good_ones_stay_recorded(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.halted = {"bad": ("the source deleted offsets 3 to 9", "mirror resync bad")}
    result = materialize(instance, ["orders", "bad"])
    assert not result.success
    assert latest(instance, "orders") is not None
    assert latest(instance, "bad") is None, "a halt is no copy made"
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data.user_failure_data
    assert data is not None
    for part in ("bad", "the source deleted offsets 3 to 9", "mirror resync bad", "lane east-to-west/0"):
        assert part in (data.description or "")
    seen = instance.fetch_observations(names.target_key(NAME, "bad"), limit=1).records
    assert seen[0].asset_observation is not None
    assert seen[0].asset_observation.metadata["reason"].value == "the source deleted offsets 3 to 9"


def test_dagster_does_not_retry_what_the_lag_sensor_starts_again() -> None:
    assert failure("no").allow_retries is False


def test_an_unreachable_cluster_is_one_line(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    fake.run_error = ClusterUnreachable("west", "cluster west does not answer", hint="is it up?")
    result = materialize(instance, ["orders"])
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data = failed.step_failure_data.user_failure_data
    assert data is not None
    assert data.description == "lane east-to-west/0: cluster west does not answer (is it up?)"


def test_a_run_from_the_assets_page_gets_the_tags_of_its_lane(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    result = materialize(instance, ["orders"], budget_seconds=600.0)
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["mirror/lane"] == "east-to-west/0"
    assert run.tags["dagster/max_runtime"] == "900"


def test_terminate_ends_the_loop_in_order_and_records_what_was_copied(fake: FakeMirror, instance: dg.DagsterInstance) -> None:
    """What "terminate" in the UI does: Dagster interrupts the step's main thread."""
    ended: list[bool] = []

    def script(observer: Callable[[Progress], None], stop: threading.Event) -> None:
        observer(fake.picture(part=0.5))
        (run,) = instance.get_runs()
        instance.report_run_canceling(run)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        ended.append(stop.wait(20))

    fake.script, fake.records = script, {"orders": 10}
    result = materialize(instance, ["orders"])
    run = instance.get_run_by_id(result.run_id)
    assert run is not None and run.status is dg.DagsterRunStatus.CANCELED
    assert ended == [True]
    orders = latest(instance, "orders")
    assert orders is not None and orders["records"] == 10


def test_an_interrupt_while_the_copy_starts_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    def call(observer: Callable[[Progress], None], stop: threading.Event) -> None:
        ended.append(stop.wait(20))

    def interrupted() -> None:
        start()
        raise KeyboardInterrupt

    worker = Worker(call, name="test")
    start = worker._thread.start
    monkeypatch.setattr(worker._thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), worker:
        pass
    assert ended == [True]


def test_a_run_ends_when_its_mirror_up_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    def call(observer: Callable[[Progress], None], stop: threading.Event) -> None:
        ended.append(stop.wait(20))

    monkeypatch.setenv("MIRROR_UP_PID", str(_dead_process()))
    with pytest.raises(SupervisorGone), Worker(call, name="test") as worker:
        list(worker.watch())
    assert ended == [True]


def _dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid
