"""Connections are opened in the background; whoever waits hears of each change, and not of each twice."""

from __future__ import annotations

import select
from typing import Any

from mirror_pipeline.engine.tasks.longlink.dialer import Dialer


def heard(dialer: Dialer) -> bool:
    return bool(select.select([dialer.news], [], [], 0)[0])


def test_many_wakes_are_one_and_none_after_it_is_missed() -> None:
    def nothing() -> Any:
        raise AssertionError("nothing is wanted")

    dialer = Dialer(nothing)
    assert not heard(dialer)
    for _ in range(3):
        dialer.wake()
    assert heard(dialer)
    assert dialer.opened() == []
    assert not heard(dialer), "three wakes before it listened are one"
    dialer.wake()
    assert heard(dialer)
    dialer.end()
    dialer.wake()


def test_what_is_opened_and_what_fails_is_heard() -> None:
    def refuse() -> Any:
        raise OSError("refused")

    dialer = Dialer(refuse)
    dialer.want(2)
    found: list[Any] = []
    while len(found) < 2:
        assert select.select([dialer.news], [], [], 10)[0]
        found += dialer.opened()
    assert [str(each) for each in found] == ["refused", "refused"]
    assert not dialer.busy
    dialer.end()
