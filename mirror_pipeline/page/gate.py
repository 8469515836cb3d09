"""Access control for the web page: an ASGI layer in front of Dagster's web server.

Dagster's web server has no password, accepts any Host header and any origin, and executes mutations sent by GET. This layer requires
a known Host header, no foreign origin, JSON for GraphQL, and the token.
"""

from __future__ import annotations

import hmac
import html
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH = "/healthz"
GRAPHQL = "/graphql"
PAGE_PREFIX = "/mirrors"
"""Where this tool's own page is; all other addresses are Dagster's."""
USER = "mirror.user"
# Dagster reads files by name there; this project has no notebooks.
CLOSED = ("/notebook", "/dagit/notebook")
TOKEN = "token"  # noqa: S105 - a name
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared, not bound
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_HEADERS = [
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_PAGE = """<!doctype html><meta charset="utf-8"><title>Mirror Pipeline</title>
<body style="font-family: sans-serif; max-width: 40em; margin: 4em auto"><h1>Mirror Pipeline</h1><p>{text}</p>
<form action="/"><input name="token" type="password" size="50" autocomplete="off" placeholder="token"> <button>Open</button></form>
"""
_NO_TOKEN = "Open the address that `mirror up` printed: it contains the token. The token is also in the file up.token in Dagster's folder."  # noqa: S105
_NO_USER = "The proxy in front of this page named nobody who is in `page.users` of mirror.yaml."
_WRONG = "That is not the token of this server: each start generates a new one. " + _NO_TOKEN
_ENTERED = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}"><title>Mirror Pipeline</title>'


@dataclass(frozen=True, slots=True)
class User:
    """Who sends a request; one that may not ``change`` anything only looks at this tool's own page."""

    name: str
    change: bool


@dataclass(frozen=True, slots=True)
class GateRules:
    """Which requests are allowed.

    Args:
        host: the address that the server is bound to.
        port: its port.
        token: the owner's; None allows every client that uses a known host name, or with ``user_header`` the users that it names.
        allow_hosts: additional host names, with a port or for any port, that a proxy or its browsers use.
        owner: who the owner is, as the ledger names people.
        users: others by token.
        named: others by the name that ``user_header`` has.
        user_header: lower-case name of the header in which a proxy says who the user is.
    """

    host: str
    port: int
    token: str | None = field(repr=False)
    allow_hosts: tuple[str, ...] = ()
    owner: User = User("", change=True)
    users: Mapping[str, User] = field(default_factory=dict, repr=False)
    named: Mapping[str, User] = field(default_factory=dict)
    user_header: str = ""

    @property
    def cookie(self) -> str:
        """The cookie's name. It holds the port: browsers share cookies between ports of one host."""
        return f"mirror_up_{self.port}"

    def user(self, headers: Mapping[str, str]) -> User | None:
        """Who sends these headers; None if that is not known."""
        if self.token is None:
            return self.named.get(headers.get(self.user_header, "")) if self.user_header else self.owner
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() in ("bearer", "token"):
            return self.bearer(given.strip())
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        value = cookies.get(self.cookie, "").encode()
        return self._found(lambda token: hmac.compare_digest(value, secret_of(token).encode()))

    def bearer(self, given: str) -> User | None:
        """Whose token that is."""
        return self._found(lambda token: hmac.compare_digest(given.encode(), token.encode()))

    def _found(self, fits: Callable[[str], bool]) -> User | None:
        """Every token is compared, in constant time."""
        known = {**self.users, **({} if self.token is None else {self.token: self.owner})}
        return next((user for user, fit in [(user, fits(token)) for token, user in known.items()] if fit), None)

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server: any other name indicates DNS rebinding."""
        match = _HOST.fullmatch(header.lower())
        if match is None:
            return False
        name, port = match[1], int(match[2] or 80)
        if self._allowed(name, match[0]):
            return True
        if port != self.port:
            return False
        bound = f"[{self.host}]" if ":" in self.host else self.host.lower()
        return name in _LOOPBACK or name == bound or (self.host in ANY_ADDRESS and _is_address(name))

    def knows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of that origin is this server's: the same host as the request, or an allowed name."""
        parts = urlsplit(origin)
        match = _HOST.fullmatch(parts.netloc.lower())
        if parts.scheme not in ("http", "https") or match is None:
            return False
        return match[0] == host.lower() or self._allowed(match[1], match[0])

    def _allowed(self, name: str, with_port: str) -> bool:
        return any(allowed.lower() in (name, with_port) for allowed in self.allow_hosts)


def secret_of(token: str) -> str:
    """The cookie's value: derived from the token, so that a stolen cookie does not reveal it."""
    return hmac.new(token.encode(), b"cookie", sha256).hexdigest()


class Gate:
    """The ASGI layer. The request's user is at USER in its scope."""

    def __init__(self, app: App, rules: GateRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, path, method = _headers(scope), scope["path"], scope["method"]
        if path == HEALTH and method in ("GET", "HEAD"):
            await _answer(send, 200, "ok\n")
        elif why := self._foreign(headers, method):
            await _answer(send, 403, why)
        elif path.rstrip("/") in CLOSED:
            await _answer(send, 404, "There are no notebooks here.\n")
        elif method == "GET" and any(name == TOKEN for name, _ in _query(scope)):
            await self._enter(scope, headers, send)
        elif (user := self._rules.user(headers)) is None:
            await _ask(send, headers, 401, _NO_USER if self._rules.user_header and self._rules.token is None else _NO_TOKEN)
        elif not user.change and (method not in ("GET", "HEAD") or not is_own(path)):
            await _answer(send, 403, f"{user.name} may look at {PAGE_PREFIX}, and change nothing.\n")
        elif path.rstrip("/") == GRAPHQL and (refusal := _not_json(headers, method)):
            await _answer(send, *refusal)
        else:
            scope[USER] = user
            await self._app(scope, receive, _with_headers(send))

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        user = self._rules.user(headers)
        if self._foreign(headers, "WEBSOCKET") or user is None or not user.change:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)

    def _foreign(self, headers: dict[str, str], method: str) -> str:
        """Why a request is neither from this page nor from a local program; "" if it is."""
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site", "none")
        if not self._rules.knows_host(host):
            return "This server does not accept this host name; `mirror up --allow-host NAME` allows one.\n"
        if origin is not None and not self._rules.knows_origin(origin, host):
            return "This server rejects requests from pages of other origins.\n"
        if site in ("same-origin", "none") or (method == "GET" and _is_navigation(headers)):
            return ""
        return "This server rejects requests from pages of other sites.\n"

    async def _enter(self, scope: Scope, headers: dict[str, str], send: Send) -> None:
        """Remove the token from the address and, if it is the right one, set the cookie."""
        given = [value for name, value in _query(scope) if name == TOKEN][-1]
        rest = urlencode([(name, value) for name, value in _query(scope) if name != TOKEN])
        path = scope["path"]
        extra: list[tuple[bytes, bytes]] = []
        if self._rules.token is not None:
            user = self._rules.bearer(given)
            if user is None:
                await _ask(send, headers, 403, _WRONG)
                return
            path = path if user.change or is_own(path) else PAGE_PREFIX
            extra.append((b"set-cookie", f"{self._rules.cookie}={secret_of(given)}; Path=/; HttpOnly; SameSite=Strict".encode()))
        # Never "//other.example": that would redirect to another host.
        clean = "/" + quote(path.lstrip("/")) + (f"?{rest}" if rest else "")
        extra.insert(0, (b"location", clean.encode()))
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            await _answer(send, 303, "", extra=extra)
        else:  # after a link on another site the browser withholds a strict cookie until a page of this server asks
            await _answer(send, 200, _ENTERED.format(address=html.escape(clean)), kind="text/html", extra=extra[1:])


def _headers(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name. The values of a repeated header are joined, which no rule accepts."""
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        headers[name] = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{text}" if name in headers else text
    return headers


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def page_of(mirror: str) -> str:
    """The address of a mirror's page."""
    return f"{PAGE_PREFIX}/m/{quote(mirror, safe='')}"


def is_own(path: str) -> bool:
    """Whether an address is of this tool's own page."""
    return path == PAGE_PREFIX or path.startswith(PAGE_PREFIX + "/")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_navigation(headers: dict[str, str]) -> bool:
    """Whether a link was opened as a top-level page: the page that holds the link cannot read the response."""
    mode_and_destination = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return mode_and_destination == ("navigate", "document") and "text/html" in headers.get("accept", "")


def _not_json(headers: dict[str, str], method: str) -> tuple[int, str] | None:
    """Why GraphQL is not executed; None when it is. The page itself posts JSON, which a foreign page cannot do without a preflight."""
    if method == "GET" and "text/html" in headers.get("accept", ""):
        return None  # Dagster shows its editor and executes nothing
    if method != "POST":
        return 405, "GraphQL is answered to POST.\n"
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "GraphQL is answered to application/json.\n"
    return None


async def _ask(send: Send, headers: dict[str, str], status: int, text: str) -> None:
    extra = [(b"www-authenticate", b"Bearer")] if status == 401 else []
    if "text/html" in headers.get("accept", ""):
        await _answer(send, status, _PAGE.format(text=html.escape(text)), kind="text/html", extra=extra)
    else:
        await _answer(send, status, text + "\n", extra=extra)


async def _answer(send: Send, status: int, body: str, *, kind: str = "text/plain", extra: list[tuple[bytes, bytes]] | None = None) -> None:
    content = body.encode()
    headers = [
        (b"content-type", f"{kind}; charset=utf-8".encode()),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *_HEADERS, *(extra or [])]})
    await send({"type": "http.response.body", "body": content})


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            replaced = {name for name, _ in _HEADERS}
            kept = [(name, value) for name, value in message.get("headers", []) if name.lower() not in replaced]
            message = {**message, "headers": [*kept, *_HEADERS]}
        await send(message)

    return sender
