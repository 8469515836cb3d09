"""Serves the page behind the gate, alone or beside Dagster's."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from mirror_pipeline.errors import UsageError
from mirror_pipeline.page.gate import PAGE_PREFIX, App, Gate, GateRules, Receive, Scope, Send, is_own

DEFAULT_PORT = 3000
PORTS_TRIED = 20


class Beside:
    """Gives each request to the page that it is for. Without another page all others lead to ours."""

    def __init__(self, own: App, other: App | None) -> None:
        self._own = own
        self._other = other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._other is not None and not is_own(scope.get("path", "")):
            await self._other(scope, receive, send)
        elif scope["type"] == "http" and not is_own(scope["path"]):
            await send({"type": "http.response.start", "status": 303, "headers": [(b"location", PAGE_PREFIX.encode())]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._own(scope, receive, send)


class _Server(uvicorn.Server):
    """Calls ``ready`` once it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def serve(own: App, rules: GateRules, *, beside: App | None = None, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT; ``ready`` is called once requests are answered. Addresses are not logged: the first request may
    contain the token."""
    gate = Gate(Beside(own, beside), rules)
    config = uvicorn.Config(
        gate, host=rules.host, port=rules.port, log_level="warning", access_log=False, proxy_headers=False, server_header=False
    )
    server = _Server(config, ready)
    with suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        sys.exit(3)  # as uvicorn.run does


def choose_port(host: str, port: int) -> int:
    """A free port: ``port`` itself, or the next free one if ``port`` is a default.

    Raises:
        UsageError: the port is taken.
    """
    last = port + PORTS_TRIED if port == DEFAULT_PORT else port
    for candidate in range(port, last + 1):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((host, candidate))
                return int(probe.getsockname()[1])
    raise UsageError(f"port {port} on {host} is taken", hint="choose another with --port; 0 picks a free one")
