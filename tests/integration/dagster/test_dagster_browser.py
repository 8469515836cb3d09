"""The page of ``mirror up`` in a real browser: people with the token use it, pages of others can neither read nor change anything."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from mirror_pipeline.orchestration import names
from mirror_pipeline.page.token import UP_TOKEN
from tests.integration.browser import Browser, needs_chromium
from tests.support.dagster_page import NAME, Up, end, family, start, until

pytestmark = pytest.mark.timeout(900)
EVIL = "evil.example.com"
LAUNCH = (
    f'mutation {{ launchRun(executionParams: {{selector: {{repositoryLocationName: "{names.LOCATION}", repositoryName: "__repository__", '
    'jobName: "mirror_evict"}, runConfigData: "{}"}) { __typename ... on LaunchRunSuccess { run { runId } } } }'
)
RUNS = "{ runsOrError { ... on Runs { results { runId jobName status } } } }"
POST = """
fetch(given[0] + "/graphql", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({query: given[1]})})
  .then(answer => answer.text()).then(done, problem => done("failed: " + problem))
"""
ATTACKS = {
    "image": "const i = new Image(); i.onload = () => done('loaded'); i.onerror = () => done('refused'); i.src = given[0] + given[1]",
    "script": "const s = document.createElement('script'); s.onload = () => done('loaded'); s.onerror = () => done('refused');"
    "s.src = given[0] + given[1]; document.body.append(s)",
    "form": "const f = document.createElement('form'), w = document.createElement('iframe'); w.name = 'w'; f.target = 'w';"
    "f.method = 'POST'; f.enctype = 'text/plain'; f.action = given[0] + given[1]; document.body.append(w, f);"
    "w.onload = () => setTimeout(() => done('refused'), 300); f.submit(); setTimeout(() => done('refused'), 5000)",
    "frame": "const w = document.createElement('iframe'); document.body.append(w); w.onload = () => {"
    "let seen = ''; try { seen = w.contentDocument && w.contentDocument.body.innerText } catch (e) {}"
    "done(seen ? 'read: ' + seen : 'refused')}; w.src = given[0] + '/runs'",
    "post without cors": "fetch(given[0] + given[1], {method: 'POST', mode: 'no-cors', credentials: 'include', body: 'x'})"
    ".then(a => a.text()).then(t => done(t ? 'read: ' + t : 'refused'), () => done('refused'))",
    "post of hidden json": "fetch(given[0] + '/graphql', {method: 'POST', mode: 'no-cors', credentials: 'include',"
    "body: new Blob([given[2]], {type: 'text/plain; application/json'})}).then(a => a.text())"
    ".then(t => done(t ? 'read: ' + t : 'refused'), () => done('refused'))",
    "post with cors": "fetch(given[0] + '/graphql', {method: 'POST', credentials: 'include', headers: {'Content-Type': 'application/json'},"
    "body: given[2]}).then(a => a.text()).then(t => done('read: ' + t), () => done('refused'))",
    "get with cors": "fetch(given[0] + '/graphql?query={version}', {credentials: 'include'})"
    ".then(a => a.text()).then(t => done('read: ' + t), () => done('refused'))",
    "socket": "const s = new WebSocket(given[0].replace('http', 'ws') + '/graphql', 'graphql-ws');"
    "s.onopen = () => done('opened'); s.onerror = () => done('refused')",
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """No brokers: the page is there without them."""
    folder = tmp_path_factory.mktemp("page")
    config = folder / "mirror.yaml"
    clusters = {"east": {"bootstrap_servers": "127.0.0.1:1"}, "west": {"bootstrap_servers": "127.0.0.1:2"}}
    mirror = {"name": NAME, "source": "east", "target": "west", "topics": {"include": [".*"]}}
    config.write_text(yaml.safe_dump({"clusters": clusters, "mirrors": [mirror]}))
    running = start(config, "127.0.0.1:1", "127.0.0.1:2")
    yield running
    if running.process.poll() is None:
        end(running)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser"), foreign=EVIL)
    yield made
    made.end()


@pytest.fixture(scope="module")
def stranger() -> Iterator[int]:
    """The port of another web server of this machine; its page is empty, the tests bring the scripts."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>stranger</title><body>stranger")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def evictions(up: Up) -> set[str]:
    return {run["runId"] for run in up.ask(RUNS)["runsOrError"]["results"] if run["jobName"] == "mirror_evict"}


def enter(browser: Browser, up: Up) -> None:
    browser.go(f"{up.url}/?token={up.token}")
    until("the token has left the address", lambda: up.token not in browser.url, 60)


@pytest.mark.long
@needs_chromium
def test_who_has_the_token_sees_the_page_and_starts_a_run(up: Up, browser: Browser) -> None:
    browser.go(up.url)
    assert "Open the address that `mirror up` printed" in browser.text
    enter(browser, up)
    until("the page is drawn", lambda: "Runs" in browser.text and "Overview" in browser.text, 120)
    (cookie,) = [found for found in browser.cookies if found["name"].startswith("mirror_up_")]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert up.token not in json.dumps(browser.cookies)
    before = evictions(up)
    answer = json.loads(browser.run(POST, up.url, LAUNCH))["data"]["launchRun"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    assert evictions(up) - before == {answer["run"]["runId"]}
    browser.go(f"{up.url}/runs")
    until("the run is in the list", lambda: answer["run"]["runId"][:8] in browser.text, 120)
    opened = ATTACKS["socket"]
    assert browser.run(opened, up.url) == "opened", "the page follows its runs over it"


@needs_chromium
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", EVIL])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_page_of_another_origin_reads_and_changes_nothing(up: Up, browser: Browser, stranger: int, host: str, attack: str) -> None:
    """In a browser that has the cookie. The page on another port of 127.0.0.1 is the same *site*: that cookie is sent along."""
    enter(browser, up)
    before = evictions(up)
    browser.go(f"http://{host}:{stranger}/")
    done = browser.run(ATTACKS[attack], up.url, "/graphql?query=" + quote(LAUNCH), json.dumps({"query": LAUNCH}))
    assert done == "refused"
    assert evictions(up) == before


@needs_chromium
def test_a_name_that_leads_here_by_a_trick_is_refused(up: Up, browser: Browser) -> None:
    """DNS rebinding: to the browser this page and the server are one origin."""
    browser.go(f"{up.url.replace('127.0.0.1', EVIL)}/?token={up.token}")
    assert "does not accept this host name" in browser.text
    before = evictions(up)
    assert browser.run(POST, "", LAUNCH).startswith("failed")
    assert evictions(up) == before


def status(url: str, *, method: str = "GET", body: bytes | None = None, **headers: Any) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, named, method=method)  # noqa: S310 - our own server
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - our own server
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def test_what_once_ran_foreign_code_is_refused_by_the_server_itself(up: Up) -> None:
    """The request by which a page could start a run with jars of its own, without a browser that might hold it back."""
    before = evictions(up)
    query = f"{up.url}/graphql?query={quote(LAUNCH)}"
    assert status(query, accept="image/*", referer="https://evil.example.com/")[0] == 401
    bearer: dict[str, Any] = {"authorization": f"Bearer {up.token}"}
    assert status(query, accept="image/*", **bearer)[0] == 405
    assert status(query, method="POST", body=b"", content_type="text/plain", **bearer)[0] == 415
    json_body = json.dumps({"query": LAUNCH}).encode()
    others: tuple[dict[str, Any], ...] = ({"host": EVIL}, {"origin": f"http://{EVIL}"}, {"sec_fetch_site": "cross-site"})
    for foreign in others:
        assert status(f"{up.url}/graphql", method="POST", body=json_body, content_type="application/json", **foreign, **bearer)[0] == 403
    assert evictions(up) == before
    assert status(f"{up.url}/healthz") == (200, "ok\n")
    assert status(f"{up.url}/server_info")[0] == 401


def test_a_run_with_resources_of_its_own_is_refused(up: Up) -> None:
    for resources in (
        {"mirror_spark": {"config": {"spark_config": {"spark.jars": "http://127.0.0.1:1/evil.jar"}}}},
        {"mirror_project": {"config": {"config_path": "/tmp/of-mine.yaml"}}},
        {"io_manager": {"config": {"base_dir": "/tmp/of-mine"}}},
    ):
        config = json.dumps({"resources": resources})
        query = LAUNCH.replace('runConfigData: "{}"', f"runConfigData: {json.dumps(config)}")
        assert up.ask(query)["launchRun"]["__typename"] == "RunConfigValidationInvalid", resources


def test_the_token_lies_in_one_closed_file_and_in_no_other_place(up: Up) -> None:
    home = up.config.parent / ".mirror" / "dagster_home"
    holders = [path for path in home.rglob("*") if path.is_file() and up.token.encode() in path.read_bytes()]
    assert holders == [home / UP_TOKEN]
    assert (home / UP_TOKEN).stat().st_mode & 0o777 == 0o600
    for pid in family(up) | {up.process.pid}:
        process = Path("/proc") / str(pid)
        try:
            assert up.token.encode() not in process.joinpath("cmdline").read_bytes() + process.joinpath("environ").read_bytes()
        except FileNotFoundError:
            continue  # a run that ended meanwhile


def test_the_token_ends_with_the_server(up: Up) -> None:
    assert end(up) == 0
    assert not (up.config.parent / ".mirror" / "dagster_home" / UP_TOKEN).exists()
