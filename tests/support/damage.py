"""Single changes to a copied partition, and what a comparison must call them."""

from __future__ import annotations

from collections.abc import Callable

from mirror_pipeline.kafka.records.batch import OpenRecord, tail_of

Copied = list[OpenRecord]


def value_byte(records: Copied) -> None:
    tail = bytearray(records[71].tail)
    tail[-4] ^= 1
    records[71] = records[71]._replace(tail=bytes(tail))


def value_null(records: Copied) -> None:
    records[71] = records[71]._replace(tail=tail_of(b"key-213", None))


def key(records: Copied) -> None:
    tail = records[70].tail
    assert tail[1:2] == b"k"
    records[70] = records[70]._replace(tail=tail[:1] + b"K" + tail[2:])


def header_added(records: Copied) -> None:
    records[71] = records[71]._replace(tail=records[71].tail[:-1] + b"\x02\x02x\x01")


def timestamp(records: Copied) -> None:
    records[70] = records[70]._replace(timestamp=records[70].timestamp + 1)


def missing(records: Copied) -> None:
    del records[70]


def extra(records: Copied) -> None:
    records.insert(70, OpenRecord(0, 5, tail_of(b"nobody", b"wrote this")))


def duplicate(records: Copied) -> None:
    records.insert(70, records[69])


def duplicate_of_long_ago(records: Copied) -> None:
    records.append(records[3])


def order(records: Copied) -> None:
    records[70], records[71] = records[71], records[70]


# Damage to partition 0 of a codec topic of 500 records: kind, source offset, target offset.
DAMAGE: dict[Callable[[Copied], None], tuple[str, int | None, int | None]] = {
    value_byte: ("altered", 71, 71),
    value_null: ("altered", 71, 71),
    key: ("altered", 70, 70),
    header_added: ("altered", 71, 71),
    timestamp: ("altered", 70, 70),
    missing: ("missing", 70, None),
    extra: ("extra", None, 70),
    duplicate: ("duplicate", None, 70),
    duplicate_of_long_ago: ("duplicate", None, 500),
    order: ("order", 71, 70),
}
