"""The driver's part: jobs at work side by side, terms from topic settings, records that do not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mirror_pipeline.errors import BrokerError, CorruptBatch, TaskLost
from mirror_pipeline.execution.runner import InlineRunner
from mirror_pipeline.kafka.cluster_info import ConfigValue
from mirror_pipeline.verify.align import align
from mirror_pipeline.verify.jobs import JOB_ATTEMPTS, OFFSETS_PER_GROUP, grouped, run_each
from mirror_pipeline.verify.record_tasks import Terms, without
from mirror_pipeline.verify.rules import terms_of
from tests.support.verify_samples import opened, pieces


class Threads(InlineRunner):
    """Runs tasks in the caller's thread; the first ``failures`` attempts end with ``problem``."""

    def __init__(self, failures: int = 0, problem: Exception | None = None) -> None:
        self.left, self.problem = failures, problem

    @property
    def tasks(self) -> int:
        return 2

    def run(self, function: Callable[[Any], Any], specs: Sequence[Any], *, name: str) -> list[Any]:
        if self.left and self.problem is not None:
            self.left -= 1
            raise self.problem
        return [function(spec) for spec in specs]


def test_every_spec_runs_once_and_results_may_ask_for_more() -> None:
    seen: list[int] = []

    def took(result: int) -> list[int]:
        seen.append(result)
        return [result // 2] if result > 1 and result % 2 == 0 else []

    run_each(Threads(), lambda n: n, [8, 3], name="test", took=took)
    assert sorted(seen) == [1, 2, 3, 4, 8]


def test_a_lost_worker_is_no_loss_and_a_broken_one_is_no_endless_loop() -> None:
    seen: list[int] = []

    def took(result: int) -> tuple[()]:
        seen.append(result)
        return ()

    run_each(Threads(JOB_ATTEMPTS - 1, TaskLost("gone")), lambda n: n, [1], name="test", took=took)
    assert seen == [1]
    with pytest.raises(TaskLost):
        run_each(Threads(99, TaskLost("gone")), lambda n: n, [1], name="test")
    with pytest.raises(CorruptBatch):
        run_each(Threads(1, CorruptBatch("bad")), lambda n: n, [1], name="test")


def test_small_stretches_go_together_and_large_ones_alone() -> None:
    weights = [10, 20, OFFSETS_PER_GROUP, 5, OFFSETS_PER_GROUP * 3, 1, 1]
    assert grouped(weights, lambda w: w) == [(10, 20), (OFFSETS_PER_GROUP,), (5,), (OFFSETS_PER_GROUP * 3,), (1, 1)]
    assert grouped([], lambda w: w) == []


def settings(**values: str) -> dict[str, ConfigValue]:
    return {name.replace("__", "."): ConfigValue(value) for name, value in values.items()}


def test_terms_follow_the_topics_settings() -> None:
    forever = settings(cleanup__policy="delete", retention__ms="-1", retention__bytes="-1")
    assert terms_of(None, None) == Terms()
    assert terms_of(settings(), forever) == Terms(ends_deleted=False)
    assert terms_of(settings(cleanup__policy="compact"), forever).thin_source
    compacted = terms_of(None, settings(cleanup__policy="compact", retention__ms="1000"))
    assert (compacted.thin_target, compacted.ends_deleted, compacted.positional) == (True, False, True)
    both = terms_of(None, settings(cleanup__policy="compact,delete", retention__ms="-1", retention__bytes="5"))
    assert (both.thin_target, both.ends_deleted) == (True, True)
    assert terms_of(None, settings(message__timestamp__type="LogAppendTime")).timeless
    assert terms_of(BrokerError(29, "no", "no"), BrokerError(29, "no", "no")) == Terms()


def test_records_in_a_gap_do_not_count() -> None:
    log = [opened(n) for n in range(10)]
    copy = [record for record in log if record.offset not in (3, 4, 9)]
    found = align(without(pieces(log), ((3, 5), (9, 20))), pieces(copy), limit=10)
    assert found.candidates == []
    assert len(align(without(pieces(log), ((3, 5),)), pieces(copy), limit=10).candidates) == 1


def test_a_target_that_stamps_records_itself_is_compared_without_times() -> None:
    log = [opened(n) for n in range(10)]
    later = [record._replace(timestamp=record.timestamp + 5) for record in log]
    ours, theirs = ([p.__class__(p.header, p.batch, p.low, p.high, True) for p in pieces(side)] for side in (log, later))
    assert align(ours, theirs, limit=10).candidates == []
    assert len(align(pieces(log), pieces(later), limit=20).candidates) == 10
