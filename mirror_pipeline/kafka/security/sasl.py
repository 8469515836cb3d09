"""SASL mechanisms as pure exchanges of bytes: PLAIN (RFC 4616) and SCRAM-SHA-256/512 (RFC 5802, 7677).

Kafka takes user name and password as plain UTF-8, without SASLprep. Nothing here puts a secret into an error.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Protocol

from mirror_pipeline.errors import BrokerError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = ("PLAIN", *HASHES)
MIN_ITERATIONS = 4096  # RFC 7677, section 4: fewer make a stolen exchange cheap to guess from
MAX_ITERATIONS = 1_000_000  # a hostile broker must not keep us hashing for minutes


class Mechanism(Protocol):
    """A client's side of one exchange: ``first()``, then ``answer()`` to each server message until it returns None."""

    def first(self) -> bytes:
        """The first message to send."""
        ...

    def answer(self, server: bytes) -> bytes | None:
        """The reply to a server message, None when the exchange is complete and the server has proven itself."""
        ...


class Plain:
    """User name and password in clear; for TLS connections."""

    def __init__(self, username: str, password: str) -> None:
        self._message = b"\0".join((b"", username.encode(), password.encode()))

    def first(self) -> bytes:
        """The only message."""
        return self._message

    def answer(self, server: bytes) -> bytes | None:
        """The broker sends nothing but its acceptance."""
        return None


class Scram:
    """SCRAM without channel binding; also verifies that the server knows the password's keys."""

    def __init__(self, mechanism: str, username: str, password: str, *, nonce: str | None = None) -> None:
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        """The client-first-message."""
        return b"n,," + self._first_bare.encode()

    def answer(self, server: bytes) -> bytes | None:
        """The client-final-message; then None once the server's signature has been verified."""
        fields = _fields(server)
        if self._server_signature is None:
            return self._final(server.decode(), fields)
        if "e" in fields:
            raise _refused(f"the broker answered {fields['e'][:60]}")
        if not hmac.compare_digest(_unbase64(fields.get("v", "")), self._server_signature):
            raise _refused("the broker could not prove that it knows this user", hint="is this the right broker, and not one in between?")
        return None

    def _final(self, server_first: str, fields: dict[str, str]) -> bytes:
        nonce, iterations = fields.get("r", ""), _number(fields.get("i", ""))
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise _refused("the broker's nonce does not continue ours")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise _refused(f"the broker asks for {iterations} iterations, accepted are {MIN_ITERATIONS} to {MAX_ITERATIONS}")
        without_proof = f"c=biws,r={nonce}"
        message = ",".join((self._first_bare, server_first, without_proof)).encode()
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _unbase64(fields.get("s", "")), iterations)
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def mechanism(name: str, username: str, password: str) -> Mechanism:
    """The exchange for one of MECHANISMS."""
    return Plain(username, password) if name == "PLAIN" else Scram(name, username, password)


def _fields(message: bytes) -> dict[str, str]:
    try:
        pairs = [part.partition("=") for part in message.decode().split(",")]
    except UnicodeDecodeError:
        raise _refused("the broker's answer is not a SCRAM message") from None
    return {key: value for key, _, value in pairs}


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _refused("the broker's answer is not a SCRAM message") from None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _refused(message: str, *, hint: str = "check user name, password and mechanism") -> BrokerError:
    return BrokerError(58, "SASL_AUTHENTICATION_FAILED", f"authentication failed: {message}", hint=hint)
