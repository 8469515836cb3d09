"""A socket server that speaks bytes: the tests say what it answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafka.protocol.metadata import ApiVersionsResponse

SPOKEN_BY_BROKER = [(0, 0, 9), (1, 0, 11), (2, 0, 7), (3, 0, 12), (17, 0, 1), (18, 0, 3), (22, 0, 4), (36, 0, 2), (61, 0, 0)]


class Request(NamedTuple):
    """A request as it came: header fields, and the rest."""

    api: int
    version: int
    correlation_id: int
    client_id: str
    rest: bytes


def read_exactly(connected: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes; EOFError when the client has gone."""
    data = bytearray()
    while len(data) < size:
        part = connected.recv(min(size - len(data), 1 << 16))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def read_request(connected: socket.socket) -> Request:
    """The next request."""
    frame = read_exactly(connected, struct.unpack(">i", read_exactly(connected, 4))[0])
    api, version, correlation_id, name_size = struct.unpack_from(">hhih", frame)
    return Request(api, version, correlation_id, frame[10 : 10 + name_size].decode(), frame[10 + name_size :])


def reply(request: Request, body: bytes, *, tags: bytes = b"") -> bytes:
    """A framed reply."""
    return struct.pack(">ii", 4 + len(tags) + len(body), request.correlation_id) + tags + body


def api_versions(version: int, *, error: int = 0, spoken: list[tuple[int, int, int]] = SPOKEN_BY_BROKER) -> bytes:
    """The body of an ApiVersions response, encoded by kafka-python."""
    kind = ApiVersionsResponse.ApiVersion
    keys = [kind(api_key=key, min_version=low, max_version=high) for key, low, high in spoken]
    body: bytes = ApiVersionsResponse(error_code=error, api_keys=keys).encode(version=version)
    return body


def negotiate(connected: socket.socket, **options: Any) -> None:
    """Answer the ApiVersions request that opens a connection."""
    request = read_request(connected)
    connected.sendall(reply(request, api_versions(request.version, **options)))


class ScriptedBroker:
    """Runs ``script(connection)`` for each connection, one after the other; errors in it fail the test at exit."""

    def __init__(self, *scripts: Callable[[socket.socket], None]) -> None:
        self.connections = 0
        self.failure: BaseException | None = None
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        if self.failure is not None and error is None:
            raise self.failure

    def _serve(self) -> None:
        for script in self._scripts:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connected:
                connected.settimeout(10)
                try:
                    script(connected)
                except (EOFError, ConnectionError):
                    continue
                except BaseException as error:  # noqa: BLE001 - handed to the test
                    self.failure = error
                    return


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A closed port."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]
