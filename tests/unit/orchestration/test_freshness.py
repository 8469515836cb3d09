"""The check `fresh`: red and green mean lag in time."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.lags import MirrorLag
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.checks import moment
from mirror_pipeline.orchestration.freshness import NEWS_A_TICK, fresh_check, fresh_events, unknown_events
from mirror_pipeline.orchestration.sensors.lag_decision import LagMemory
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, known, mirror_lag, topic_lag


class Looks:
    """Ticks that share a cursor."""

    def __init__(self, *topics: str) -> None:
        self.mirror, self.cursor = known(*topics), ""

    def say(self, **seconds: float | None) -> dict[str, tuple[bool, str]]:
        """What the checks say of topics with so much lag in time; 0 stands for no lag."""
        rows = [topic_lag(name, 0 if late == 0 else 9, seconds=late) for name, late in seconds.items()]
        return self.tick(MirrorLag(NAME, tuple(rows), None))

    def tick(self, lag: MirrorLag) -> dict[str, tuple[bool, str]]:
        memory = LagMemory(self.cursor)
        memory.see(lag, 1_000.0)
        events = fresh_events(self.mirror, lag, memory)
        self.cursor = memory.cursor()
        return {names.topic_of(event.asset_key): (event.passed, event.description or "") for event in events}

    def blind(self, now: float) -> dict[str, tuple[bool, str]]:
        """What they say while the lag cannot be measured."""
        memory = LagMemory(self.cursor)
        events = unknown_events(self.mirror, "east is down", memory, now)
        assert all(event.severity == dg.AssetCheckSeverity.WARN for event in events)
        self.cursor = memory.cursor()
        return {names.topic_of(event.asset_key): (event.passed, event.description or "") for event in events}


def test_it_changes_where_the_lag_passes_the_bound_and_is_told_once() -> None:
    looks = Looks("orders", "idle")
    begun = {"orders": (True, "9 records behind, the oldest for 3.0 s"), "idle": (True, "nothing is missing")}
    assert looks.say(orders=3.0, idle=0) == begun
    assert looks.say(orders=299.0, idle=0) == {}
    assert looks.say(orders=301.0, idle=0) == {"orders": (False, "9 records behind, the oldest for 5 m 01 s")}
    assert looks.say(orders=900.0, idle=0) == {}
    assert looks.say(orders=299.0, idle=0) == {}, "not green at once: it would flicker"
    assert looks.say(orders=149.0, idle=0).keys() == {"orders"}


def test_what_is_not_known_is_not_said() -> None:
    looks = Looks("orders")
    assert looks.say(orders=None) == {}
    assert looks.say(orders=400.0)["orders"][0] is False
    assert looks.say(orders=None) == {}
    assert looks.say(another=900.0) == {}, "it has no asset yet"


def test_a_topic_that_is_left_alone_is_not_late() -> None:
    looks = Looks("orders")
    paused = replace(topic_lag("orders", 9, seconds=900.0), state="paused")
    assert looks.tick(MirrorLag(NAME, (paused,), None)) == {"orders": (True, "paused: left alone")}


def test_green_becomes_a_warning_once_the_lag_has_not_been_known_for_minutes() -> None:
    looks = Looks("orders", "late", "paused")
    paused = replace(topic_lag("paused", 9, seconds=900.0), state="paused")
    lag = MirrorLag(NAME, (topic_lag("orders", 0), topic_lag("late", 9, seconds=900.0), paused), None)
    looks.tick(lag)
    assert looks.blind(2_000.0) == {}
    assert looks.blind(2_300.0) == {}, "a broker that restarts is back before"
    assert looks.blind(2_310.0) == {"orders": (False, f"not known since {moment(2_000.0)}: east is down")}
    assert looks.blind(9_000.0) == {}, "told once"
    assert looks.tick(lag) == {"orders": (True, "nothing is missing")}
    assert looks.blind(9_900.0) == {}, "counted from this outage"


def test_of_thousands_those_that_are_late_come_first_and_the_others_over_some_ticks() -> None:
    many = [f"t{number:04}" for number in range(3 * NEWS_A_TICK)]
    looks, late = Looks(*many), many[-2:]
    first = looks.say(**{name: 900.0 if name in late else 1.0 for name in many})
    assert len(first) == NEWS_A_TICK and {name for name, (passed, _) in first.items() if not passed} == set(late)
    again = [looks.say(**{name: 900.0 if name in late else 1.0 for name in many}) for _ in range(3)]
    assert [len(each) for each in again] == [NEWS_A_TICK, NEWS_A_TICK, 0]


@pytest.mark.parametrize(("seconds", "passed"), [(3.0, True), (900.0, False)])
def test_it_can_be_evaluated_on_demand(instance: dg.DagsterInstance, fake: FakeMirror, seconds: float, passed: bool) -> None:
    fake.lag_answer = MirrorLag(NAME, (topic_lag("orders", 9, seconds=seconds),), None)
    (found,) = evaluated(instance).get_asset_check_evaluations()
    assert (found.passed, found.check_name) == (passed, names.FRESH_CHECK)


def test_without_the_source_the_run_says_why(instance: dg.DagsterInstance, fake: FakeMirror) -> None:
    fake.lag_answer = ClusterUnreachable("east", "connection refused")
    ran = evaluated(instance)
    assert not ran.success and not ran.get_asset_check_evaluations()
    fake.lag_answer = mirror_lag(orders=0)
    assert evaluated(instance).success


def evaluated(instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    check = fresh_check(known("orders"))
    job = dg.define_asset_job("look", selection=dg.AssetSelection.checks(check))
    defs = dg.Definitions(asset_checks=[check], jobs=[job], resources={"mirror_project": FakeMirrors()})
    return defs.resolve_job_def("look").execute_in_process(instance=instance, raise_on_error=False)
