"""TLS for broker connections: a verified context from PEM files, and clear words when a handshake fails."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_pipeline.errors import ConfigError, ConnectionLost, WireError

if TYPE_CHECKING:
    from mirror_pipeline.config import Security


class TlsFailed(WireError):
    """The broker's certificate or our own was not accepted; trying again cannot help."""


def tls_context(security: Security) -> ssl.SSLContext:
    """A client context that verifies the broker's certificate chain and, unless switched off, its host name.

    Without ``ca_file`` the system's trusted authorities apply. Raises ConfigError when a PEM file cannot be used.
    """
    _must_exist("ca_file", security.ca_file)
    _must_exist("cert_file", security.cert_file)
    _must_exist("key_file", security.key_file)
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=security.ca_file)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"ca_file {security.ca_file}: not a PEM file of certificates", hint="give a PEM file, not a Java keystore"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = security.verify_hostname
    if security.cert_file:
        _load_identity(context, security)
    return context


def _load_identity(context: ssl.SSLContext, security: Security) -> None:
    password = security.key_password.resolve() if security.key_password is not None else ""
    try:
        # An empty password rather than None: None would make OpenSSL ask on the terminal.
        context.load_cert_chain(str(security.cert_file), security.key_file, password=password)
    except (ssl.SSLError, OSError):
        # No cause attached: what OpenSSL says about a key is not for logs.
        raise ConfigError(
            f"cert_file {security.cert_file}, key_file {security.key_file}: not a matching pair of PEM certificate and key",
            hint="check that the key belongs to the certificate and that key_password is right",
        ) from None


def _must_exist(key: str, path: str | None) -> None:
    if path and not Path(path).is_file():
        raise ConfigError(f"{key}: no such file: {path}", hint="give a path to a PEM file that this user may read")


def tls_failure(peer: str, error: ssl.SSLError) -> TlsFailed | ConnectionLost:
    """Turn an ssl error into one line and a hint; an abrupt end of the stream stays ConnectionLost."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message or "certificate not accepted"
        if error.verify_code in {62, 64}:  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
            return TlsFailed(
                f"{peer}: TLS host name mismatch: {reason}",
                hint="use the name in the broker's certificate, or have the certificate name this host",
            )
        return TlsFailed(
            f"{peer}: TLS certificate not trusted: {reason}", hint="set ca_file to the authority that signed the broker's certificate"
        )
    text = str(error)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return ConnectionLost(
            f"{peer}: the broker closed the TLS connection", hint="is this the TLS listener, and does it want a client certificate?"
        )
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER" in text:
        return TlsFailed(
            f"{peer}: no TLS answer", hint="the listener speaks plain text: set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
        )
    if "ALERT" in text.upper():
        return TlsFailed(
            f"{peer}: the broker refused the TLS handshake: {error.reason or 'alert'}",
            hint="does it want a client certificate (cert_file, key_file)?",
        )
    return TlsFailed(f"{peer}: TLS failed: {error.reason or 'protocol error'}")
