"""Cuts a span that arrives in pieces where its batches end."""

from __future__ import annotations

from collections.abc import Iterator

from mirror_pipeline.kafka.records.header import HEADER, HEADER_BYTES, LOG_OVERHEAD
from mirror_pipeline.model import SpanRef


def whole_batches(chunks: Iterator[memoryview], span: SpanRef) -> Iterator[tuple[memoryview, int]]:
    """Pieces of whole batches, each with its record count; a span that arrives in one piece stays as it is.

    Bytes that cannot be cut (damaged, or a batch without its end) come last and unchanged: ``assign_sequences`` reports the damage.
    """
    rest = b""
    for chunk in chunks:
        if len(chunk) == span.bytes:
            yield chunk, span.records
            return
        data = memoryview(rest + chunk)
        end, records = _whole(data)
        if end:
            yield data[:end], records
        rest = bytes(data[end:])
    if rest:
        yield memoryview(rest), 0


def _whole(data: memoryview) -> tuple[int, int]:
    """Where the last whole batch ends, and the record count up to there."""
    at = records = 0
    while at + HEADER_BYTES <= len(data):
        _, length, *_, count = HEADER.unpack_from(data, at)
        stop = at + length + LOG_OVERHEAD
        if stop > len(data) or stop < at + HEADER_BYTES or count < 0:
            break
        at, records = stop, records + count
    return at, records
