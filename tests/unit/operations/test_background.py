from __future__ import annotations

import threading

import pytest

from mirror_pipeline.operations.background import RunEnd


def beside(end: RunEnd, said: list[bool]) -> threading.Thread:
    return threading.Thread(target=lambda: said.append(end.may_say()))


def test_beside_a_run_that_cannot_begin_nothing_is_said() -> None:
    end, said = RunEnd(), list[bool]()
    with pytest.raises(ValueError), end.awaited(beside(end, said), 10.0):
        raise ValueError
    assert said == [False]


def test_beside_a_short_run_that_ends_well_an_error_is_said() -> None:
    end, said = RunEnd(), list[bool]()
    with end.awaited(beside(end, said), 10.0):
        assert not said
    assert said == [True]


def test_later_nothing_waits() -> None:
    end, said = RunEnd(0.0), list[bool]()
    with pytest.raises(ValueError), end.awaited(thread := beside(end, said), 10.0):
        thread.join()
        assert said == [True]
        raise ValueError
