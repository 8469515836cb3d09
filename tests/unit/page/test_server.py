"""Where the page listens."""

from __future__ import annotations

import socket

import pytest

from mirror_pipeline.errors import UsageError
from mirror_pipeline.page import server
from mirror_pipeline.page.server import choose_port


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on 127.0.0.1 is taken"):
            choose_port("127.0.0.1", port)


def test_the_default_port_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(server, "DEFAULT_PORT", port)
        assert port < choose_port("127.0.0.1", port) <= port + server.PORTS_TRIED
