"""Creates librdkafka's administrative client and translates its errors."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, ConfigError, MirrorError
from mirror_pipeline.kafka.librdkafka import librdkafka_settings
from mirror_pipeline.kafka.wire.dial import Dialler, parse_address

_AUTHENTICATION = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM}
_CONNECTION = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._SSL,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._DESTROY_BROKER,  # the broker that was asked has left the cluster's metadata
}
_SILENCE = {KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE}  # says less than "no answer"
_TRANSIENT = {
    KafkaError.NOT_CONTROLLER,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
}
_HINTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the right on the topic to the principal of this cluster's security block",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the right on the cluster to the principal of this cluster's security block",
    KafkaError.POLICY_VIOLATION: "the cluster has a policy for topics; create the topic by hand or ask its operators",
}
_NAMES = {"UNKNOWN_TOPIC_OR_PART": "UNKNOWN_TOPIC_OR_PARTITION", "TOPIC_EXCEPTION": "INVALID_TOPIC_EXCEPTION"}  # as Kafka has them
_log = logging.getLogger("mirror_pipeline.librdkafka")


def _quietly(record: logging.LogRecord) -> bool:
    """librdkafka repeats each failed connect 20 times a second as an error; we report it once, so this is debug detail."""
    record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return _log.isEnabledFor(logging.DEBUG)


_log.addFilter(_quietly)


class Session:
    """One AdminClient with what its background threads said about the connection.

    Args:
        cluster: where and how to connect.
        servers: addresses to begin with, in place of the cluster's own.
    """

    def __init__(self, cluster: ClusterSettings, servers: Sequence[str] = ()) -> None:
        self.cluster = cluster
        self._servers = servers
        self.cause: KafkaError | None = None
        self.down_since: float | None = None
        self._secrets: tuple[str, ...] = ()
        settings = librdkafka_settings(cluster)
        self._login = _login(settings)
        self.client = self._open(settings)

    @property
    def outdated(self) -> bool:
        """Whether a secret, or a file that the settings name, is another one now; not while a secret cannot be read."""
        try:
            return _login(librdkafka_settings(self.cluster)) != self._login
        except ConfigError:
            return False

    def _open(self, settings: dict[str, str]) -> AdminClient:
        if self._servers:
            settings["bootstrap.servers"] = ",".join(self._servers)
        self._secrets = tuple(value for key, value in settings.items() if "password" in key or "secret" in key or "token" in key)
        try:
            return AdminClient({**settings, "error_cb": self._noticed}, logger=_log)  # type: ignore[dict-item]
        except KafkaException as error:
            text = self.scrub(_first(error).str())
            where = f"clusters.{self.cluster.alias}.{'security' if 'ssl.' in text else 'client'}"
            raise ConfigError(f"{where}: {text}", hint="the name and range of a property are in librdkafka's CONFIGURATION.md") from None

    def _noticed(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.down_since = self.down_since or time.monotonic()
        elif error.code() in _CONNECTION | _AUTHENTICATION:
            self.cause = error

    @property
    def refused(self) -> bool:
        """Whether the latest event was a refused login."""
        return self.cause is not None and self.cause.code() in _AUTHENTICATION

    def forget(self) -> None:
        """Start a request with a clean slate: what was noticed before is old news."""
        self.cause = None
        self.down_since = None

    def scrub(self, text: str) -> str:
        """Text of librdkafka without secret values and without its internal detail."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = re.sub(r" \(after [0-9]+ms in state [A-Z_]+.*?\)", "", text)
        text = re.sub(r"^(\S+?:[0-9]+)/[a-z0-9]+: (Connect to \S+ failed: )?", r"\1: ", re.sub(r"^[a-z_]+://", "", text))
        return " ".join(text.removeprefix("Broker: ").split())

    def unreachable(self) -> ClusterUnreachable:
        """The error that says why no broker answers."""
        code = self.cause.code() if self.cause else None
        cause = self.scrub(self.cause.str()) if self.cause else "no answer"
        alias, addresses = self.cluster.alias, ",".join(self.cluster.bootstrap_servers)
        if code in _AUTHENTICATION:
            hint = f"check clusters.{alias}.security: mechanism, username, password"
            error = ClusterUnreachable(alias, f"cluster {alias} at {addresses}: authentication failed: {cause}", hint=hint)
            error.retryable = False
            return error
        hint = f"is it running, and is clusters.{alias}.bootstrap_servers right?"
        if code == KafkaError._SSL or "SSL" in cause:
            hint = f"check clusters.{alias}.security: protocol, ca_file, cert_file, verify_hostname"
        elif code is None or "security.protocol" in cause:
            hint = f"check clusters.{alias}: the address, a firewall, and security.protocol (a TLS listener needs SSL or SASL_SSL)"
        return ClusterUnreachable(alias, f"cluster {alias} at {addresses} cannot be reached: {cause}", hint=hint)

    def translate(self, error: KafkaError, what: str) -> MirrorError:
        """Our error for one of librdkafka's."""
        if error.code() in _AUTHENTICATION | _CONNECTION:
            if error.code() in _AUTHENTICATION or (self.cause is None and error.code() not in _SILENCE):
                self.cause = error
            return self.unreachable()
        name = _NAMES.get(error.name(), error.name())
        message = f"cluster {self.cluster.alias}: {what}: {self.scrub(error.str())} ({name})"
        return BrokerError(error.code(), name, message, hint=_HINTS.get(error.code(), ""), retryable=error.code() in _TRANSIENT)


def answering(cluster: ClusterSettings, seconds: float) -> list[str]:
    """Those of a cluster's addresses at which one of its brokers answers within ``seconds``, asked all at once."""

    def answers(address: str) -> bool:
        try:
            with Dialler(cluster, seconds).open(*parse_address(address), open_timeout=seconds) as opened:
                opened.identify(seconds)
        except MirrorError as error:
            _log.debug("cluster %s: %s: %s", cluster.alias, address, error.message)
            return False
        return True

    servers = cluster.bootstrap_servers
    with ThreadPoolExecutor(len(servers)) as pool:
        return [address for address, well in zip(servers, pool.map(answers, servers), strict=True) if well]


def _login(settings: Mapping[str, str]) -> str:
    """A digest of the settings and of the files that they name."""
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    for key in sorted(settings):
        if key.endswith(".location"):
            with suppress(OSError):
                digest.update(Path(settings[key]).read_bytes())
    return digest.hexdigest()


def _first(error: KafkaException) -> KafkaError:
    cause = error.args[0]
    assert isinstance(cause, KafkaError)  # noqa: S101 - KafkaException always carries one
    return cause
