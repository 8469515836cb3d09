"""Our batches read by others, others' batches read by us: Kafka itself, aiokafka, kafka-python.

``batch_golden.json`` was written by Kafka 3.9.1's ``MemoryRecordsBuilder`` (4.3.0 writes the same bytes, and both
read what ``seal`` makes of it); ``BatchGolden.java`` is the program.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from kafka.record import memory_records as kafka_python

from mirror_pipeline.kafka.records.batch import Record, check, decode, headers, open_batch, restamp, seal
from mirror_pipeline.model import Stamp
from tests.support.batch_samples import CODECS, contents, opened, utf8_pairs

GOLDEN = json.loads((Path(__file__).parent / "batch_golden.json").read_text())


def data(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def golden_records(sample: dict) -> list[Record]:
    return [
        Record(offset, time, data(key), data(value), tuple((bytes.fromhex(name), data(text)) for name, text in pairs))
        for offset, time, key, value, pairs in sample["records"]
    ]


def name(sample: dict) -> str:
    extra = [key for key in ("log_append_time", "delete_horizon") if sample[key]]
    return "-".join([f"magic{sample['magic']}", f"codec{sample['codec']}", *extra])


@pytest.mark.parametrize("sample", GOLDEN, ids=name)
def test_batches_written_by_kafka(sample: dict) -> None:
    raw, records = bytes.fromhex(sample["bytes"]), []
    for position, header in headers(raw):
        check(raw, position, header)
        assert header.log_append_time == sample["log_append_time"]
        records += decode(raw[position : position + header.size])
    assert records == golden_records(sample)


@pytest.mark.parametrize("sample", [sample for sample in GOLDEN if sample["delete_horizon"]], ids=name)
def test_clearing_the_delete_horizon_keeps_times(sample: dict) -> None:
    raw = bytes.fromhex(sample["bytes"])
    ((_, header),) = headers(raw)
    assert header.attributes & 0x40
    produced = restamp(header, memoryview(raw), Stamp(1, 0), 0) + raw[61:]
    assert not next(iter(headers(produced)))[1].attributes & 0x40
    assert [record[1:] for record in decode(produced)] == [record[1:] for record in golden_records(sample)]


def read_by_aiokafka(raw: bytes) -> list[Record]:
    batches, found = MemoryRecords(raw), []
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        found += [Record(r.offset, r.timestamp, r.key, r.value, tuple((key.encode(), value) for key, value in r.headers)) for r in batch]
    return found


def read_by_kafka_python(raw: bytes) -> list[Record]:
    found = []
    for batch in kafka_python.MemoryRecords(raw):
        assert batch.validate_crc()
        found += [Record(r.offset, r.timestamp, r.key, r.value, tuple((k.encode(), v) for k, v in r.headers)) for r in batch]
    return found


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=30)
@given(rows=contents(utf8_pairs))
def test_sealed_batches_are_read_by_others(codec: int, rows: list[tuple]) -> None:
    batch = seal(opened(rows, 500), codec=codec)
    expected = [Record(500 + index, *row) for index, row in enumerate(rows)]
    assert read_by_aiokafka(batch) == expected
    assert read_by_kafka_python(batch) == expected


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=30)
@given(rows=contents(utf8_pairs))
def test_batches_of_aiokafka_are_opened(codec: int, rows: list[tuple]) -> None:
    # its compiled builder takes a first timestamp of -1 for "not set yet" and writes the next one over it
    rows = [(max(row[0], 0), *row[1:]) for row in rows]
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, 0, 1 << 20)
    for index, (time, key, value, pairs) in enumerate(rows):
        assert builder.append(index, time, key, value, [(k.decode(), v) for k, v in pairs]) is not None
    raw = bytes(builder.build())
    assert decode(raw) == [Record(index, *row) for index, row in enumerate(rows)]
    assert read_by_aiokafka(seal(open_batch(raw), codec=codec)) == read_by_aiokafka(raw)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=30)
@given(rows=contents(utf8_pairs))
def test_batches_of_kafka_python_are_opened(codec: int, rows: list[tuple]) -> None:
    builder = kafka_python.MemoryRecordsBuilder(2, codec, 1 << 20)
    for time, key, value, pairs in rows:
        assert builder.append(time, key, value, [(k.decode(), v) for k, v in pairs]) is not None
    builder.close()
    assert decode(bytes(builder.buffer())) == [Record(index, *row) for index, row in enumerate(rows)]


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)])
@settings(max_examples=20)
@given(rows=contents(utf8_pairs, max_size=5))
def test_old_batches_of_kafka_python_are_opened(magic: int, codec: int, rows: list[tuple]) -> None:
    builder = kafka_python.MemoryRecordsBuilder(magic, codec, 1 << 20)
    for time, key, value, _ in rows:
        assert builder.append(max(time, 0), key, value) is not None
    builder.close()
    raw = bytes(builder.buffer())
    expected = [Record(index, max(row[0], 0) if magic else -1, row[1], row[2], ()) for index, row in enumerate(rows)]
    found = [record for position, header in headers(raw) for record in decode(raw[position : position + header.size])]
    assert found == expected
