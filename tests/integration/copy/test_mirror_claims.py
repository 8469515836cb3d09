"""Two mirrors of one file that would write one target topic: one does, the other is refused it and writes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.engine.driver import lane
from mirror_pipeline.reports import RunReport
from tests.integration.processes import wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, produce, values


def two_mirrors(folder: Path, clusters: ClusterPair, stem: str) -> tuple[Mirror, Mirror]:
    """``first`` copies ``x_STEM`` under its own name, ``second`` copies ``STEM`` as ``x_STEM``, and ``STEM-other``."""
    east, west = (cluster.bootstrap_servers for cluster in clusters)
    body: dict[str, Any] = {
        "clusters": {alias: {"bootstrap_servers": at} for alias, at in (("east", east), ("south", east), ("west", west))},
        "buffer": {"uri": "./buffer"},
        "engine": {"inline_bytes": "1GB"},
        "mirrors": [
            {"name": "first", "source": "east", "target": "west", "naming": "identity", "topics": {"include": [f"x_{stem}"]}},
            {"name": "second", "source": "south", "target": "west", "naming": "x_{topic}", "topics": {"include": [f"{stem}(-other)?"]}},
        ],
    }
    path = folder / "mirror.yaml"
    path.write_text(json.dumps(body))
    config = load_config(path)
    return Mirror(config, "first"), Mirror(config, "second")


def together(*works: Callable[[], RunReport]) -> list[RunReport]:
    """Runs side by side; their reports in order."""
    reports: dict[int, RunReport] = {}
    threads = [threading.Thread(target=lambda n=n, work=work: reports.__setitem__(n, work())) for n, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [reports[number] for number in sorted(reports)]


def expected(count: int, start: int = 0) -> list[str]:
    return [f"value-{number}".ljust(20, ".") for number in range(start, start + count)]


def states(report: RunReport) -> dict[str, tuple[str, str, int]]:
    return {row.topic: (row.state, row.code, row.records) for row in report.topics}


def test_started_together_the_first_of_the_file_writes_and_the_second_is_refused(
    clusters: ClusterPair, tmp_path: Path, topic_name: str
) -> None:
    east = clusters[0].bootstrap_servers
    for number, name in enumerate((f"x_{topic_name}", topic_name, f"{topic_name}-other")):
        create_topic(east, name)
        produce(east, name, 40, start=100 * number)
    first, second = two_mirrors(tmp_path, clusters, topic_name)
    (blocked,) = [row for row in second.plan().topics if row.blockers]
    assert blocked.topic == topic_name and f"{topic_name} of second, and x_{topic_name} of first" in blocked.blockers[0]
    assert [f.what for f in second.check() if not f.ok] == [f"topic {topic_name}"]
    (row,) = first.plan().topics
    assert not row.blockers and any("second is refused" in warning for warning in row.warnings)
    for _ in range(2):
        ours, theirs = together(lambda: first.run(once=True), lambda: second.run(once=True))
        assert states(ours)[f"x_{topic_name}"][:2] == ("ok", "")
        assert states(theirs)[topic_name] == ("halted", "target_claimed", 0)
        assert states(theirs)[f"{topic_name}-other"][0] == "ok"
        assert values(first, f"x_{topic_name}") == expected(40)
        assert values(second, f"x_{topic_name}-other") == expected(40, 200)


@pytest.mark.long
@pytest.mark.parametrize("later", ["first", "second"])
def test_a_topic_that_appears_while_they_run_is_refused_to_the_later_one(
    clusters: ClusterPair, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    monkeypatch.setattr(lane, "DISCOVER_SECONDS", 1.0)
    monkeypatch.setattr(lane, "RAREST_DISCOVER_SECONDS", 2.0)
    east = clusters[0].bootstrap_servers
    topics = {"first": f"x_{topic_name}", "second": topic_name}
    early = topics["second" if later == "first" else "first"]
    anchor = f"{topic_name}-other"
    for name in (early, anchor):
        create_topic(east, name)
        produce(east, name, 30)
    first, second = two_mirrors(tmp_path, clusters, topic_name)
    mirrors = {"first": first, "second": second}
    stop = threading.Event()

    def run(name: str) -> Callable[[], RunReport]:
        return lambda: mirrors[name].run(stop=stop)

    def appear() -> RunReport:
        try:
            wait_until(lambda: len(values(first, f"x_{topic_name}")) == 30 if begun(first, topic_name) else False, 60, "the early one")
            create_topic(east, topics[later])
            produce(east, topics[later], 25, start=500)
            if later == "first":  # it selects nothing before
                return mirrors["first"].run(seconds=10)
            wait_until(lambda: "target_claimed" in {halt.code for halt in second.halts()}, 60, "the halt")
            produce(east, early, 5, start=30)
            wait_until(lambda: len(values(first, f"x_{topic_name}")) == 35, 60, "the early one to go on")
            return RunReport("", "ok", 0, 0, 0.0, ())
        finally:
            stop.set()

    running = ["second"] if later == "first" else ["first", "second"]
    *reports, last = together(*(run(name) for name in running), appear)
    refused = last if later == "first" else reports[1]
    assert states(refused)[topics[later]] == ("halted", "target_claimed", 0)
    assert all(row.state == "ok" for report in reports for row in report.topics if row.topic != topics[later])
    assert values(first, f"x_{topic_name}") == expected(30 if later == "first" else 35)
    assert values(second, f"x_{anchor}") == expected(30)


def begun(mirror: Mirror, topic: str) -> bool:
    return f"x_{topic}" in mirror.flow.target_admin().topics()
