"""Refused logins and certificates of a cluster that has taken them before: they are being changed there or here, so it passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mirror_pipeline.errors import BrokerError, ConfigError, ConnectionLost
from mirror_pipeline.kafka.security.tls import TlsFailed

LOGIN_CHANGED = "this cluster has taken the login before; secret and certificate files are read again with each new connection"


@contextmanager
def taken_before(peer: str) -> Iterator[None]:
    """Connect to a cluster that has taken this login before. A first contact that is refused is an error of the configuration instead.

    Raises:
        ConnectionLost: the broker does not take it now, or a secret or certificate file cannot be used now.
    """
    try:
        yield
    except (BrokerError, TlsFailed) as error:
        raise ConnectionLost(error.message, hint=LOGIN_CHANGED) from error
    except ConfigError as error:
        raise ConnectionLost(f"{peer}: {error.message}", hint=error.hint) from error
