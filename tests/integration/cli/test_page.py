"""The page in a real browser, over real clusters: used by clicks alone, by the keyboard alone, on a telephone, in the dark."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.local.embedded.start import start_clusters, stop_clusters
from tests.integration.browser import Browser, needs_chromium
from tests.integration.processes import kill_tree, start_mirror, wait_until
from tests.support.mirrors import create_topic, produce, trim

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), needs_chromium]
TAB, ENTER = "\ue004", "\ue007"
FILE = """# two sites
clusters:
  east: {{bootstrap_servers: "{east}"}}
  west: {{bootstrap_servers: "{west}"}}
mirrors:
  - name: there   # to the reserve
    source: east
    target: west
    topics: {{include: ["t.*"]}}
"""


@dataclass
class Site:
    """Two clusters, a mirror.yaml, and the page in a browser."""

    east: str
    config: Path
    browser: Browser

    def shows(self, text: str, seconds: float = 60) -> None:
        wait_until(lambda: text in self.browser.text, seconds, lambda: f"the page to show {text!r}; it shows: {self.browser.text}")

    def mirror(self, name: str) -> Mirror:
        return Mirror(load_config(self.config), name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("page")
    east, west = (cluster.bootstrap_servers for cluster in start_clusters(folder / "clusters", names=["east", "west"], brokers=1))
    create_topic(east, "t", 2)
    produce(east, "t", 100, partitions=2)
    config = folder / "mirror.yaml"
    config.write_text(FILE.format(east=east, west=west))
    command = [sys.executable, "-m", "mirror_pipeline.cli", "page", "--port", "0", "-c", str(config)]
    page = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    browser = Browser(folder, foreign="evil.example.com")
    try:
        assert page.stdout is not None
        found = re.search(r"http://\S+", page.stdout.readline())
        assert found is not None
        browser.go(found[0])
        yield Site(east, config, browser)
    finally:
        browser.end()
        page.send_signal(signal.SIGTERM)
        code = page.wait(30)
        stop_clusters(folder / "clusters")
    assert code in (0, -signal.SIGTERM)


def test_a_mirror_is_added_paused_and_a_halt_repaired_by_clicks_alone(site: Site) -> None:
    browser, mirror = site.browser, site.mirror("there")
    mirror.run(once=True)
    produce(site.east, "t", 100, partitions=2, start=100)
    trim(site.east, "t", {0: 70})
    run = start_mirror(site.config, "run")
    try:
        site.shows("1 of 1 topic halted: t (trimmed)")
        browser.click("there")
        site.shows("Accepting means to leave out what the source has deleted, and record it as a gap.")
        browser.click("Accept for t")
        site.shows("t: accepted trimmed.")
        site.shows("in step", 90)
        site.shows("failing over now would lose nothing")
        site.shows("20 records, listed by mirror gaps")
    finally:
        kill_tree(run)
    browser.click("Add a mirror")
    browser.fill("Name", "back")
    browser.choose("Copy from", "west")
    browser.choose("Copy to", "east")
    browser.fill("Topics", r"u\..*")
    browser.click("Show the plan")
    site.shows("What the mirror would do")
    site.shows("0 topics selected")
    browser.click("Save")
    site.shows("mirror.yaml is saved")
    assert site.config.read_text().startswith("# two sites") and "# to the reserve" in site.config.read_text()
    assert [each.name for each in load_config(site.config).mirrors] == ["there", "back"]
    browser.click("Mirrors")
    browser.click("there")
    browser.click("Pause the mirror")
    site.shows("there is paused")
    site.shows("was paused at")
    (store,) = mirror.flow.lane_stores()
    assert [row.kind.value for row in Decisions(store).all()][-1] == "paused"


def test_a_mirror_is_resumed_by_the_keyboard_alone(site: Site) -> None:
    browser, mirror = site.browser, site.mirror("there")
    mirror.pause()
    browser.click("Mirrors")

    def go_to(text: str) -> None:
        for _ in range(40):
            browser.press(TAB)
            if browser.run("done(document.activeElement.innerText)").strip() == text:
                browser.press(ENTER)
                return
        pytest.fail(f"{text} is not reached by the keyboard")

    go_to("there")
    site.shows("Resume the mirror")
    go_to("Resume the mirror")
    site.shows("there continues")
    (store,) = mirror.flow.lane_stores()
    assert [row.kind.value for row in Decisions(store).all()][-1] == "resumed"


def test_a_topic_is_copied_afresh_once_its_name_is_typed(site: Site) -> None:
    browser, mirror = site.browser, site.mirror("there")
    mirror.resume()
    mirror.run(once=True)
    ids = mirror.flow.target_admin().topics(["east.t"])["east.t"].topic_id
    browser.go(browser.url.split("/mirrors")[0] + "/mirrors/m/there")
    browser.click("Copy afresh…")
    site.shows("The target topic is deleted with")
    browser.click("Delete the copy and begin anew")
    site.shows("a fresh copy is confirmed by the topic's name")
    assert mirror.flow.target_admin().topics(["east.t"])["east.t"].topic_id == ids
    browser.go(browser.url.split("/mirrors")[0] + "/mirrors/m/there")
    browser.click("Copy afresh…")
    if "They would be lost" in browser.text:
        browser.click_at("Delete them")
    browser.fill("To copy it afresh, type", "t")
    browser.click("Delete the copy and begin anew")
    site.shows("t is copied afresh")
    assert mirror.flow.target_admin().topics(["east.t"])["east.t"].topic_id != ids
    first, halts = mirror.run(once=True), mirror.halts()
    for halt in halts:  # of what another test has deleted on the source
        mirror.resolve(halt.topic, halt.code)
    report = mirror.run(once=True)
    assert report.state == "ok", (report.topics, halts, first.topics)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_its_screen_in_light_and_dark(site: Site, width: int, scheme: str) -> None:
    browser = site.browser
    browser.resize(width, 800)
    browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    base = browser.url.split("/mirrors")[0]
    for page in ("", "/m/there", "/new", "/m/there/edit", "/m/there/failover"):
        browser.go(f"{base}/mirrors{page}")
        assert browser.run("done(document.scrollingElement.scrollWidth)") <= width, page
        ground = browser.run("done(getComputedStyle(document.body).backgroundColor)")
        assert (ground == "rgb(20, 23, 28)") == (scheme == "dark")
        logs = browser.run("done(performance.getEntriesByType('resource').filter(e => e.responseStatus >= 400).map(e => e.name))")
        assert logs == []


def test_a_failover_is_looked_at_and_confirmed_by_name(site: Site) -> None:
    browser = site.browser
    site.mirror("there").resume()
    site.mirror("there").run(once=True)
    browser.resize(1280, 800)
    browser.go(browser.url.split("/mirrors")[0] + "/mirrors/m/there/failover")
    browser.click("Only look what would happen")
    site.shows("What a failover would do now", 120)
    site.shows("1 topic would be handed over")
    browser.click("Fail over")
    site.shows("a failover is confirmed by the mirror's name")
    assert not site.mirror("there").halts() and site.config.exists()
    browser.go(browser.url.split("/mirrors")[0] + "/mirrors/m/there/failover")
    browser.fill("To fail over, type", "there")
    browser.click("Fail over")
    site.shows("The failover is done", 120)
    browser.click("Mirrors")
    site.shows("copies nothing", 60)
