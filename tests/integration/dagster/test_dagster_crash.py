"""``mirror up`` that is killed: nothing is left behind, and the next one goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirror_pipeline.local.embedded.broker import has_stopped
from tests.support.dagster_page import Up, configure, consume, end, family, prefix_of, produce, start, until
from tests.support.kafka_source import ClusterPair

pytestmark = pytest.mark.timeout(900)
TOPIC = "first"


@pytest.fixture
def life(clusters: ClusterPair, tmp_path: Path) -> Iterator[Callable[[], Up]]:
    """Starts ``mirror up`` on one configuration, again and again; the last one is ended after the test."""
    config, east, west = configure(tmp_path, clusters)
    produce(east, f"{prefix_of(config)}-{TOPIC}", [f"before {n}" for n in range(10)])
    lives: list[Up] = []

    def begin() -> Up:
        lives.append(start(config, east, west))
        return lives[-1]

    yield begin
    if lives and lives[-1].process.poll() is None:
        end(lives[-1])


def all_there_once(up: Up) -> bool:
    topic = up.topic(TOPIC)
    return sorted(consume(up.west, up.target(topic))) == sorted(consume(up.east, topic))


@pytest.mark.slow
def test_killed_without_a_warning_it_leaves_nothing_and_starts_again(life: Callable[[], Up]) -> None:
    up = life()
    (run,) = until("a lane runs", lambda: up.lane_runs("STARTED"))
    up.process.kill()
    up.process.wait(30)
    until("all processes are gone", lambda: not family(up), 120)
    produce(up.east, up.topic(TOPIC), [f"after {n}" for n in range(10)])
    up = life()
    until("all is on the target, once", lambda: all_there_once(up))
    assert run["runId"] not in {r["runId"] for r in up.lane_runs("STARTED")}


def kill_at_once(up: Up) -> None:
    """Stop all, then kill all: the code server must not see its worker die, or it would tell Dagster."""
    stopped: set[int] = set()
    while new := (family(up) | {up.process.pid}) - stopped:
        for pid in new:
            os.kill(pid, signal.SIGSTOP)
        stopped.update(new)
        until("all have stopped", lambda: all(has_stopped(pid) for pid in stopped), 30)
    for pid in stopped:
        os.kill(pid, signal.SIGKILL)
    up.process.wait(30)


@pytest.mark.slow
def test_after_a_crash_of_the_machine_the_dead_run_is_failed_and_the_lane_goes_on(life: Callable[[], Up]) -> None:
    """All processes die at once, so nobody tells Dagster: its run stays "started" until the reaper looks."""
    up = life()
    until("the lane copies", lambda: len(consume(up.west, up.target(up.topic(TOPIC)))) == 10)
    (run,) = up.lane_runs("STARTED")
    kill_at_once(up)
    until("all processes are gone", lambda: not family(up), 60)
    produce(up.east, up.topic(TOPIC), [f"after {n}" for n in range(10)])
    up = life()
    until("the dead run is failed", lambda: run["runId"] in {r["runId"] for r in up.lane_runs("FAILURE")})
    whys = up.failures(run["runId"])
    assert any("by the reaper" in why and "has died" in why for why in whys), whys
    until("all is on the target, once", lambda: all_there_once(up))
    assert len(consume(up.west, up.target(up.topic(TOPIC)))) == 20
