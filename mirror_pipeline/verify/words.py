"""What differs between two records, in words that name places and lengths but never contents."""

from __future__ import annotations

from mirror_pipeline.kafka.records.batch import Record


def equal_fields(a: Record, b: Record) -> int:
    """How many of timestamp, key, value and headers are equal."""
    return (a.timestamp == b.timestamp) + (a.key == b.key) + (a.value == b.value) + (a.headers == b.headers)


def difference_text(source: Record, target: Record) -> str:
    """Each field that differs, with where and how; payloads are not quoted."""
    said = []
    if source.timestamp != target.timestamp:
        said.append(f"timestamp {source.timestamp} became {target.timestamp}")
    if source.key != target.key:
        said.append(f"key {_bytes_text(source.key, target.key)}")
    if source.value != target.value:
        said.append(f"value {_bytes_text(source.value, target.value)}")
    if source.headers != target.headers:
        said.append(_headers_text(source.headers, target.headers))
    return "; ".join(said)


def _bytes_text(a: bytes | None, b: bytes | None) -> str:
    if a is None or b is None:
        return f"{_size(a)} became {_size(b)}"
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"differs at byte {place} ({_size(a)} became {_size(b)})"


def _size(value: bytes | None) -> str:
    return "null" if value is None else f"{len(value)} bytes"


def _headers_text(a: tuple[tuple[bytes, bytes | None], ...], b: tuple[tuple[bytes, bytes | None], ...]) -> str:
    if len(a) != len(b):
        return f"{len(a)} headers became {len(b)}"
    if sorted(a, key=repr) == sorted(b, key=repr):
        return "headers in another order"
    place = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    part = "key" if a[place][0] != b[place][0] else "value"
    index = 0 if part == "key" else 1
    return f"header {place} {part} {_bytes_text(a[place][index], b[place][index])}"
