"""Connects to a cluster: opens connections by its settings and asks whichever broker answers."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConfigError, ConnectionLost, Stranger, WireError, WrongCluster
from mirror_pipeline.kafka.answers import TopicIds
from mirror_pipeline.kafka.security.access import taken_before
from mirror_pipeline.kafka.security.identity import Identity
from mirror_pipeline.kafka.security.tls import TlsFailed
from mirror_pipeline.kafka.wire.buffers import BufferPool
from mirror_pipeline.kafka.wire.connection import CLIENT_ID, Connection

if TYPE_CHECKING:
    from mirror_pipeline.config import ClusterSettings

UNEXPLAINED = "check that the broker is running and that security.protocol matches its listener"
LEAST_TIME_SHARE = 0.1  # seconds every address gets, however late it is
FIRST_TRY = 2.0  # seconds an address gets before others are tried: healthy brokers may be enough


class Dialler:
    """Opens connections to one cluster and keeps the one that answered last, for requests any broker can answer.

    ``known``: the cluster has taken the login before, which it also has once a connection was opened here.
    """

    def __init__(self, cluster: ClusterSettings, timeout: float, *, known: bool = False) -> None:
        self._cluster = cluster
        self._timeout = timeout
        self.identity = Identity(cluster)
        self.topics = TopicIds()
        self._known = known
        self._last: Connection | None = None
        self._avoided: tuple[str, int] | None = None

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version of each request, as the broker said that answered last; empty before one has."""
        return self._last.brokers_versions if self._last is not None else {}

    def open(
        self, host: str, port: int, *, open_timeout: float, receive_buffer: int | None = None, replies: BufferPool | None = None
    ) -> Connection:
        """A new connection to a broker of this cluster: what another one answers is never handed out.

        ``client.id`` and the socket buffer sizes of the cluster's client settings apply before ``receive_buffer``.

        Raises:
            ConnectionLost: the broker cannot be reached, or a known cluster does not take the login now.
            BrokerError, TlsFailed, ConfigError: a first contact is refused.
        """
        settings = self._cluster.client
        with taken_before(f"{host}:{port}") if self._known else nullcontext():
            opened = Connection(
                host,
                port,
                self._cluster.security,
                client_id=str(settings.get("client.id", CLIENT_ID)),
                timeout=self._timeout,
                open_timeout=min(open_timeout, self._timeout),
                receive_buffer=_bytes(settings.get("socket.receive.buffer.bytes")) or receive_buffer,
                send_buffer=_bytes(settings.get("socket.send.buffer.bytes")),
                replies=replies,
                identity=self.identity,
                topics=self.topics,
            )
        self._known = True
        return opened

    def ask(self, message: Any, seconds: float, known: Iterable[tuple[str, int]], *, avoid: Collection[tuple[str, int]] = ()) -> Any:
        """Ask the broker that answered last, else each bootstrap server and each known broker.

        Where there are several, one that is silent costs ``FIRST_TRY`` seconds; what time is left once all have been asked
        is for those. ``avoid`` are addresses that are asked last.

        Raises:
            ClusterUnreachable: None answered within ``seconds``, or a known cluster takes the login nowhere; the message says why for each.
            WrongCluster: Brokers of another cluster answered everywhere.
            TlsFailed: None answered, and one of them for a reason of certificates, at a first contact.
            BrokerError: Authentication failed at a first contact; other brokers are not tried with the same credentials.
        """
        begin = time.monotonic()
        addresses = list(dict.fromkeys([*map(parse_address, self._cluster.bootstrap_servers), *known]))
        first_try = FIRST_TRY if len(addresses) > 1 else seconds
        last = self._last
        if last is not None and (last.host, last.port) not in avoid and not last.stale(first_try):
            try:
                return last.request(message, timeout=max(min(seconds / 2, first_try), LEAST_TIME_SHARE))
            except ConnectionLost:
                self.turn()
        addresses.sort(key=lambda address: (address in avoid, address == self._avoided))
        failures: dict[tuple[str, int], WireError] = {}
        for most in (first_try, seconds):
            for position, (host, port) in enumerate(addresses):
                share = max(min(most, (begin + seconds - time.monotonic()) / (len(addresses) - position)), LEAST_TIME_SHARE)
                try:
                    return self._ask_one(host, port, message, share)
                except BrokerError:
                    raise
                except WireError as error:
                    failures[host, port] = error
            addresses = [address for address in addresses if _timed_out(failures[address])]
            if begin + seconds - time.monotonic() < LEAST_TIME_SHARE:
                break
        raise self._unreachable(list(failures.values()), time.monotonic() - begin)

    def _ask_one(self, host: str, port: int, message: Any, seconds: float) -> Any:
        end = time.monotonic() + seconds
        self.close()
        self._last = self.open(host, port, open_timeout=seconds)
        return self._last.request(message, timeout=max(end - time.monotonic(), LEAST_TIME_SHARE))

    def turn(self) -> None:
        """Ask another broker than the one that answered last, if another answers."""
        if self._last is not None:
            self._avoided = self._last.host, self._last.port
        self.close()

    def close(self) -> None:
        """Close the connection that is kept."""
        if self._last is not None:
            self._last.close()
            self._last = None

    def _unreachable(self, failures: list[WireError], seconds: float) -> WireError | ClusterUnreachable:
        alias, causes = self._cluster.alias, "; ".join(failure.message for failure in failures)
        strangers = [failure for failure in failures if isinstance(failure, Stranger)]
        if strangers and len(strangers) == len(failures):
            return WrongCluster(alias, f"{alias}: {causes}", strangers[0].cluster_id, hint=strangers[0].hint)
        untrusted = [failure for failure in failures if isinstance(failure, TlsFailed)]
        if untrusted:
            return TlsFailed(f"{alias}: {causes}", hint=untrusted[0].hint)
        hint = next((failure.hint for failure in failures if failure.hint), UNEXPLAINED)
        long = f", {seconds:.1f} s" if seconds >= 1 else ""
        return ClusterUnreachable(alias, f"{alias}: no broker answered{long}: {causes}", hint=hint)


def parse_address(server: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``."""
    host, _, port = server.strip().rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"bootstrap server {server!r} is not host:port", hint="write it like broker-1.example.com:9092")
    return host.strip("[]"), int(port)


def _timed_out(failure: WireError) -> bool:
    return isinstance(failure, ConnectionLost) and failure.timed_out


def _bytes(setting: object) -> int | None:
    return int(setting) if isinstance(setting, str) and setting.isdigit() else None
