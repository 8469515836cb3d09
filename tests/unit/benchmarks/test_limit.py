"""The limit: what it does to batches, and the order in which it sends them."""

from __future__ import annotations

import threading
from struct import Struct

import pytest

from benchmarks import limit
from mirror_pipeline.kafka.records.header import LOG_OVERHEAD, headers
from mirror_pipeline.local.shapes.bulk import Stencil
from mirror_pipeline.model import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
_BASE = Struct(">qii")


def log(stencil: Stencil, batches: int, *, first: int = 0) -> memoryview:
    """Batches as a broker holds them: with offsets and a leader epoch."""
    data = bytearray()
    for number in range(batches):
        batch = bytearray(stencil.batch(0, number * stencil.records))
        _BASE.pack_into(batch, 0, first + number * stencil.records, len(batch) - LOG_OVERHEAD, 7)
        data += batch
    return memoryview(data)


@pytest.mark.parametrize(("records", "codec"), [(300, 0), (16, 3)])
def test_batches_that_are_large_or_compressed_keep_their_bytes(records: int, codec: int) -> None:
    stencil = Stencil(1_000, records, codec)
    data = log(stencil, 3)
    before = [bytes(data[at + 16 : at + header.size]) for at, header in headers(data)]
    batches, after = limit.outgoing(data)
    assert after == 3 * records
    assert [bytes(batch[16:]) for batch in batches] == before
    assert [(h.base_offset, h.leader_epoch) for batch in batches for _, h in headers(batch)] == [(0, -1)] * 3


def test_many_small_batches_become_few() -> None:
    data = log(Stencil(1_000, 16, 0), 30, first=4096)
    batches, after = limit.outgoing(data)
    found = [header for batch in batches for _, header in headers(batch)]
    assert after == 4096 + 480
    assert len(found) < 4
    assert sum(header.records for header in found) == 480
    assert {header.base_offset for header in found} == {0}


def test_a_batch_that_is_cut_off_is_fetched_again() -> None:
    data = log(Stencil(1_000, 300, 0), 2)
    batches, after = limit.outgoing(data[:-1])
    assert (len(batches), after) == (1, 300)
    assert limit.outgoing(data[:100]) == ([], -1)


def test_a_request_has_one_batch_of_each_partition_in_order() -> None:
    pipe = limit.Pipe([A, B])
    pipe.put({A: [memoryview(b"a1"), memoryview(b"a2")], B: [memoryview(b"b1")]})
    assert pipe.request(wait=True) == {A: b"a1", B: b"b1"}
    assert pipe.request(wait=True) == {A: b"a2"}
    assert pipe.request(wait=False) == {}


def test_fetching_waits_while_too_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "HELD_BYTES", 3)
    pipe = limit.Pipe([A])
    pipe.put({A: [memoryview(b"1234")]})
    second = threading.Thread(target=pipe.put, args=({A: [memoryview(b"5")]},))
    second.start()
    assert pipe.request(wait=True) == {A: b"1234"}
    assert pipe.request(wait=False) == {}
    pipe.sent(4)
    second.join(10)
    assert pipe.request(wait=False) == {A: b"5"}
