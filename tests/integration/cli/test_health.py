"""``mirror health`` tells the truth about mirrors that nobody runs, that are idle, or whose target is down, on real brokers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror_pipeline.cli.main import main
from mirror_pipeline.local.embedded.start import LocalCluster
from tests.integration.processes import start_mirror, wait_until
from tests.support.groups import running
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, end_offsets, make_mirror, produce
from tests.support.reverse_pair import IN_PROCESS

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def health(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Exit code and line of ``mirror health``."""

    def say(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["health", "-c", str(tmp_path / "mirror.yaml"), *words])
        return code, capsys.readouterr().out.strip()

    return say


def test_a_mirror_that_was_stopped_with_records_left_is_not_fine(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, health: Say
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine={**IN_PROCESS, "bandwidth": "1MB"})
    create_topic(east, topic_name)
    produce(east, topic_name, 400, size=100_000)
    process = start_mirror(tmp_path / "mirror.yaml", "run", "--once")
    wait_until(lambda: sum(end_offsets(mirror, f"east.{topic_name}", target=True).values()) > 0, 60, "some records")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 1
    code, said = health()
    assert code == 1 and said.startswith("problem: m: behind by ") and "no lane is running" in said
    assert health("--max-age", "1h")[0] == 1, "the run itself has said that it left records behind"
    assert main(["status", "--exit-code", "-c", str(tmp_path / "mirror.yaml")]) == 1


def test_an_idle_mirror_is_fine_and_a_backlog_without_a_lane_is_not(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, health: Say
) -> None:
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    mirror = make_mirror(tmp_path, east, west, [topic_name], engine=IN_PROCESS)
    create_topic(east, topic_name, retention__ms="-1")
    produce(east, topic_name, 50)
    assert mirror.run(once=True).state == "ok"
    time.sleep(1.5)
    code, said = health("--max-age", "1s")
    assert code == 0 and said.startswith("fine: 1 mirror, 1 lane, 1 topic, copied up to ")
    produce(east, topic_name, 70, start=50, at=int(time.time() * 1000) - 600_000)
    code, said = health("--max-age", "1s")
    assert code == 3 and said.startswith("stale: m: behind by 70 records, the oldest 10 m")
    code, said = health()
    assert code == 0 and said.endswith("70 records to go"), "a lane may be about to start"
    assert mirror.run(once=True).state == "ok"
    assert health("--max-age", "1s")[0] == 0


@pytest.mark.long
def test_a_target_that_is_down_is_one_line(
    cluster_factory: Callable[..., list[LocalCluster]], tmp_path: Path, new_topic_name: Callable[[], str], health: Say
) -> None:
    east, west = cluster_factory(names=["east", "west"], brokers=1)
    names = sorted(new_topic_name() for _ in range(3))
    mirror = make_mirror(tmp_path, east.bootstrap_servers, west.bootstrap_servers, names, engine=IN_PROCESS)
    for name in names:
        create_topic(east.bootstrap_servers, name)
        produce(east.bootstrap_servers, name, 50)
    with running(mirror):
        wait_until(lambda: all(end_offsets(mirror, f"east.{name}", target=True) == {0: 50} for name in names), 60, "the copies")
        code, said = health()
        assert code == 0, said
        west.kill()
        for name in names:
            produce(east.bootstrap_servers, name, 500, start=50)
        wait_until(lambda: "3 topics of" in health()[1], 60, "the outage")
        code, said = health()
        assert code == 3 and said.startswith("unreachable: m: target west down since ")
        assert said.count("west") <= 3 and "mirror check" in said and len(said) < 240, said
