"""Receive buffers come back when, and only when, nobody looks at them."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from mirror_pipeline.kafka.wire.buffers import CHUNK_BYTES, KEPT_BUFFERS, STEP, Arena, BufferPool


def test_a_buffer_is_used_again_once_its_views_are_gone() -> None:
    pool = BufferPool()
    view = pool.take(1000)
    first = view.obj
    part = view[10:20]
    del view
    assert pool.take(1000).obj is not first
    del part
    assert pool.take(900).obj is first


def test_sizes_that_differ_a_little_share_a_buffer() -> None:
    pool = BufferPool()
    sizes = [500_000, 500_123, 515_000, 480_000, 520_000]
    assert len({id(pool.take(size).obj) for size in sizes}) == 1


def test_an_arena_uses_its_chunks_again() -> None:
    arena = Arena(3)
    sizes = [CHUNK_BYTES // 8 + place for place in range(20)]
    chunks: set[int] = set()
    for _ in range(5):
        held = [arena.take(size) for size in sizes]
        for number, view in enumerate(held):
            view[:] = bytes([number]) * sizes[number]
        assert [bytes(view) for view in held] == [bytes([number]) * sizes[number] for number in range(20)]
        chunks |= {id(view.obj) for view in held}
        held.clear()
        del view
    assert len(chunks) <= 4
    assert len(arena.take(3 * CHUNK_BYTES)) == 3 * CHUNK_BYTES


def test_no_more_buffers_are_kept_than_needed() -> None:
    pool = BufferPool()
    held = [pool.take(1 << 16) for _ in range(20)]
    assert len({id(view.obj) for view in held}) == 20
    assert len(pool._kept) == KEPT_BUFFERS


def test_a_small_reply_does_not_pin_a_huge_buffer() -> None:
    pool = BufferPool()
    del_me = pool.take(64 << 20)
    huge = del_me.obj
    del del_me
    assert pool.take(100).obj is not huge


def test_of_many_buffers_the_one_held_longest_comes_back() -> None:
    pool = BufferPool(100, pinned=STEP)
    held = [pool.take(400_000) for _ in range(50)]
    known = {id(view.obj) for view in held}
    for _ in range(200):
        held.pop(0)
        held.append(pool.take(400_000 + len(held)))
    assert {id(view.obj) for view in held} == known
    assert id(pool.take(50_000).obj) not in known


def test_buffers_of_other_sizes_make_way() -> None:
    pool = BufferPool(math.inf, room=4_000_000, pinned=STEP)
    held: list[memoryview] = []
    for size in (300_000, 3_000_000, 100, 300_000):  # as when topics of other record sizes have their turn
        for _ in range(20):
            held.clear()
            held += [pool.take(size) for _ in range(3_000_000 // max(size, STEP))]
        known = {id(view.obj) for view in held}
        held.clear()
        assert {id(view.obj) for view in [pool.take(size) for _ in known]} == known
        assert sum(map(len, pool._kept)) <= 4_000_000


def test_no_more_is_kept_than_was_in_use_at_once() -> None:
    pool, held = BufferPool(math.inf, pinned=STEP), deque[memoryview]()
    first = [pool.take(400_000) for _ in range(20)]  # as of a partition that has to wait for its turn
    for _ in range(200):
        held.append(pool.take(400_000))
        if len(held) > 10:
            held.popleft()
    assert len(pool._kept) <= len(first) + 11


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=40))
def test_held_views_keep_their_bytes(steps: list[tuple[int, bool]]) -> None:
    pool = BufferPool()
    held: list[tuple[memoryview, int]] = []
    for number, (size, hold) in enumerate(steps):
        view = pool.take(size)
        assert len(view) == size
        view[:] = bytes([number]) * size
        if hold:
            held.append((view[size // 2 :], number))
        elif held:
            held.pop(0)
        del view
    for view, number in held:
        assert bytes(view) == bytes([number]) * len(view)


def test_threads_never_share_a_buffer() -> None:
    pool = BufferPool(8)
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(3000):
            view = pool.take(64)
            view[:] = bytes([mark]) * 64
            time.sleep(0)
            if bytes(view) != bytes([mark]) * 64:
                wrong.append(mark)
            del view

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
