"""A running mirror follows its mirror.yaml; a file that does not load, or asks for what needs a restart, changes nothing."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.errors import BrokerError
from mirror_pipeline.reports import RunReport
from tests.integration.processes import wait_until
from tests.support.kafka_source import ClusterPair
from tests.support.mirrors import create_topic, make_mirror, produce, values

Edit = Callable[[Callable[[dict[str, Any]], None]], None]
CHANGES: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lambda body: body["mirrors"][0].update(start="soon"), "start"),
    (lambda body: body["buffer"].update(uri="./elsewhere"), "another buffer.uri needs a restart"),
    (lambda body: body["mirrors"][0].update(name="other"), "it is not in"),
]


@pytest.fixture
def topics(clusters: ClusterPair, new_topic_name: Callable[[], str]) -> tuple[str, str]:
    """Two with 50 records each."""
    east, names = clusters[0].bootstrap_servers, (new_topic_name(), new_topic_name())
    for name in names:
        create_topic(east, name)
        produce(east, name, 50)
    return names


@pytest.fixture
def mirror(clusters: ClusterPair, topics: tuple[str, str], tmp_path: Path) -> Mirror:
    """Selects the first."""
    return make_mirror(tmp_path, clusters[0].bootstrap_servers, clusters[1].bootstrap_servers, [topics[0]])


@pytest.fixture
def edit(mirror: Mirror) -> Edit:
    path = mirror.flow.config.path

    def change(act: Callable[[dict[str, Any]], None]) -> None:
        body = json.loads(path.read_text())
        act(body)
        path.write_text(json.dumps(body))

    return change


@pytest.fixture
def report(mirror: Mirror) -> Iterator[Callable[[], RunReport]]:
    """Of a continuous run in the background, ended when it is asked for."""
    stop, reports = threading.Event(), list[RunReport]()
    thread = threading.Thread(target=lambda: reports.append(mirror.run(stop=stop)))
    thread.start()

    def ended() -> RunReport:
        stop.set()
        thread.join(60)
        (only,) = reports
        return only

    yield ended
    stop.set()
    thread.join(60)


def _contains(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return text in caplog.text


def copied(mirror: Mirror, topic: str) -> int:
    with suppress(BrokerError, KeyError):  # until it is created
        return len(values(mirror, f"east.{topic}"))
    return 0


def test_a_topic_that_is_selected_while_the_mirror_runs_is_copied_by_the_same_run(
    mirror: Mirror, edit: Edit, report: Callable[[], RunReport], topics: tuple[str, str]
) -> None:
    wait_until(lambda: copied(mirror, topics[0]) == 50, 60, "the first topic")

    def select(body: dict[str, Any]) -> None:
        body["mirrors"][0]["topics"]["include"].append(topics[1])

    edit(select)
    wait_until(lambda: copied(mirror, topics[1]) == 50, 60, "the second topic")
    done = report()
    assert (done.records, done.state, {row.topic for row in done.topics}) == (100, "ok", {topics[0], topics[1]})
    assert copied(mirror, topics[0]) == 50


def test_what_cannot_be_followed_is_said_and_changes_nothing(
    mirror: Mirror, edit: Edit, report: Callable[[], RunReport], topics: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    path, (east, _) = mirror.flow.config.path, (mirror.flow.config.clusters[alias].bootstrap_servers[0] for alias in ("east", "west"))
    wait_until(lambda: copied(mirror, topics[0]) == 50, 60, "the first topic")
    text = path.read_text()
    with caplog.at_level(logging.WARNING):
        for change, said in CHANGES:
            edit(change)
            wait_until(partial(_contains, caplog, said), 30, said)
            path.write_text(text)
    produce(east, topics[0], 10, start=50)
    wait_until(lambda: copied(mirror, topics[0]) == 60, 60, "what came afterwards")
    assert report().records == 60 and not (path.parent / "elsewhere").exists()
