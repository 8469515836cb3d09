"""The page behind its gate: who sees it, who may change what, and what a foreign or stale request gets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from mirror_pipeline import Mirror
from mirror_pipeline.buffer.ledger.decisions import Decisions
from mirror_pipeline.errors import ConfigError, UsageError
from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.exporter.watch import Watch, Watches
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag
from mirror_pipeline.operations.state.snapshot import Snapshot
from mirror_pipeline.operations.state.status import status
from mirror_pipeline.page import view
from mirror_pipeline.page.app import MirrorPages
from mirror_pipeline.page.gate import Gate, secret_of
from mirror_pipeline.page.server import Beside
from mirror_pipeline.page.token import rules_of
from mirror_pipeline.reports import LaneStatus

OWNER, LOOKS, CHANGES = "o" * 20, "l" * 20, "c" * 20
FILE = """
clusters:
  east: {bootstrap_servers: "127.0.0.1:1"}
  west: {bootstrap_servers: "127.0.0.1:2"}
mirrors:
  - {name: here, source: east, target: west, topics: {include: [".*"]}}
page:
  users:
    - {name: lena, token: "${env:LENA}"}
    - {name: carl, role: change, token: "${env:CARL}"}
  user_header: X-Forwarded-User
"""
FORM = {"name": "back", "source": "west", "target": "east", "include": "a\nb", "step": "save"}


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: str

    def field(self, name: str) -> str:
        found = re.search(rf'name="{name}" value="([^"]*)"', self.body)
        assert found, self.body
        return found[1]


class Server:
    """The page as it is served, asked without a socket."""

    def __init__(self, path: Path, token: str | None) -> None:
        self.watches = Watches(path, every=60)
        self.rules = rules_of(self.watches.config, "127.0.0.1", 3000, token)
        self._app = Gate(Beside(MirrorPages(self.watches, dagster=True).app(), _dagster), self.rules)

    def ask(self, target: str, form: dict[str, str] | None = None, *, token: str | None = OWNER, **headers: str) -> Answer:
        parts = urlsplit(target)
        cookie = {"cookie": f"{self.rules.cookie}={secret_of(token)}"} if token else {}
        given = {"host": "127.0.0.1:3000", **cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
        body = urlencode(form or {}).encode()
        sent: list[Any] = []

        incoming = [{"type": "http.request", "body": body}]

        async def receive() -> Any:
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "GET" if form is None else "POST", "path": parts.path, "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(), "headers": [(n.encode(), v.encode()) for n, v in given.items()], "scheme": "http",
            "server": ("127.0.0.1", 3000), "root_path": "", "http_version": "1.1",
        }  # fmt: skip
        asyncio.run(self._app(scope, receive, send))
        headers = {name.decode(): value.decode() for name, value in sent[0].get("headers", [])}
        return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]).decode())

    def csrf(self, token: str = OWNER) -> str:
        return self.ask("/mirrors/new", token=token).field("csrf")


async def _dagster(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"Dagster"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LENA", LOOKS)
    monkeypatch.setenv("CARL", CHANGES)
    path = tmp_path / "mirror.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def server(path: Path) -> Iterator[Server]:
    made = Server(path, OWNER)
    yield made
    made.watches.end()


def paused(server: Server) -> list[str]:
    """Who has paused the mirror, by its ledger."""
    stores = Mirror(server.watches.config, "here").flow.lane_stores()
    return [row.decided_by.partition("@")[0] for store in stores for row in Decisions(store).all()]


def test_an_owner_sees_every_page(server: Server) -> None:
    for target in ("/mirrors", "/mirrors/live", "/mirrors/new", "/mirrors/m/here", "/mirrors/m/here/live", "/mirrors/m/here/edit"):
        answer = server.ask(target)
        assert (answer.status, answer.headers["cache-control"]) == (200, "no-store"), target
        assert "script-src" not in answer.headers["content-security-policy"] and "unsafe" not in answer.headers["content-security-policy"]
    assert server.ask("/mirrors/m/here/points").body == "[[],[],[]]"
    assert server.ask("/mirrors/static/page.css").status == 200
    assert server.ask("/").body == "Dagster"


def test_nothing_is_seen_without_a_token(server: Server) -> None:
    for target in ("/mirrors", "/mirrors/live", "/mirrors/m/here/points", "/mirrors/static/page.css", "/"):
        assert server.ask(target, token=None).status == 401
        assert server.ask(target, token="z" * 20).status == 401


def test_a_change_is_signed_with_its_users_name(server: Server) -> None:
    answer = server.ask("/mirrors/m/here/pause", {"csrf": server.csrf(CHANGES)}, token=CHANGES)
    assert (answer.status, answer.headers["location"]) == (303, "/mirrors/m/here")
    assert paused(server) == ["carl"]
    assert "here is paused" in server.ask("/mirrors/m/here", token=CHANGES).body
    assert "here is paused" not in server.ask("/mirrors/m/here", token=CHANGES).body


def test_who_looks_changes_nothing_and_sees_no_button(server: Server) -> None:
    seen = server.ask("/mirrors/m/here", token=LOOKS)
    assert seen.status == 200 and "<button>Pause" not in seen.body and "/edit" not in seen.body and "lena (looks only)" in seen.body
    before = server.watches.config.path.read_text()
    for target in ("pause", "resume", "accept", "edit", "failover"):
        assert server.ask(f"/mirrors/m/here/{target}", {"csrf": "x", **FORM}, token=LOOKS).status == 403
    assert server.ask("/mirrors/new", FORM, token=LOOKS).status == 403
    assert server.ask("/", token=LOOKS).status == 403
    assert server.ask("/graphql", {}, token=LOOKS, content_type="application/json").status == 403
    assert paused(server) == [] and server.watches.config.path.read_text() == before
    assert server.ask(f"/?token={LOOKS}", token=None, accept="text/html").headers["location"] == "/mirrors"


@pytest.mark.parametrize("csrf", ["", "0" * 64])
def test_a_form_that_this_page_did_not_give_changes_nothing(server: Server, csrf: str) -> None:
    answer = server.ask("/mirrors/m/here/pause", {"csrf": csrf})
    assert answer.status == 400 and "before the page was started anew" in answer.body
    assert server.ask("/mirrors/new", {**FORM, "csrf": csrf}).status == 400
    assert paused(server) == []


def test_a_form_for_one_user_is_none_for_another(server: Server) -> None:
    assert server.ask("/mirrors/m/here/pause", {"csrf": server.csrf(CHANGES)}).status == 400
    assert paused(server) == []


def test_pages_of_others_change_nothing(server: Server) -> None:
    form = {"csrf": server.csrf()}
    for headers in ({"origin": "http://evil.example.com"}, {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}):
        assert server.ask("/mirrors/m/here/pause", form, **headers).status == 403
    assert server.ask("/mirrors/m/here/pause", form, host="evil.example.com").status == 403
    assert paused(server) == []


def test_a_get_changes_nothing(server: Server) -> None:
    for target in ("pause", "resume", "accept"):
        assert server.ask(f"/mirrors/m/here/{target}?csrf={server.csrf()}").status == 405
    assert paused(server) == []


def test_a_program_with_the_token_needs_no_form(server: Server) -> None:
    assert server.ask("/mirrors/m/here/pause", {}, token=None, authorization=f"Bearer {OWNER}").status == 303
    assert server.ask("/mirrors/m/here/pause", {}, token=None, authorization=f"Bearer {LOOKS}").status == 403
    assert len(paused(server)) == 1


def test_a_mirror_is_added_with_what_its_form_says(server: Server) -> None:
    page = server.ask("/mirrors/new")
    form = {**FORM, "csrf": page.field("csrf"), "mark": page.field("mark")}
    shown = server.ask("/mirrors/new", {**form, "step": "plan"})
    assert shown.status == 200 and "+   - name: back" in shown.body and "That cannot be said" in shown.body
    assert "back" not in server.watches.config.path.read_text()
    assert server.ask("/mirrors/new", form).headers["location"] == "/mirrors/m/back"
    assert server.watches.config.mirror("back").topics.include == ("a", "b")
    added = server.ask("/mirrors/m/back")
    assert added.status == 200 and "Dagster starts the mirror within a minute or two" in added.body
    assert "changed by somebody else" in server.ask("/mirrors/new", {**form, "name": "third"}).body


@pytest.mark.parametrize("change", [{"source": "evil:9092"}, {"include": "("}, {"name": "here"}, {"name": "<script>"}, {"source": "east"}])
def test_a_form_that_cannot_be_is_shown_again_with_the_reason(server: Server, change: dict[str, str]) -> None:
    page = server.ask("/mirrors/new")
    before = server.watches.config.path.read_text()
    answer = server.ask("/mirrors/new", {**FORM, "csrf": page.field("csrf"), "mark": page.field("mark"), **change})
    assert answer.status == 200 and 'role="alert"' in answer.body and "<script>" not in answer.body.replace("<script src", "")
    assert server.watches.config.path.read_text() == before


def test_a_topic_leads_to_its_asset_which_has_the_name_of_the_source_topic(server: Server) -> None:
    watch = Watch(Mirror(server.watches.config, "here"))  # which does not look
    lag = MirrorLag("here", (TopicLag("orders", "east.orders", (PartitionLag(0, 0, 0, 0, 0),)),), 0.0)
    watch.facts = Facts("here", lag=lag, lag_at=1.0)
    (row,) = view.topics(watch, find="", number="1").rows
    assert (row.asset, row.acceptable) == ("here/target/orders", False)


def test_mirrors_between_the_same_clusters_are_one_arrow_as_the_worst_of_them_is(path: Path) -> None:
    more = ["name: there, source: east, target: west", "name: back, source: west, target: east"]
    blocks = "".join(f"  - {{{mirror}, topics: {{include: [a]}}}}\n" for mirror in more)
    path.write_text(FILE.replace("page:\n", f"{blocks}page:\n"))
    watches = Watches(path, every=60)
    watches.end()
    for watch, lag, error in zip(watches.all, (5, 70_000, 0), ("", "west is gone", ""), strict=True):
        watch.facts = Facts(watch.facts.mirror, lag=_lag(lag), lag_at=1.0, error=error)
    there, back = view.picture([view.mirror_row(watch, watches.config) for watch in watches.all]).arrows
    assert (there.mirrors, there.tone, there.text) == ("here, there", "trouble", "2 mirrors · 70,005 behind")
    assert (back.mirrors, back.text) == ("back", "0 behind") and there.y != back.y


def test_a_halt_that_can_be_accepted_is_explained_once(server: Server) -> None:
    watch = Watch(Mirror(server.watches.config, "here"))  # which does not look
    watch.facts = Facts("here", lag=_lag(3, state="halted", code="recreated", reason="it was recreated"), lag_at=1.0)
    assert [topic.topic for topic, _ in view.acceptable(watch)] == ["orders"]
    assert not [cause for cause in view.other_causes(watch) if cause.kind == "halted"]
    watch.facts = Facts("here", lag=_lag(3, state="halted", code="CODE"), lag_at=1.0)
    assert [cause.subject for cause in view.other_causes(watch) if cause.kind == "halted"] == ["orders CODE"]


def test_exact_offsets_and_what_came_from_copies_are_said(path: Path) -> None:
    path.write_text(FILE.replace("name: here,", "name: here, offsets: exact,"))
    server = Server(path, OWNER)
    server.watches.end()
    (watch,) = server.watches.all
    seen = status(Snapshot(Mirror(server.watches.config, "here").flow))
    watch.facts = replace(watch.facts, status=seen)
    assert "the same as on east" in server.ask("/mirrors/m/here").body
    lane = LaneStatus("lane-0", "finished", 1.0, 1, "h", 1.0, (), 1, 1, 1, 1.0, 1.0)
    lane = replace(lane, copied={"west": 2_000_000}, left_out={"b": "it differs"})
    watch.facts = replace(watch.facts, status=replace(seen, lanes=(lane,)))
    assert "; 2.0 MB from west; b is left out: it differs" in server.ask("/mirrors/m/here").body


def _lag(records: int, **state: str) -> MirrorLag:
    return MirrorLag("here", (TopicLag("orders", "east.orders", (PartitionLag(0, 0, records, 0, records),), **state),), 0.0)  # type: ignore[arg-type]


def test_commands_in_a_text_are_code_and_nothing_else_in_it_is(server: Server) -> None:
    answer = server.ask("/mirrors/m/here/remirror?topic=no<b>")
    assert answer.status == 400 and "<code>mirror plan</code>" in answer.body and "<b>" not in answer.body


def test_a_failover_needs_the_mirrors_name(server: Server) -> None:
    answer = server.ask("/mirrors/m/here/failover", {"csrf": server.csrf(), "step": "promote", "sure": "there"})
    assert answer.status == 400 and "confirmed by the mirror&#39;s name" in answer.body


def test_a_large_form_is_refused(server: Server) -> None:
    assert server.ask("/mirrors/new", {**FORM, "csrf": server.csrf(), "include": "a" * 300_000}).status == 400


def test_a_mirror_that_is_not_there_is_one_line(server: Server) -> None:
    answer = server.ask("/mirrors/m/heer")
    assert answer.status == 400 and "did you mean &#34;here&#34;?" in answer.body


def test_a_proxy_says_who_it_is_only_without_a_token(path: Path, server: Server) -> None:
    assert server.ask("/mirrors", token=None, x_forwarded_user="carl").status == 401
    behind = Server(path, None)
    assert behind.ask("/mirrors", token=None).status == 401
    assert behind.ask("/mirrors", token=None, x_forwarded_user="mallory").status == 401
    assert behind.ask("/mirrors", token=None, x_forwarded_user="carl, lena").status == 401
    assert behind.ask("/mirrors/new", FORM, token=None, x_forwarded_user="lena").status == 403
    page = behind.ask("/mirrors/new", token=None, x_forwarded_user="carl")
    done = behind.ask("/mirrors/m/here/pause", {"csrf": page.field("csrf")}, token=None, x_forwarded_user="carl")
    assert done.status == 303 and paused(behind) == ["carl"]
    behind.watches.end()


def test_tokens_of_users_are_long_and_their_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watches = Watches(path)
    for value in ("short", OWNER, CHANGES):
        monkeypatch.setenv("LENA", value)
        with pytest.raises(UsageError, match="page.users: the token of"):
            rules_of(watches.config, "127.0.0.1", 3000, OWNER)
    monkeypatch.delenv("LENA")
    with pytest.raises(ConfigError):
        rules_of(watches.config, "127.0.0.1", 3000, OWNER)
    watches.end()


def test_a_file_that_does_not_load_is_said_and_changes_nothing(server: Server) -> None:
    server.watches.config.path.write_text("mirrors: [")
    with pytest.raises(ConfigError):
        server.watches.follow()
    answer = server.ask("/mirrors")
    assert "does not load; what is shown is from before" in answer.body and "here" in answer.body
