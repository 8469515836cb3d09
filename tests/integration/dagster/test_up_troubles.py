"""Troubles under ``mirror up`` with three clusters: each is on /metrics and the page, raises its alert, and is told once with its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.place.lane_file import read_lane_file
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from tests.integration.browser import Browser, needs_chromium
from tests.integration.processes import wait_until
from tests.support import prometheus
from tests.support.dagster_page import Up, end, start
from tests.support.mirrors import create_topic, produce, trim
from tests.support.webhook import web_server

needs_prometheus = pytest.mark.skipif(bool(prometheus.missing()), reason=prometheus.missing() or "there is one")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), needs_prometheus, needs_chromium]
NAMES = ["east", "west", "north"]
TOPICS = ("orders", "big", "trimmed", "short")
SECONDS = 120.0


@dataclass
class Site:
    """``mirror up`` over three clusters, a Prometheus that scrapes it, and a web server that is told."""

    folder: Path
    east: str
    up: Up
    alerts_at: str
    browser: Browser
    messages: list[dict[str, Any]]

    @property
    def mirror(self) -> Mirror:
        return Mirror(load_config(self.up.config), "to-west")

    def get(self, path: str, form: dict[str, str] | None = None) -> str:
        request = Request(self.up.url + path, None if form is None else urlencode(form).encode())  # noqa: S310 - our own page
        request.add_header("Authorization", f"Bearer {self.up.token}")
        with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
            return str(answer.read().decode())

    def value(self, name: str, **labels: str) -> float:
        found = re.search(r"metrics: (http\S+)", (self.up.config.parent / "up.log").read_text())
        assert found is not None
        with build_opener(ProxyHandler({})).open(found[1], timeout=2) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())

    def alerts(self) -> set[str]:
        with suppress(URLError):
            return prometheus.firing(self.alerts_at)
        return set()

    def told(self, text: str) -> int:
        """How often."""
        return sum(text in message["title"] for message in self.messages)

    def begins(self, alert: str, message: str, shown: str) -> None:
        wait_until(lambda: alert in self.alerts(), SECONDS, lambda: f"the alert {alert}; now {self.alerts()}")
        wait_until(lambda: bool(self.told(message)), SECONDS, lambda: f"the message {message}; told: {[m['title'] for m in self.messages]}")
        self.browser.go(f"{self.up.url}/mirrors/m/to-west?token={self.up.token}")
        wait_until(lambda: shown in self.browser.text, SECONDS, f"the page to show {shown}")
        self.browser.picture(alert)

    def pause(self, topic: str) -> None:
        """Until the lane leaves it alone."""
        self.mirror.pause(topic)
        (store,) = self.mirror.flow.lane_stores()

        def left_alone() -> bool:
            file = read_lane_file(store)
            return topic in file.topics and file.topics[topic].state == "paused" or not file.running

        wait_until(left_alone, SECONDS, f"the lane to leave {topic} alone")

    def ends(self, alert: str, message: str, *, most: int = 1) -> None:
        wait_until(lambda: alert not in self.alerts(), SECONDS, f"the end of the alert {alert}")
        wait_until(lambda: bool(self.told(f"over: {message}")), SECONDS, f"the message that it is over: {message}")
        wait_until(lambda: self.told(message) == 2 * self.told(f"over: {message}"), SECONDS, "an end for each message")
        assert self.told(f"over: {message}") <= most, "one message for one cause"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("troubles")
    east, west, north = (cluster.bootstrap_servers for cluster in start_clusters(folder / "clusters", names=NAMES, brokers=1))
    for name in TOPICS:
        create_topic(east, name, retention__ms="3600000" if name == "short" else "-1")
        produce(east, name, 10)
    messages: list[dict[str, Any]] = []
    with web_server(messages) as port, ExitStack() as ending:
        config = folder / "mirror.yaml"
        clusters = {name: {"bootstrap_servers": servers} for name, servers in zip(NAMES, (east, west, north), strict=True)}
        mirrors = [
            {"name": "to-west", "source": "east", "target": "west", "topics": {"include": list(TOPICS)}},
            {"name": "to-north", "source": "east", "target": "north", "topics": {"include": ["orders"]}},
        ]
        notify = {"urls": [f"json://127.0.0.1:{port}/"], "after": "1s"}
        body = {"clusters": clusters, "mirrors": mirrors, "notify": notify, "buffer": {"max_bytes": "8MB"}}
        config.write_text(json.dumps(body))
        up = start(config, east, west)
        try:
            found = re.search(r"metrics: http://\S+:(\d+)/", (folder / "up.log").read_text())
            assert found is not None
            with prometheus.prometheus(folder / "prometheus", int(found[1])) as address:
                browser = Browser(folder, foreign="evil.example.com")
                ending.callback(browser.end)
                browser.resize(1280, 1000)
                made = Site(folder, east, up, address, browser, messages)
                wait_until(lambda: (made.value("mirror_lag_seconds"), made.value("mirror_lanes_running")) == (0, 2), 240, "both in step")
                yield made
        finally:
            if up.process.poll() is None:
                end(up)
            stop_clusters(folder / "clusters")


def test_a_halt(site: Site) -> None:
    site.pause("trimmed")
    produce(site.east, "trimmed", 50, start=10)
    trim(site.east, "trimmed", {0: 40})
    site.mirror.resume("trimmed")
    site.begins("MirrorTopicHalted", "topic trimmed is halted (trimmed)", "1 of 4 topics halted: trimmed (trimmed)")
    assert site.value("mirror_halts", code="trimmed") == 1
    site.get("/mirrors/m/to-west/accept", {"topic": "trimmed", "code": "trimmed"})
    site.ends("MirrorTopicHalted", "topic trimmed is halted (trimmed)")


def test_a_race_with_retention(site: Site) -> None:
    site.pause("short")
    produce(site.east, "short", 10, start=10)
    site.begins("MirrorRetentionRace", "topic short: the source may delete unread records", "source deletes unread data in")
    assert 0 < site.value("mirror_expires_seconds", topic="short") <= 3600
    site.mirror.resume("short")
    # It was told, and over, when the mirrors began, too: nothing was read then.
    site.ends("MirrorRetentionRace", "topic short: the source may delete unread records", most=2)


def test_an_outage_of_the_target_and_a_full_buffer(site: Site) -> None:
    stop_clusters(site.folder / "clusters", "west")
    produce(site.east, "orders", 10, start=10)
    site.begins("MirrorBehind", "the target is down", "the target is down since")
    produce(site.east, "big", 400, start=10, size=50_000)
    site.begins("MirrorBufferFull", "the buffer is full, so that reading waits", "the buffer is full")
    site.browser.go(f"{site.up.url}/mirrors")
    wait_until(lambda: "the target is down since" in site.browser.text, SECONDS, "the first page to show it")
    site.browser.picture("page-overview")
    site.browser.resize(390, 800)
    site.browser.picture("page-phone")
    assert site.value("mirror_buffer_full", mirror="to-west") == 1
    assert site.value("mirror_failover_loss_records", mirror="to-west") > 0
    assert site.value("mirror_lag_records", mirror="to-north") == 0, "the other mirror goes on"
    start_clusters(site.folder / "clusters", names=["west"])
    site.ends("MirrorBehind", "the target is down")
    # While it is emptied it is full again for moments, which are longer than the second that this test waits.
    site.ends("MirrorBufferFull", "the buffer is full, so that reading waits", most=20)
    wait_until(lambda: site.value("mirror_lag_records") == 0, SECONDS, "everything on the target")
    assert "in step" in site.get("/mirrors/m/to-west")
