"""One blocking TCP or TLS socket: connect, send many buffers in one call, receive exactly n bytes.

Time limits: a send or receive fails once no byte has moved for ``idle`` seconds, and always at ``deadline``
when one is set (opening a connection, small requests), so a slow line that still moves data is not cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import ssl
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from mirror_pipeline.errors import ConnectionLost
from mirror_pipeline.kafka.security.tls import TlsFailed, tls_failure

Buffer: TypeAlias = bytes | bytearray | memoryview

IOV_MAX = 1024  # buffers one sendmsg call takes, POSIX's usual limit
TLS_CHUNK = 64 * 1024  # small parts are joined up to this size; larger ones go to TLS as they are
NO_TIME_LEFT = 0.000001  # settimeout(0) would mean "do not block"
# Of a large answer this many bytes, if they are still due, are waited for at a time: a slow line brings a packet at a time, and waking a
# thread for each costs more than all else that is done with its bytes. Linux clamps the window of a connection that waits for more than
# its first receive buffer (128 KiB) can surely hold (``tcp_set_rcvlowat``).
WAKE_BYTES, LEAST_WAKE_BYTES = 32 * 1024, 16 * 1024
# Seconds without traffic before the kernel probes, between two probes, and the number of probes; milliseconds that sent bytes may stay
# without the other kernel's acknowledgement.
KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))


class Transport:
    """A connected socket; every failure closes it and raises ConnectionLost or TlsFailed."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        idle: float,
        deadline: float | None = None,
        context: ssl.SSLContext | None = None,
        receive_buffer: int | None = None,
        send_buffer: int | None = None,
    ) -> None:
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.deadline = deadline
        self._idle = idle
        self._socket: socket.socket | None = None
        plain = self._connect(host, port, receive_buffer, send_buffer)
        self._tls = context is not None
        self._wakes_at = 1
        self._unsent: int | None = None  # bytes that the other side's kernel had not taken when an answer was last late
        self._socket = plain if context is None else self._wrap(plain, context, host)

    @property
    def closed(self) -> bool:
        """True once closed, by us or by any failure."""
        return self._socket is None

    def limit(self, idle: float) -> None:
        """From now on fail once no byte has moved for ``idle`` seconds."""
        self._idle = idle

    @contextlib.contextmanager
    def within(self, deadline: float | None) -> Iterator[None]:
        """Everything inside ends before ``deadline`` (monotonic seconds) as well as within the idle limit."""
        before, self.deadline = self.deadline, deadline
        try:
            yield
        finally:
            self.deadline = before

    def stale(self) -> bool:
        """True when closed, or when bytes or an end wait to be read although no request is open."""
        if self._socket is None:
            return True
        self._socket.settimeout(0)
        try:
            # Past TLS, if any: readable at all means that the broker has ended the connection.
            socket.socket.recv(self._socket, 1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    @property
    def buffered(self) -> bool:
        """Whether TLS holds bytes that are decrypted and not read."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def fileno(self) -> int:
        """The socket's descriptor, for waiting until something arrives. Raises ConnectionLost when it is closed."""
        if self._socket is None:
            raise ConnectionLost("the connection is closed")
        return self._socket.fileno()

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write all parts in order, without joining them first where the socket allows it."""
        try:
            if self._tls:
                self._send_tls(parts)
            else:
                self._send_plain(parts)
        except OSError as error:
            raise self._lost("sending", error) from error

    def receive_into(self, view: memoryview, *, idle: float | None = None) -> None:
        """Fill ``view`` completely; ``idle`` replaces the usual limit until the first byte arrives."""
        filled, total = 0, view.nbytes
        try:
            while filled < total:
                connected = self._ready(self._idle if filled or idle is None else idle)
                self._wake_for(connected, total - filled)
                count = self._receive(connected, view[filled:] if filled else view)
                if count == 0:
                    raise EOFError
                filled += max(count, 0)
            self._unsent = None
            if self._wakes_at != 1 and self._socket is not None:
                self._wake_for(self._socket, 0)  # the next reader wakes at the first byte of its reply
        except EOFError:
            raise self._lost("receiving", EOFError("the broker closed the connection")) from None
        except OSError as error:
            raise self._lost("receiving", error) from error

    def receive_ready(self, view: memoryview) -> int:
        """Put what has arrived into ``view`` and do not wait for more; the bytes taken, which may be none."""
        connected, filled, total = self._socket, 0, view.nbytes
        try:
            if connected is None:
                raise OSError("the connection is closed")
            if connected.gettimeout() != 0:
                connected.settimeout(0)
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                # TLS hands out a record at a time, and of those it holds a selector knows nothing.
                while filled < total and (self._tls or not filled):
                    count = connected.recv_into(view[filled:])
                    if count == 0:
                        raise EOFError
                    filled += count
            self._wake_for(connected, total - filled)
        except EOFError:
            raise self._lost("receiving", EOFError("the broker closed the connection")) from None
        except OSError as error:
            raise self._lost("receiving", error) from error
        return filled

    def close(self) -> None:
        """Close the socket; calling it again does nothing."""
        connected, self._socket = self._socket, None
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.close()

    def _connect(self, host: str, port: int, receive_buffer: int | None, send_buffer: int | None) -> socket.socket:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectionLost(f"{self.peer}: {_reason(error)}", hint="check the host name in bootstrap_servers") from error
        failure: OSError = OSError("no address")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            attempt = socket.socket(family, kind, protocol)
            try:
                self._options(attempt, receive_buffer, send_buffer)
                attempt.settimeout(self._limit(self._idle) / (len(addresses) - position))
                attempt.connect(address)
                return attempt
            except OSError as error:
                attempt.close()
                failure = error
        raise ConnectionLost(
            f"{self.peer}: {_reason(failure)}",
            hint="check that the broker is running and that the address is correct",
            timed_out=isinstance(failure, TimeoutError),
        ) from failure

    @staticmethod
    def _options(attempt: socket.socket, receive_buffer: int | None, send_buffer: int | None) -> None:
        attempt.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):  # not every system has all of them
                attempt.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        # A fixed size ends the kernel's own growth of the window, so it is set only where a user asks for it.
        if receive_buffer:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if send_buffer:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)

    def _receive(self, connected: socket.socket, view: memoryview) -> int:
        """Bytes that came; -1 when none did, but what we sent is still on its way over a slow line: it moves."""
        try:
            return connected.recv_into(view)
        except TimeoutError as silence:
            if self._is_sending(connected):
                return -1
            if self._wakes_at == 1 or (self.deadline is not None and time.monotonic() >= self.deadline):
                raise
            connected.settimeout(0)  # less than was waited for may have come: it moves
            try:
                return connected.recv_into(view)
            except BlockingIOError:
                raise silence from None

    def _is_sending(self, connected: socket.socket) -> bool:
        """Whether the other side has taken more of what was sent since this was asked last, or may have, if it is asked first."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return False
        try:
            unsent = struct.unpack("i", fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        except OSError:
            return False  # not Linux: only what is received counts
        before, self._unsent = self._unsent, unsent
        return unsent > 0 and (before is None or unsent < before)

    def _wake_for(self, connected: socket.socket, due: int) -> None:
        least = 1 if self._tls or due < LEAST_WAKE_BYTES else min(due, WAKE_BYTES)
        if least != self._wakes_at:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
            self._wakes_at = least

    def _wrap(self, plain: socket.socket, context: ssl.SSLContext, host: str) -> socket.socket:
        try:
            plain.settimeout(self._limit(self._idle))
            return context.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            plain.close()
            raise self._lost("TLS handshake", error) from error

    def _send_plain(self, parts: Sequence[Buffer]) -> None:
        waiting: list[Buffer] = list(parts)
        first, left = 0, sum(map(len, waiting))
        while left:
            sent = self._ready(self._idle).sendmsg(waiting[first : first + IOV_MAX])
            left -= sent
            while left and sent >= len(waiting[first]):
                sent -= len(waiting[first])
                first += 1
            if left and sent:
                waiting[first] = memoryview(waiting[first])[sent:]

    def _send_tls(self, parts: Sequence[Buffer]) -> None:
        small = bytearray()
        for part in parts:
            if len(part) < TLS_CHUNK:
                small += part
            if small and (len(small) >= TLS_CHUNK or len(part) >= TLS_CHUNK):
                self._send_all(small)
                small = bytearray()
            if len(part) >= TLS_CHUNK:
                self._send_all(part)
        if small:
            self._send_all(small)

    def _send_all(self, part: Buffer) -> None:
        with memoryview(part) as view:
            sent = 0
            while sent < len(view):
                sent += self._ready(self._idle).send(view[sent : sent + TLS_CHUNK])

    def _ready(self, idle: float) -> socket.socket:
        if self._socket is None:
            raise OSError("the connection is closed")
        self._socket.settimeout(self._limit(idle))
        return self._socket

    def _limit(self, idle: float) -> float:
        if self.deadline is None:
            return idle
        return max(min(idle, self.deadline - time.monotonic()), NO_TIME_LEFT)

    def _lost(self, doing: str, error: Exception) -> ConnectionLost | TlsFailed:
        self.close()
        if isinstance(error, ssl.SSLError):
            return tls_failure(self.peer, error)
        return ConnectionLost(f"{self.peer}: {_reason(error)} while {doing}", timed_out=isinstance(error, TimeoutError))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
