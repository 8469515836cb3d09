"""A TCP proxy that understands Kafka's frames and does harm by request type and direction.

Every frame is a 4-byte length and a body; a request's body begins with api key, version and correlation id. A broker
answers the requests of a connection in order, so a response belongs to the oldest request that has none yet. What is
done to a request or to its response is decided when the request comes by.

The broker must advertise the proxy's address: see :func:`proxied_cluster`.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, INIT_PRODUCER_ID, DESCRIBE_PRODUCERS = 18, 22, 61
NAMES = {
    PRODUCE: "produce", FETCH: "fetch", LIST_OFFSETS: "list-offsets", METADATA: "metadata", API_VERSIONS: "api-versions",
    INIT_PRODUCER_ID: "init-producer-id", DESCRIBE_PRODUCERS: "describe-producers",
}  # fmt: skip
SLICE = 4096
CONNECT_SECONDS = 5.0
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
_RESET = struct.pack("ii", 1, 0)


class Harm(StrEnum):
    """What can be done to an exchange."""

    DELAY_REQUEST = "delay-request"
    DELAY_RESPONSE = "delay-response"
    CUT_BEFORE = "cut-before"  # the broker never sees the request
    CUT_AFTER = "cut-after"  # the broker has executed it, the client does not learn it
    CUT_REQUEST_MIDDLE = "cut-request-middle"
    CUT_RESPONSE_MIDDLE = "cut-response-middle"
    DUPLICATE = "duplicate"  # the broker sees the request twice, the second answer is swallowed
    REPLAY = "replay"  # the broker sees the request again, later and on another connection
    DROP_RESPONSE = "drop-response"  # and the connection stays open
    THROTTLE = "throttle"


@dataclass(slots=True)
class Rule:
    """One harm, waiting for the next exchange of ``api`` (None: any) after ``skip`` others.

    ``seconds`` is the delay, or how long a throttled connection stays slow; ``rate`` is in bytes per second.
    ``fired`` is set when the harm is done, ``client`` is then the port from which that request came.
    """

    harm: Harm
    api: int | None = None
    skip: int = 0
    seconds: float = 0.0
    rate: int = 0
    fired: threading.Event = field(default_factory=threading.Event)
    client: int = 0

    def __str__(self) -> str:
        api = "any" if self.api is None else NAMES.get(self.api, str(self.api))
        extra = f" {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.harm} {api}{extra}" + (f" {self.rate} B/s" if self.rate else "")


class Exchange(NamedTuple):
    """A request on its way, and what shall happen to its response."""

    rule: Rule | None
    swallow: bool


class Cut(Exception):
    """The connection ends here."""


class Rules:
    """Harm that waits for its exchange; the proxies of a cluster's brokers share it, so a rule hits whoever is asked first."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._lock = threading.Lock()

    def arm(self, rule: Rule) -> Rule:
        """Let the rule wait for its exchange."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def disarm(self, rule: Rule) -> bool:
        """Take the rule back; False when it has fired."""
        with self._lock:
            if rule in self._rules:
                self._rules.remove(rule)
                return True
        return False

    def take(self, api: int) -> Rule | None:
        """The rule for an exchange of this type, if one waits for it."""
        with self._lock:
            for rule in self._rules:
                if rule.api in (None, api):
                    if rule.skip > 0:
                        rule.skip -= 1
                        return None
                    self._rules.remove(rule)
                    return rule
        return None


class KafkaProxy:
    """Listens on ``port`` of the loopback interface and passes everything on to ``upstream``; harm comes from its own ``rules`` first.

    ``shared`` are rules of several proxies.
    """

    def __init__(self, port: int, upstream: tuple[str, int], *, seed: int = 0, shared: Rules | None = None) -> None:
        self.port = port
        self.upstream = upstream
        self.frozen = threading.Event()
        self.refusing = threading.Event()
        self._chance = random.Random(seed)
        self.rules, self._shared = Rules(), shared or Rules()
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        threading.Thread(target=self._accept, name=f"proxy-{port}", daemon=True).start()

    def cut_all(self) -> int:
        """End every connection; how many there were."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.close(reset=self._chance.random() < 0.5)
        return len(lines)

    def silence_all(self) -> int:
        """Let every connection stay open and pass nothing on any more, as a firewall does that has forgotten it; how many there were."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.silenced = True
        return len(lines)

    def close(self) -> None:
        """Stop listening, end all connections."""
        self._closed = True
        self._listener.close()
        self.cut_all()

    def take(self, api: int) -> Rule | None:
        """The rule for an exchange of this type, if one waits for it."""
        return self.rules.take(api) or self._shared.take(api)

    def replay(self, frame: bytes, seconds: float) -> None:
        """Send a request again, later, on a connection of its own; read its answer so that it was carried out."""

        def work() -> None:
            time.sleep(seconds)
            with contextlib.suppress(OSError), socket.create_connection(self.upstream, CONNECT_SECONDS) as line:
                line.settimeout(CONNECT_SECONDS)
                line.sendall(_SIZE.pack(len(frame)) + frame)
                line.recv(SLICE)

        threading.Thread(target=work, daemon=True).start()

    def forget(self, line: _Line) -> None:
        """A connection has ended."""
        with self._lock:
            self._lines.discard(line)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing.is_set():
                client.close()
                continue
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self.upstream, CONNECT_SECONDS)
        except OSError:
            client.close()
            return
        broker.settimeout(None)
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = _Line(self, client, broker)
        with self._lock:
            self._lines.add(line)
        line.start()


class _Line:
    """One client connection and its counterpart to the broker, a thread for each direction."""

    def __init__(self, proxy: KafkaProxy, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._client, self._broker = client, broker
        self._waiting: deque[Exchange] = deque()
        self._slow_until = 0.0
        self._rate = 0
        self._ending = threading.Event()
        self.silenced = False

    def start(self) -> None:
        """Begin to pass bytes on."""
        for work in (self._requests, self._responses):
            threading.Thread(target=self._guarded, args=(work,), daemon=True).start()

    def close(self, *, reset: bool = False) -> None:
        """End both sides, by FIN or by RST."""
        if self._ending.is_set():
            return
        self._ending.set()
        for end in (self._client, self._broker):
            with contextlib.suppress(OSError):
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                end.close()
        self._proxy.forget(self)

    def _guarded(self, work: object) -> None:
        with contextlib.suppress(OSError, Cut):
            work()  # type: ignore[operator]
        self.close()

    def _requests(self) -> None:
        while True:
            frame = self._frame(self._client)
            api = _HEAD.unpack_from(frame)[0]
            rule = self._proxy.take(api)
            if rule is None:
                self._forward(frame, Exchange(None, False))
            else:
                self._harm(frame, rule)

    def _harm(self, frame: bytes, rule: Rule) -> None:
        rule.client = self._client.getpeername()[1]
        if rule.harm in (Harm.CUT_BEFORE, Harm.CUT_REQUEST_MIDDLE):
            if rule.harm is Harm.CUT_REQUEST_MIDDLE:
                self._broker.sendall((_SIZE.pack(len(frame)) + frame)[: max(1, len(frame) // 2)])
            rule.fired.set()
            raise Cut
        if rule.harm is Harm.DELAY_REQUEST:
            rule.fired.set()
            time.sleep(rule.seconds)
        elif rule.harm is Harm.THROTTLE:
            self._rate, self._slow_until = rule.rate, time.monotonic() + rule.seconds
            rule.fired.set()
        elif rule.harm is Harm.REPLAY:
            self._proxy.replay(frame, rule.seconds)
            rule.fired.set()
        late = rule.harm in (Harm.DELAY_RESPONSE, Harm.CUT_AFTER, Harm.CUT_RESPONSE_MIDDLE, Harm.DROP_RESPONSE)
        self._forward(frame, Exchange(rule if late else None, False))
        if rule.harm is Harm.DUPLICATE:
            self._forward(frame, Exchange(None, True))
            rule.fired.set()

    def _forward(self, frame: bytes, exchange: Exchange) -> None:
        self._waiting.append(exchange)
        self._send(self._broker, _SIZE.pack(len(frame)) + frame)

    def _responses(self) -> None:
        while True:
            frame = self._frame(self._broker)
            rule, swallow = self._waiting.popleft()
            whole = _SIZE.pack(len(frame)) + frame
            if swallow:
                continue
            if rule is not None:
                rule.fired.set()
                if rule.harm is Harm.DELAY_RESPONSE:
                    time.sleep(rule.seconds)
                elif rule.harm is Harm.DROP_RESPONSE:
                    continue
                else:
                    if rule.harm is Harm.CUT_RESPONSE_MIDDLE:
                        self._client.sendall(whole[: len(whole) // 2])
                    raise Cut
            self._send(self._client, whole)

    def _send(self, end: socket.socket, whole: bytes) -> None:
        while (self.silenced or self._proxy.frozen.is_set()) and not self._ending.wait(0.02):
            pass
        at = 0
        while time.monotonic() < self._slow_until and at < len(whole):
            step = max(1, min(SLICE, self._rate // 20))
            end.sendall(whole[at : at + step])
            at += step
            time.sleep(0.05)
        end.sendall(whole[at:])

    def _frame(self, end: socket.socket) -> bytes:
        return self._exactly(end, _SIZE.unpack(self._exactly(end, 4))[0])

    @staticmethod
    def _exactly(end: socket.socket, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            piece = end.recv(min(1 << 20, size - len(parts)))
            if not piece:
                raise Cut
            parts += piece
        return bytes(parts)
