"""One connection to one broker: negotiated versions, authentication, pipelined requests, throttling.

Over 300 lines: version negotiation, authentication, throttling and framing share one connection's state.
"""

from __future__ import annotations

import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from mirror_pipeline.errors import BrokerError, ConnectionLost, WireError
from mirror_pipeline.kafka.answers import TopicIds
from mirror_pipeline.kafka.codes import UNSUPPORTED_VERSION, broker_error
from mirror_pipeline.kafka.security import sasl
from mirror_pipeline.kafka.security.access import taken_before
from mirror_pipeline.kafka.security.tls import tls_context
from mirror_pipeline.kafka.wire import messages
from mirror_pipeline.kafka.wire.buffers import BufferPool
from mirror_pipeline.kafka.wire.frames import SIZE, Arriving
from mirror_pipeline.kafka.wire.messages import CHANGES, OPENING_APIS, SPOKEN, Api
from mirror_pipeline.kafka.wire.transport import Buffer, Transport

if TYPE_CHECKING:
    from mirror_pipeline.config import Security
    from mirror_pipeline.kafka.security.identity import Identity

CLIENT_ID = "mirror-pipeline"
FRAME_MAX = 2**31 - 1
FIRST_REPLY_MAX = 1 << 20  # a larger first frame means that the other side does not speak Kafka
RENEW_AT = (0.80, 0.90)  # part of a SASL session after which it is renewed (KIP-368), spread over connections
# Firewalls and address translators drop idle connections without a word, some after minutes. After ``IDLE_SECONDS`` a broker is asked
# before its connection is used, with this patience, or that of a line whose first answer took long; after ``MOST_IDLE_SECONDS`` a new
# one is opened.
IDLE_SECONDS, IDLE_PATIENCE, PATIENT_ANSWERS, MOST_IDLE_SECONDS = 5.0, 2.0, 10, 240.0
THROTTLE_MAX = 60.0  # seconds; a broker mutes for a few quota windows at most
T = TypeVar("T")


class Pending(NamedTuple):
    """A request whose reply has not been read yet."""

    correlation_id: int
    api: int
    version: int
    wait: float


class Reply(NamedTuple):
    """One reply: what it answers, and its body after the header, a writable view that stays valid while it is held."""

    correlation_id: int
    api: int
    version: int
    body: memoryview


class Connection:
    """A connected, negotiated and authenticated broker connection for one thread.

    Any break or timeout closes it and raises ConnectionLost: whether outstanding requests were carried out is
    unknown then. TlsFailed and BrokerError (code 58, 33) on opening say that the login was refused.

    Args:
        host: Broker host; with TLS the name the certificate must carry.
        port: Broker port.
        security: Protocol, credentials and certificates; None is PLAINTEXT.
        client_id: Name the broker logs and meters by.
        timeout: Seconds without any byte transferred after which a reply or send is given up.
        open_timeout: Seconds for connecting, TLS, negotiation and authentication together; ``timeout`` when None.
        receive_buffer, send_buffer: socket buffers in bytes; None leaves the kernel to grow them.
        replies: memory for answers; None for a pool of its own.
        identity: the cluster it must lead to: a broker of another one is a Stranger, and none of its answers is handed out.
        topics: ids of topics, for requests that can name them so.
    """

    def __init__(
        self,
        host: str,
        port: int,
        security: Security | None = None,
        *,
        client_id: str = CLIENT_ID,
        timeout: float = 30.0,
        open_timeout: float | None = None,
        receive_buffer: int | None = None,
        send_buffer: int | None = None,
        replies: BufferPool | None = None,
        identity: Identity | None = None,
        topics: TopicIds | None = None,
    ) -> None:
        self.host, self.port, self.timeout = host, port, timeout
        self._open_timeout = timeout if open_timeout is None else open_timeout
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.brokers_versions: dict[int, tuple[int, int]] = {}
        self.round_trip = 0.0  # seconds that the first question and its answer took
        self.topics = topics if topics is not None else TopicIds()
        self._identity = identity
        self._known = identity is None  # whose broker this is
        self._asks = False  # who it is; the answer is then the oldest that is due
        self._used = time.monotonic()
        self._security = security
        self._client_id = client_id.encode()
        self._socket_buffers = (receive_buffer, send_buffer)
        self._pool = replies if replies is not None else BufferPool()
        self._correlation_id = 0
        self._pending: deque[Pending] = deque()
        self._backlog: deque[Reply] = deque()
        self.throttle = 0.0  # seconds that the last response asked the client to wait
        self.fetch_share: int | None = None  # bytes that a fetch asks for at most, since the broker throttled one
        self._muted_until = 0.0
        self._renew_at: float | None = None
        self._arriving: Arriving | None = None
        self._transport = self._open()

    def own_replies(self) -> None:
        """Share no memory for answers any more: what many needed is given back."""
        self._pool = BufferPool()

    @property
    def closed(self) -> bool:
        """True after ``close`` and after any failure."""
        return self._transport.closed

    @property
    def ends_soon(self) -> bool:
        """True when the SASL session is due for renewal, which ``version`` does and which takes several round trips."""
        return self._renew_at is not None and time.monotonic() >= self._renew_at

    @property
    def in_flight(self) -> int:
        """Requests sent whose replies ``receive`` has not handed out."""
        return len(self._pending) + len(self._backlog) - self._asks

    def limit(self, seconds: float) -> None:
        """From now on fail once no byte was transferred for this many seconds."""
        self.timeout = seconds
        self._transport.limit(seconds)

    @property
    def muted(self) -> float:
        """Seconds until a throttling broker reads from this connection again (KIP-219); the next ``send`` waits that long."""
        return max(0.0, self._muted_until - time.monotonic())

    def stale(self, within: float = IDLE_PATIENCE) -> bool:
        """True when the connection is closed, or was idle and is dead: open a new one. Waits ``within`` seconds for one in doubt."""
        if self.closed or self.in_flight:
            return self.closed
        if not self._asks and self._transport.stale():
            return True
        idle = time.monotonic() - self._used
        doubted = self._identity is not None and self._identity.doubted > self._used
        if (idle < IDLE_SECONDS and not doubted) or self.muted:  # a broker that throttles reads nothing meanwhile
            return False
        return idle > MOST_IDLE_SECONDS or not self._answers(min(within, self.patience / 2 if doubted else self.patience))

    @property
    def patience(self) -> float:
        """Seconds in which a broker answers that is alive, however slow it is."""
        return max(IDLE_PATIENCE, PATIENT_ANSWERS * self.round_trip)

    def give_up(self) -> None:
        """Close it: an answer is overdue. Others that were not used since are in doubt."""
        self.close()
        if self._identity is not None:
            self._identity.doubt()

    def identify(self, seconds: float | None = None) -> None:
        """Wait until it is known whose broker this is, ``seconds`` at most. Raises Stranger, ConnectionLost."""
        if self._known:
            return
        with self._transport.within(self._transport.deadline if seconds is None else time.monotonic() + seconds):
            self._ask_identity()
            while self._asks:
                self._guarded(self._learn, True)

    @property
    def received(self) -> bool:
        """Whether a reply, or bytes of one, wait in this process: ``fileno`` need not become readable for them."""
        return bool(self._backlog) or self._transport.buffered

    def fileno(self) -> int:
        """The socket's descriptor, to wait for a reply with ``select``."""
        return self._transport.fileno()

    def version(self, api: int) -> int:
        """The version to use for ``api``: the highest both sides speak. Renews a SASL session that is about to end.

        Call it before building a request. Raises BrokerError 35 when there is no common version.
        """
        if self.ends_soon:
            self._renew()
        client, broker = SPOKEN[api], self.brokers_versions.get(api)
        highest = min(client.highest, broker[1]) if broker else -1
        if broker is None or highest < max(client.lowest, broker[0]):
            spoken = f"{broker[0]} to {broker[1]}" if broker else "none"
            name = api.name if isinstance(api, Api) else str(api)
            raise broker_error(
                UNSUPPORTED_VERSION,
                f"{self.peer}: {name}: this client supports versions {client.lowest} to {client.highest}, the broker {spoken}",
            )
        return highest

    def send(self, api: int, version: int, parts: Sequence[Buffer], *, wait: float = 0.0) -> int:
        """Send one request whose body is ``parts`` joined (they are not copied); do not wait for the reply.

        Args:
            api: Request key.
            version: As ``version(api)`` gave it.
            parts: The body in pieces; they may be reused as soon as this returns.
            wait: Seconds the broker itself may take before it answers, on top of ``timeout``.

        Returns:
            The correlation id; ``receive`` hands out replies in the order of sending.
        """
        self.wait_out_throttle()
        if not self._known and api not in OPENING_APIS:
            self.identify() if api in CHANGES else self._ask_identity()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        head = messages.header(sum(map(len, parts)), api, version, self._correlation_id, self._client_id)
        self._guarded(self._transport.send, (head, *parts))
        self._pending.append(Pending(self._correlation_id, api, version, wait))
        self._used = time.monotonic()
        return self._correlation_id

    def receive(self) -> Reply:
        """The next reply, in the order of sending. Its body is not overwritten while any view of it is alive."""
        if self._backlog:
            return self._backlog.popleft()
        return self._read()

    def arrived(self) -> Reply | None:
        """The next reply if it is complete, else None: never waits. Call again when ``fileno`` is readable."""
        if self._backlog:
            return self._backlog.popleft()
        self._expect()
        return self._guarded(self._next, False)

    def request(self, message: Any, *, wait: float = 0.0, timeout: float | None = None) -> Any:
        """Send a kafka-python request and return its decoded response; ``timeout`` bounds the whole exchange.

        Replies to earlier requests that arrive meanwhile are kept for ``receive``.
        """
        api = int(message.API_KEY)
        version = self.version(api)
        with self._transport.within(None if timeout is None else time.monotonic() + timeout):
            return self._exchange(message, version, wait)

    def post(self, message: Any, *, wait: float = 0.0) -> int:
        """Send a kafka-python request without waiting; ``answer`` takes the correlation id this returns."""
        return self._post(message, self.version(int(message.API_KEY)), wait)

    def answer(self, correlation_id: int, *, timeout: float | None = None) -> Any:
        """The decoded response to a request sent with ``post``; replies to others before it are kept for ``receive``.

        ``timeout`` bounds the wait for it as a whole.
        """
        with self._transport.within(self._transport.deadline if timeout is None else time.monotonic() + timeout):
            reply = self._take(correlation_id)
        return self._guarded(self._decoded, reply)

    @property
    def muted_until(self) -> float:
        """Time (monotonic seconds) until which the broker wants no requests on this connection; in the past when it does not throttle."""
        return self._muted_until

    def mute(self, until: float) -> None:
        """Send nothing before this time (monotonic seconds): the broker has demanded that on an earlier connection."""
        self._muted_until = max(self._muted_until, until)

    def throttled(self, milliseconds: int) -> None:
        """Note a response's ``throttle_time_ms``: the next send waits until it is over (KIP-219)."""
        self.throttle = min(milliseconds / 1000, THROTTLE_MAX)
        if milliseconds > 0:
            self._muted_until = max(self._muted_until, time.monotonic() + self.throttle)

    def follow(self, before: Connection) -> None:
        """Replace a broken connection: the broker's throttling of that one applies to this one too."""
        self.throttle, self.fetch_share = before.throttle, before.fetch_share
        self._muted_until = max(self._muted_until, before._muted_until)

    def wait_out_throttle(self) -> None:
        """Sleep until the broker reads from this connection again, as the next ``send`` would."""
        if rest := self.muted:
            time.sleep(rest)

    def close(self) -> None:
        """Close the socket and drop unread replies; calling it again does nothing."""
        self._transport.close()
        self._pending.clear()
        self._backlog.clear()
        self._asks = False
        self._arriving = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _exchange(self, message: Any, version: int, wait: float = 0.0) -> Any:
        return self.answer(self._post(message, version, wait))

    def _post(self, message: Any, version: int, wait: float) -> int:
        return self.send(int(message.API_KEY), version, (messages.encode(message, version),), wait=wait)

    def _take(self, correlation_id: int) -> Reply:
        for kept in self._backlog:
            if kept.correlation_id == correlation_id:
                self._backlog.remove(kept)
                return kept
        while (reply := self._read()).correlation_id != correlation_id:
            self._backlog.append(reply)
        return reply

    def _read(self) -> Reply:
        self._expect()
        while (reply := self._guarded(self._next, True)) is None:
            pass
        return reply

    def _expect(self) -> None:
        if len(self._pending) == self._asks:
            if self.closed:
                raise ConnectionLost(f"{self.peer}: the connection is closed")
            raise RuntimeError("a reply is asked for without a request in flight")

    def _next(self, wait: bool) -> Reply | None:
        """The next reply to a caller's request, None while it is incomplete; whose broker answers is learned before."""
        if self._asks and not self._learn(wait):
            return None
        reply = self._frame(self._pending[0], wait)
        if reply is not None:
            self._pending.popleft()
        return reply

    def _ask_identity(self) -> None:
        """Ask whose broker this is. The answer comes before all that is asked afterwards, so nothing but a change waits for it."""
        if not self._asks:
            self._post(messages.MetadataRequest(topics=[], allow_auto_topic_creation=False), self.version(Api.METADATA), 0.0)
            self._asks = True

    def _learn(self, wait: bool) -> bool:
        """Take the answer to that; False while it is incomplete."""
        reply = self._frame(self._pending[0], wait)
        if reply is None:
            return False
        self._pending.popleft()
        self._asks = False
        self._decoded(reply)
        return True

    def _decoded(self, reply: Reply) -> Any:
        response = messages.decode(reply.api, reply.version, reply.body)
        self.throttled(getattr(response, "throttle_time_ms", 0) or 0)
        if reply.api == Api.METADATA and self._identity is not None:
            self._identity.check(self.peer, response.cluster_id or "")
            self._known = True
        return response

    def _answers(self, seconds: float) -> bool:
        """Whether a broker, and the right one, answers at the other end; the connection is closed if not."""
        try:
            with self._transport.within(time.monotonic() + seconds):
                self._known = False
                self.identify()
        except WireError:
            return False
        return True

    def _frame(self, expected: Pending, wait: bool) -> Reply | None:
        """A reply; None while it is incomplete, which cannot happen with ``wait``."""
        header_size = messages.reply_header_size(expected.api, expected.version)
        if self._arriving is None:
            most = FRAME_MAX if self.brokers_versions else FIRST_REPLY_MAX
            self._arriving = Arriving(self._pool, least=header_size, most=most)
        # Requests sent before the throttling are answered once the broker reads from this connection again.
        frame = self._arriving.receive(self._transport, self.timeout + expected.wait + self.muted if wait else None)
        if frame is None:
            return None
        self._arriving = None
        self._used = time.monotonic()
        correlation_id = SIZE.unpack_from(frame)[0]
        if correlation_id != expected.correlation_id:
            raise ConnectionLost(f"{self.peer}: reply {correlation_id} where {expected.correlation_id} was due")
        return Reply(correlation_id, expected.api, expected.version, frame[header_size:])

    def _guarded(self, action: Callable[..., T], *arguments: Any) -> T:
        """Call it, and close the connection on any exception, an interrupt included: half a frame may have been sent."""
        try:
            return action(*arguments)
        except BaseException as error:
            if isinstance(error, ConnectionLost) and error.timed_out:
                self.give_up()
            self.close()
            raise

    def _open(self) -> Transport:
        deadline = time.monotonic() + self._open_timeout
        received, sent = self._socket_buffers
        security = self._security
        context = tls_context(security) if security is not None and security.uses_tls else None  # its files may have changed since
        self._transport = Transport(
            self.host, self.port, idle=self.timeout, deadline=deadline, context=context, receive_buffer=received, send_buffer=sent
        )
        try:
            self.brokers_versions = self._negotiate()
            if security is not None and security.uses_sasl:
                self._authenticate(security)
        except BaseException:
            self._transport.close()
            raise
        self._transport.deadline = None
        return self._transport

    def _renew(self) -> None:
        """Read outstanding replies, then connect and authenticate again: the broker ends the old session soon."""
        while len(self._pending) > self._asks:
            self._backlog.append(self._read())
        self._pending.clear()
        self._renew_at, self._asks, self._known = None, False, self._identity is None
        self._transport.close()
        with taken_before(self.peer):
            self._transport = self._open()

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        self.brokers_versions = {}
        request = messages.ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="1")
        asked = time.monotonic()
        response = self._exchange(request, SPOKEN[Api.API_VERSIONS].highest)
        self.round_trip = time.monotonic() - asked
        if response.error_code == UNSUPPORTED_VERSION:
            response = self._exchange(messages.ApiVersionsRequest(), 0)
        if response.error_code:
            raise broker_error(response.error_code, f"{self.peer}: version negotiation")
        return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def _authenticate(self, security: Security) -> None:
        if (name := security.mechanism or "") not in sasl.MECHANISMS:
            raise broker_error(33, f"{self.peer}: mechanism {name or 'none'} is not one of {', '.join(sasl.MECHANISMS)}")
        handshake = self._exchange(messages.SaslHandshakeRequest(mechanism=name), self.version(Api.SASL_HANDSHAKE))
        if handshake.error_code:
            offered = ", ".join(handshake.mechanisms) or "none"
            raise broker_error(handshake.error_code, f"{self.peer}: the broker does not take {name}, it offers {offered}")
        exchange = sasl.mechanism(name, security.user, security.password.resolve() if security.password is not None else "")
        token: bytes | None = exchange.first()
        version, lifetime = self.version(Api.SASL_AUTHENTICATE), 0
        while token is not None:
            answer = self._exchange(messages.SaslAuthenticateRequest(auth_bytes=token), version)
            if answer.error_code:
                raise broker_error(answer.error_code, f"{self.peer}: authentication failed for this user by {name}")
            lifetime = answer.session_lifetime_ms
            try:
                token = exchange.answer(bytes(answer.auth_bytes))
            except BrokerError as error:
                error.message = f"{self.peer}: {error.message}"
                raise
        part = random.uniform(*RENEW_AT)  # noqa: S311 - a spread, not a secret
        self._renew_at = time.monotonic() + lifetime / 1000 * part if lifetime > 0 else None


def readable(connections: Collection[Connection], seconds: float) -> list[Connection]:
    """Those that have something to read or have ended, as soon as there is one; after ``seconds`` none.

    Any number of descriptors may be open (``select`` ends at 1,024), and none is taken (``epoll`` would need one).
    """
    at_once = [connection for connection in connections if connection.closed or connection.received]
    if at_once:
        return at_once
    with selectors.PollSelector() as selector:
        for connection in connections:
            selector.register(connection.fileno(), selectors.EVENT_READ, connection)
        return [key.data for key, _ in selector.select(max(0.0, seconds))]
