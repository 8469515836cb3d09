"""``mirror exporter`` beside a running mirror: a real Prometheus scrapes it, and its alerts come and go with an outage."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from tests.integration.processes import kill_tree, start_mirror, wait_until
from tests.support import prometheus
from tests.support.mirrors import create_topic, produce, write_config
from tests.support.webhook import web_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
NAMES = ["east", "west"]
OLD_NAME = "kafka_connect_mirror_mirrorsourceconnector_record_count"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Two clusters of one broker each, which the test may stop."""
    yield tmp_path / "clusters"
    stop_clusters(tmp_path / "clusters")


@dataclass
class Webhook:
    """Where messages go."""

    port: int
    messages: list[dict[str, Any]]

    def titles(self) -> list[str]:
        return [message["title"] for message in self.messages]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    messages: list[dict[str, Any]] = []
    with web_server(messages) as port:
        yield Webhook(port, messages)


@pytest.fixture
def config(folder: Path, tmp_path: Path, webhook: Webhook) -> Path:
    east, west = (cluster.bootstrap_servers for cluster in start_clusters(folder, names=NAMES, brokers=1))
    create_topic(east, "t", 2)
    produce(east, "t", 100, partitions=2)
    path = write_config(tmp_path, east, west, ["t.*"])
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "notify": {"urls": [f"json://127.0.0.1:{webhook.port}/"], "after": "2s"}}, indent=1))
    return path


class Exporter:
    """``mirror exporter`` as a process."""

    def __init__(self, config: Path) -> None:
        command = [sys.executable, "-m", "mirror_pipeline.cli", "exporter", "--listen", "127.0.0.1:0", "--every", "1s", "-c", str(config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"(http://127.0.0.1:(\d+)/metrics)", self.process.stdout.readline())
        assert found is not None
        self.address, self.port = found[1], int(found[2])

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of a metric's samples; None without one."""
        with urlopen(self.address, timeout=2) as answer:  # noqa: S310 - a scrape may take two seconds
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples]
        found = [sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()]
        return sum(found) if found else None


@pytest.fixture
def exporter(config: Path) -> Iterator[Exporter]:
    made = Exporter(config)
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(30) == 0


def test_without_a_run_everything_would_be_lost_and_a_source_that_is_down_delays_no_scrape(
    exporter: Exporter, config: Path, folder: Path
) -> None:
    wait_until(lambda: exporter.value("mirror_failover_loss_records") == 100, 60, "the first look")
    assert (exporter.value("mirror_lanes_running"), exporter.value("mirror_lag_records", topic="t")) == (0, 100)
    stop_clusters(folder, "east")
    wait_until(lambda: exporter.value("mirror_look_failed") == 1, 60, "the failed look")
    assert exporter.value("mirror_failover_loss_records") == 100, "the last figures stay"
    age = exporter.value("mirror_look_age_seconds")
    time.sleep(2)
    later = exporter.value("mirror_look_age_seconds")
    assert age is not None and later is not None and later > age
    text = config.read_text()
    config.write_text(text[:-20])
    time.sleep(6)
    assert exporter.value("mirror_look_failed") == 1, "a file that does not load changes nothing"
    config.write_text(text.replace('"m"', '"renamed"'))
    wait_until(lambda: exporter.value("mirror_look_failed", mirror="renamed") is not None, 60, "the changed file")


@pytest.mark.skipif(bool(prometheus.missing()), reason=prometheus.missing() or "there is one")
def test_an_outage_of_the_target_raises_alerts_and_is_told_and_both_end_with_it(
    exporter: Exporter, config: Path, folder: Path, tmp_path: Path, webhook: Webhook
) -> None:
    east, _ = (cluster.bootstrap_servers for cluster in start_clusters(folder, names=NAMES))
    process = start_mirror(config, "run")
    try:
        with prometheus.prometheus(tmp_path / "prometheus", exporter.port) as address:
            wait_until(lambda: exporter.value("mirror_lag_records", topic="t") == 0, 90, "everything on the target")

            def alerts() -> set[str]:
                with suppress(URLError):
                    return prometheus.firing(address)
                return {"prometheus is not up"}

            wait_until(lambda: not alerts(), 60, "no alert")
            wait_until(lambda: prometheus.series(address, OLD_NAME) == [100], 30, "the name of MirrorMaker 2")
            stop_clusters(folder, "west")
            produce(east, "t", 50, partitions=2, start=100)
            wait_until(lambda: alerts() >= {"MirrorBehind", "MirrorConfirmsNothing"}, 90, "the alerts")
            assert exporter.value("mirror_lanes_running") == 1
            wait_until(lambda: "mirror m: the target is down" in webhook.titles(), 60, "the message")
            wait_until(lambda: exporter.value("mirror_failover_loss_records") == 0, 60, "what waits to be staged")
            assert exporter.value("mirror_lag_records", topic="t") == 50
            start_clusters(folder, names=NAMES)
            wait_until(lambda: not alerts(), 120, "the end of the alerts")
            wait_until(lambda: exporter.value("mirror_records_total", topic="t") == 150, 30, "the count of all records")
            wait_until(lambda: "mirror m: over: the target is down" in webhook.titles(), 60, "the message that it is over")
            told = Counter(webhook.titles())
            assert (told["mirror m: the target is down"], told["mirror m: over: the target is down"]) == (1, 1), told
    finally:
        kill_tree(process)
