"""The engine, broken on purpose: each of these must make the model find a violation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mirror_pipeline.buffer.spans import spans
from mirror_pipeline.engine.driver.read import source as source_side
from mirror_pipeline.engine.driver.write import outcomes
from mirror_pipeline.engine.driver.write.recovery import Tail
from mirror_pipeline.engine.tasks.write import task
from mirror_pipeline.engine.tasks.write.messages import PartitionWork
from mirror_pipeline.halts import truncated

Break = Callable[[pytest.MonkeyPatch], None]


def no_tail_read(patch: pytest.MonkeyPatch) -> None:
    """After an unknown outcome the target is taken to hold nothing new."""

    def pretend(client: object, wanted: Mapping[Any, Any], stamp: object, **_: object) -> dict[Any, Tail]:
        return {target: Tail(target, 0, position.target_next) for target, position in wanted.items()}

    patch.setattr(outcomes, "read_tails", pretend)


def ledger_alone(patch: pytest.MonkeyPatch) -> None:
    """A new run trusts its ledger; only errors of its own make it read the tail."""
    real = outcomes.SendOutcomes.recover

    def recover(self: Any) -> None:
        for part in self._state.sendable():
            if not part.failures and not part.error:
                part.outcome_unknown = False
        real(self)

    patch.setattr(outcomes.SendOutcomes, "recover", recover)


def window_of_five(patch: pytest.MonkeyPatch) -> None:
    """Five batches go out before the first was acknowledged."""
    patch.setattr(task._Slot, "window", property(lambda self: task.REQUESTS_IN_FLIGHT))


def evict_before_produced(patch: pytest.MonkeyPatch) -> None:
    """Every micro-batch counts as produced."""
    patch.setattr(spans, "produced_batches", lambda refs, produced: {ref.micro_batch for ref in refs})


def stamp_used_again(patch: pytest.MonkeyPatch) -> None:
    """Every task counts its sequences from 0."""
    real = task._sequenced

    def sequenced(work: PartitionWork, *rest: Any) -> Iterator[Any]:
        return real(replace(work, position=replace(work.position, ordinal=0)), *rest)

    patch.setattr(task, "_sequenced", sequenced)


def errors_are_success(patch: pytest.MonkeyPatch) -> None:
    """Whatever the broker refuses counts as written."""
    real = task._acknowledge

    def acknowledge(slot: Any, answer: Any, batch: Any, forgotten_before: int) -> None:
        expected = slot.work.position.target_next + slot.acked
        answer = answer._replace(error=0, base_offset=expected) if answer is not None and answer.error else answer
        real(slot, answer, batch, forgotten_before)

    patch.setattr(task, "_acknowledge", acknowledge)


def an_old_answer_is_the_end(patch: pytest.MonkeyPatch) -> None:
    """What a fetch tells of a log's end counts whenever it was asked, by whichever broker it is told, and halts at once."""

    def believe(self: Any, told: Mapping[Any, Any]) -> None:
        with self._state.lock:
            for part in self._state.live():
                answer = told.get(part.source)
                if answer is not None and 0 <= answer.last_stable_offset < part.staged and part.hard_end is None:
                    halt = truncated(part.source, answer.last_stable_offset, part.staged)
                    self._state.halt(part.source.topic, halt, sendable=True)
                elif answer is not None and answer.last_stable_offset >= 0:
                    part.end, part.end_known = answer.last_stable_offset, True

    patch.setattr(source_side.SourceSide, "_raise_ends", believe)


def one_look_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A log that seems to end too early halts its topic without being looked at again."""

    def halt(self: Any, doubtful: Mapping[Any, int]) -> None:
        self._halt([truncated(source, staged - 1, staged) for source, staged in doubtful.items()])

    patch.setattr(source_side.SourceSide, "_look_again", halt)


BREAKS: dict[str, Break] = {
    "no tail read": no_tail_read,
    "progress from the ledger alone": ledger_alone,
    "five batches before the first answer": window_of_five,
    "evicted before produced": evict_before_produced,
    "a stamp used again": stamp_used_again,
    "errors are taken for success": errors_are_success,
    "an old answer is the source's end": an_old_answer_is_the_end,
    "one look at the source's end is enough": one_look_is_enough,
}
