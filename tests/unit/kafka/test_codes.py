"""Every Kafka error code has a name, an action and words for people."""

from __future__ import annotations

import kafka.errors
import pytest

from mirror_pipeline.kafka.codes import CODES, Action, after_produce, broker_error, lookup

KAFKA_4_3 = range(-1, 134)


@pytest.mark.parametrize("code", KAFKA_4_3)
def test_every_code_of_kafka_4_3_has_an_entry_with_a_hint(code: int) -> None:
    entry = CODES[code]
    assert entry.code == code
    assert entry.name.isupper() and entry.name.replace("_", "").isalnum()
    assert entry.action in Action
    assert len(entry.hint) >= 8


def test_codes_agree_with_kafka_python() -> None:
    kinds = [kind for kind in vars(kafka.errors).values() if isinstance(kind, type)]
    theirs = {number for kind in kinds if (number := getattr(kind, "errno", None)) is not None}
    assert theirs >= set(range(-1, 128))
    assert theirs <= set(CODES)


@pytest.mark.parametrize(
    ("action", "codes"),
    [
        (Action.NONE, [0]),
        (Action.RETRY, [14, 19, 78, 89]),
        (Action.REFRESH, [3, 5, 6, 9, 56, 72, 74, 75, 100, 103]),
        (Action.UNKNOWN_OUTCOME, [-1, 7, 13, 20, 45, 46, 59]),
        (Action.RESEEK, [1]),
        (Action.HALT, [2, 10, 17, 18, 29, 32, 44, 76, 87]),
        (Action.FENCED, [47, 90]),
        (Action.FATAL, [31, 33, 34, 35, 58, 104]),
    ],
)
def test_what_the_data_path_does(action: Action, codes: list[int]) -> None:
    assert {code: lookup(code).action for code in codes} == dict.fromkeys(codes, action)


@pytest.mark.parametrize("code", [3, 6, 56])
def test_a_leader_that_lost_the_partition_may_have_appended(code: int) -> None:
    assert lookup(code).action is Action.REFRESH
    assert after_produce(code) is Action.UNKNOWN_OUTCOME


@pytest.mark.parametrize(("code", "action"), [(0, Action.NONE), (19, Action.RETRY), (10, Action.HALT), (47, Action.FENCED)])
def test_after_produce_leaves_the_others(code: int, action: Action) -> None:
    assert after_produce(code) is action


def test_a_code_from_the_future_halts() -> None:
    entry = lookup(999)
    assert (entry.code, entry.action) == (999, Action.HALT)
    assert "999" in entry.name and entry.hint


@pytest.mark.parametrize(("code", "retryable"), [(6, True), (14, True), (7, False), (45, False), (29, False)])
def test_broker_error_says_what_happened_and_what_to_do(code: int, retryable: bool) -> None:
    error = broker_error(code, "east: offsets of orders[3]", "the broker's words")
    assert str(error) == f"east: offsets of orders[3]: {lookup(code).name}: the broker's words ({lookup(code).hint})"
    assert (error.code, error.name, error.retryable) == (code, lookup(code).name, retryable)
