"""Client quotas, set and removed by AlterClientQuotas (KIP-546) as raw bytes: no installed client library has it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from mirror_pipeline.kafka.records.cursor import Cursor

ALTER_CLIENT_QUOTAS, VERSION = 49, 0
SECONDS = 15.0
KINDS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _frame(changes: Mapping[str, float | None], client_id: str | None) -> bytes:
    entity = _string("client-id") + (_string(client_id) if client_id is not None else struct.pack(">h", -1))
    body = struct.pack(">i", 1) + struct.pack(">i", 1) + entity + struct.pack(">i", len(changes))
    for key, rate in changes.items():
        body += _string(key) + struct.pack(">d?", rate or 0.0, rate is None)
    body += struct.pack(">?", False)  # not only validated
    frame = struct.pack(">hhi", ALTER_CLIENT_QUOTAS, VERSION, 1) + _string("quotas") + body
    return struct.pack(">i", len(frame)) + frame


def set_quotas(bootstrap: str, changes: Mapping[str, float | None], client_id: str | None = None) -> None:
    """Set quotas of one client id, or of every client without its own (None); a rate of None removes a quota.

    Raises:
        AssertionError: the cluster refuses.
        OSError: none of its brokers answers.
    """
    errors: list[OSError] = []
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), SECONDS) as line:
                line.settimeout(SECONDS)
                line.sendall(_frame(changes, client_id))
                answer = _answer(line)
        except OSError as problem:
            errors.append(problem)
            continue
        cursor = Cursor(memoryview(answer))
        cursor.int32(), cursor.int32()  # correlation id, throttle time
        for _ in range(cursor.count()):
            error, message = cursor.int16(), cursor.string()
            assert error == 0, f"quotas {dict(changes)} are refused with {error}: {message}"
            return
    raise errors[-1] if errors else AssertionError("no answer for the quotas")


def _answer(line: socket.socket) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        piece = line.recv(1 << 16)
        if not piece:
            raise ConnectionResetError("the broker ended the connection")
        data += piece
    return data[4:]
