"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from mirror_pipeline.errors import MirrorError

HOST = "127.0.0.1"
# Below the range that Linux and macOS use for outgoing connections: a client cannot take such a port by chance.
LOWEST, HIGHEST = 15000, 32000
_TRIES = 2000


def is_free(port: int) -> bool:
    """True when a server could listen on ``port`` now (as Java does: sockets in TIME_WAIT do not count)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(taken: Collection[int] = ()) -> int:
    """A port that is free now and not in ``taken``.

    Another process may take it before it is used: the caller must be able to retry with another port.
    """
    for _ in range(_TRIES):
        port = random.randrange(LOWEST, HIGHEST)  # noqa: S311 - random so that parallel starts differ; not a secret
        if port not in taken and is_free(port):
            return port
    raise MirrorError(f"no free port between {LOWEST} and {HIGHEST} on {HOST}", hint="stop the servers that use them")


def is_listening(port: int, timeout: float = 1.0) -> bool:
    """True when something accepts connections on ``port``."""
    try:
        socket.create_connection((HOST, port), timeout=timeout).close()
    except OSError:
        return False
    return True
