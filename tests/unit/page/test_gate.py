"""Who gets past the layer in front of Dagster's web server."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mirror_pipeline.errors import UsageError
from mirror_pipeline.page import token as page
from mirror_pipeline.page.gate import Gate, GateRules, is_loopback, secret_of

TOKEN = "canary-token-0123456789"
OURS = "127.0.0.1:3000"
HTML = "text/html,*/*"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - not bound
FOREIGN = ["http://evil.example.com", "http://127.0.0.1:4444", "http://localhost:3000", "null", "https://127.0.0.1", "file://", "http://"]


class Behind:
    """Dagster's place: notes what gets through."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(dict(scope))
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x-frame-options", b"ALLOWALL"), (b"x-a", b"b")]})
            await send({"type": "http.response.body", "body": b"Dagster"})
        else:
            await send({"type": "websocket.accept"})


class Visit:
    """One request and what came back."""

    def __init__(self, rules: GateRules, target: str, method: str, headers: dict[str, str], kind: str) -> None:
        behind, self.sent = Behind(), list[Any]()
        parts = urlsplit("http://x" + target)
        given = [(name.lower().encode(), value.encode()) for name, value in headers.items() if value is not None]
        scope = {"type": kind, "path": parts.path, "query_string": parts.query.encode(), "headers": given}

        async def receive() -> Any:
            return {"type": f"{kind}.connect"}

        async def send(message: Any) -> None:
            self.sent.append(message)

        asyncio.run(Gate(behind, rules)({**scope, **({"method": method} if kind == "http" else {})}, receive, send))
        self.passed = bool(behind.seen)
        self.seen = behind.seen
        self.status = self.sent[0].get("status", self.sent[0]["type"])
        self.headers = {name.decode(): value.decode() for name, value in self.sent[0].get("headers", [])}
        self.body = self.sent[-1].get("body", b"").decode()


def rules(**changes: Any) -> GateRules:
    return GateRules(**{"host": "127.0.0.1", "port": 3000, "token": TOKEN, **changes})


def visit(target: str = "/", method: str = "GET", *, by: GateRules | None = None, kind: str = "http", **headers: Any) -> Visit:
    """With our Host header unless told; underscores in names stand for dashes."""
    named = {name.replace("_", "-"): value for name, value in {"host": OURS, **headers}.items()}
    return Visit(by or rules(), target, method, named, kind)


def known(**headers: str) -> dict[str, Any]:
    return {"cookie": f"other=1; mirror_up_3000={secret_of(TOKEN)}", **headers}


def test_without_the_token_nothing_is_shown() -> None:
    for target in ("/", "/graphql", "/server_info", "/runs", "/download_debug/x", "/logs/a/b.err", "/_next/static/app.js"):
        for method in ("GET", "POST", "HEAD", "DELETE"):
            answer = visit(target, method)
            assert (answer.status, answer.passed) == (401, False), (target, method)
    assert "up.token" in visit(accept=HTML).body
    assert visit().headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x", "Ⅷ"])
def test_a_wrong_token_is_refused_wherever_it_stands(wrong: str) -> None:
    assert visit(f"/?token={wrong}").status == 403
    assert "set-cookie" not in visit(f"/?token={wrong}").headers
    assert not visit(authorization=f"Bearer {wrong}").passed
    assert not visit(cookie=f"mirror_up_3000={wrong}").passed
    # The cookie's value is no token, the token no cookie.
    assert not visit(cookie=f"mirror_up_3000={TOKEN}").passed
    assert not visit(authorization=f"Bearer {secret_of(TOKEN)}").passed


def test_the_printed_address_gives_a_cookie_and_leads_to_the_clean_one() -> None:
    answer = visit(f"/runs?status=x%20y&token={TOKEN}", sec_fetch_site="none", accept=HTML)
    assert (answer.status, answer.passed) == (303, False)
    assert answer.headers["location"] == "/runs?status=x+y"
    cookie = answer.headers["set-cookie"]
    assert "; HttpOnly" in cookie and "; SameSite=Strict" in cookie and TOKEN not in cookie
    assert visit("/runs", cookie=cookie.split(";")[0]).passed
    assert TOKEN not in str(answer.sent)


@pytest.mark.parametrize("target", ["//evil.example.com/", "///evil.example.com", "/\\evil.example.com", "/%5Cevil"])
def test_the_clean_address_never_leads_away(target: str) -> None:
    where = visit(f"{target}?token={TOKEN}").headers["location"]
    assert where.startswith("/") and not where.startswith(("//", "/\\"))


def test_a_token_in_the_address_is_taken_out_even_of_a_known_visitor_and_does_nothing_in_a_post() -> None:
    assert visit(f"/?token={TOKEN}", **known()).status == 303
    assert visit(f"/graphql?token={TOKEN}", "POST", content_type="application/json").status == 401


def test_a_link_on_another_site_enters_by_a_page_of_ours() -> None:
    """The browser keeps the strict cookie back on the redirect that such a link leads to."""
    navigation: dict[str, Any] = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    answer = visit(f"/a?b=%22%3E&token={TOKEN}", accept=HTML, **navigation)
    assert answer.status == 200 and "set-cookie" in answer.headers and "location" not in answer.headers
    assert 'url=/a?b=%22%3E"' in answer.body


def test_programs_show_the_token_in_a_header() -> None:
    for scheme in ("Bearer", "bearer", "token"):
        answer = visit("/graphql", "POST", authorization=f"{scheme} {TOKEN}", content_type="application/json; charset=utf-8")
        assert answer.passed
    assert not visit("/graphql", "POST", authorization=f"Basic {TOKEN}", content_type="application/json").passed


@pytest.mark.parametrize(
    "host", ["evil.example.com", "evil.example.com:3000", "127.0.0.1", "127.0.0.1:3001", "", "127.0.0.1.nip.io:3000", "10.0.0.1:3000",
             "127.0.0.1:3000, evil", "127.0.0.1:3000@evil", "2130706433:3000", "[::1]", "127.0.0.1:3000/x", "localhost:"]
)  # fmt: skip
def test_another_name_is_refused_even_with_the_token(host: str) -> None:
    """DNS rebinding: the browser believes that the page and we are one site, and sends what it has of that site."""
    for target in ("/", "/graphql", f"/?token={TOKEN}"):
        answer = visit(target, host=host, **known())
        assert (answer.status, answer.passed) == (403, False), host
    assert not visit(kind="websocket", host=host, **known()).passed


@pytest.mark.parametrize("host", ["127.0.0.1:3000", "localhost:3000", "LOCALHOST:3000", "[::1]:3000"])
def test_our_names_are_known(host: str) -> None:
    assert visit(host=host, **known()).passed


def test_names_that_were_allowed_are_known() -> None:
    by = rules(allow_hosts=("mirror.example.com", "other.example.com:8443"))
    assert visit(by=by, host="mirror.example.com", **known()).passed
    assert visit(by=by, host="Mirror.Example.com:444", origin="https://mirror.example.com:444", **known()).passed
    assert visit(by=by, host=OURS, origin="https://mirror.example.com", **known()).passed
    assert visit(by=by, host="other.example.com:8443", **known()).passed
    assert not visit(by=by, host="other.example.com", **known()).passed
    assert not visit(by=by, host="evil.example.com", **known()).passed


def test_a_server_on_all_addresses_is_known_by_any_of_them_but_by_no_name() -> None:
    by = rules(host=EVERYWHERE)
    assert visit(by=by, host="192.0.2.7:3000", **known()).passed
    assert visit(by=by, host="[2001:db8::7]:3000", **known()).passed
    assert not visit(by=by, host="evil.example.com:3000", **known()).passed
    assert visit(by=rules(host="192.0.2.7"), host="192.0.2.7:3000", **known()).passed


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_page_of_another_origin_is_refused_even_with_the_cookie(origin: str) -> None:
    """Another port of this host is the same site: the browser sends it the cookie, strict as it is."""
    for method in ("GET", "POST", "OPTIONS", "PUT"):
        answer = visit("/graphql", method, origin=origin, content_type="application/json", **known())
        assert (answer.status, answer.passed) == (403, False)
        assert "access-control-allow-origin" not in answer.headers
    socket = visit("/graphql", kind="websocket", origin=origin, **known())
    assert (socket.status, socket.passed) == ("websocket.close", False)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_only_lead_people_here(site: str) -> None:
    navigation: dict[str, Any] = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document", "accept": HTML}
    assert visit(**navigation, **known()).passed
    changes: tuple[dict[str, str], ...] = (
        {"sec_fetch_dest": "iframe"}, {"sec_fetch_dest": "image"}, {"sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
        {"accept": "image/*"}, {"sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
    )  # fmt: skip
    for change in changes:
        assert visit("/x", **{**navigation, **change}, **known()).status == 403
    assert visit("/graphql", "POST", **navigation, content_type="application/json", **known()).status == 403
    assert not visit("/graphql", kind="websocket", **navigation, **known()).passed


def test_our_own_page_may_do_everything() -> None:
    own: dict[str, Any] = {"origin": f"http://{OURS}", "sec_fetch_site": "same-origin"}
    assert visit("/graphql", "POST", content_type="application/json", **own, **known()).passed
    assert visit("/graphql", kind="websocket", **own, **known()).passed
    assert visit("/_next/app.js", sec_fetch_site="same-origin", sec_fetch_mode="no-cors", sec_fetch_dest="script", **known()).passed


def test_a_socket_needs_the_token_too() -> None:
    assert visit("/graphql", kind="websocket", origin=f"http://{OURS}").status == "websocket.close"
    assert visit("/graphql", kind="websocket", authorization=f"Bearer {TOKEN}").passed


def test_graphql_is_executed_for_posted_json_alone() -> None:
    """A GET, a form, and text need no permission of a foreign page; Dagster executes mutations that come so."""
    query = "/graphql?query=mutation%7BreloadWorkspace%7B__typename%7D%7D"
    for target in (query, query.replace("/graphql", "/graphql/")):
        assert visit(target, accept="image/*", **known()).status == 405
        assert visit(target, **known()).status == 405
        assert visit(target, "HEAD", **known()).status == 405
    assert visit("/graphql", accept=HTML, **known()).passed  # the editor
    for kind in ("", "text/plain", "application/graphql", "application/x-www-form-urlencoded", "text/plain; application/json"):
        assert visit(query, "POST", content_type=kind, **known()).status == 415, kind


def test_files_by_name_are_not_served() -> None:
    for path in ("/notebook", "/dagit/notebook", "/notebook/"):
        assert visit(f"{path}?path=/etc/x.ipynb&repoLocName=a", **known()).status == 404


def test_probes_learn_that_it_is_there_and_nothing_else() -> None:
    answer = visit("/healthz", host="10.1.2.3:3000")
    assert (answer.status, answer.body, answer.passed) == (200, "ok\n", False)


def test_without_a_token_names_and_origins_still_count() -> None:
    open_to_all = rules(token=None)
    assert visit(by=open_to_all).passed
    assert visit("/?token=old", by=open_to_all).headers["location"] == "/"
    assert not visit(by=open_to_all, host="evil.example.com").passed
    assert not visit("/graphql", "POST", by=open_to_all, origin="http://evil.example.com", content_type="application/json").passed
    assert visit("/graphql", by=open_to_all, accept="image/*").status == 405


def test_every_answer_may_not_be_framed_or_read_by_others() -> None:
    for answer in (visit(), visit(**known()), visit(host="evil"), visit(accept=HTML)):
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert visit(**known()).headers["x-a"] == "b"


def test_the_token_shows_nowhere() -> None:
    assert TOKEN not in repr(rules())


def test_the_token_is_kept_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(page.TOKEN_ENV, raising=False)
    token = page.make_token()
    assert token != page.make_token() and len(token) >= 43
    path = page.write_token(tmp_path, token)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert page.known_token() is None
    monkeypatch.setenv(page.TOKEN_FILE_ENV, str(path))
    assert page.known_token() == token
    page.write_token(tmp_path, None)
    assert not path.exists() and page.known_token() is None
    monkeypatch.setenv(page.TOKEN_ENV, TOKEN)
    assert (page.make_token(), page.known_token()) == (TOKEN, TOKEN)


@pytest.mark.parametrize("weak", ["short", "has spaces in it all over", "ümläut-is-not-ascii-here", "with&ampersand=and-more"])
def test_a_token_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, weak: str) -> None:
    monkeypatch.setenv(page.TOKEN_ENV, weak)
    with pytest.raises(UsageError, match="at least 16") as caught:
        page.make_token()
    assert weak not in str(caught.value)


def test_who_opens_the_page_to_others_is_told() -> None:
    assert page.warning("127.0.0.1", True) == page.warning("localhost", True) == page.warning("::1", True) == ""
    assert "every user" in page.warning("127.8.8.8", False)
    assert "without TLS" in page.warning(EVERYWHERE, True)
    assert page.warning("192.0.2.1", False).startswith("WARNING: no token")
    assert is_loopback("127.0.0.1") and not is_loopback(EVERYWHERE) and not is_loopback("mirror.example.com")
    assert page.address(EVERYWHERE, 1) == "http://127.0.0.1:1" and page.address("::1", 1) == "http://[::1]:1"
