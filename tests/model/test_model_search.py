"""The engine against a model broker: whatever the order of steps, faults and kills, the invariants hold.

``MIRROR_MODEL_EXAMPLES=2000`` searches deeper. A failing example is printed with the line that repeats it, a failing story
with its seed (``MIRROR_MODEL_SEED``).
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.breaks import BREAKS
from tests.model.broker import SEEN
from tests.model.invariants import Violation
from tests.model.machine import LaneMachine, story

EXAMPLES = int(os.environ.get("MIRROR_MODEL_EXAMPLES", "60"))
MOST_STORIES = 300
"""A broken engine is found within a few dozen; after so many without a finding the model is taken to be blind."""
MUST_HAPPEN = (
    "batch appended", "duplicate recognised", "45", "refused", "answered badly", "killed run", "lost worker", "went on late", "forgotten",
    "evicted", "failed over", "source leader moved", "source broker silent",
)  # fmt: skip


@pytest.mark.timeout(0)
def test_no_short_order_of_faults_breaks_the_lane() -> None:
    search = settings(
        max_examples=EXAMPLES, stateful_step_count=30, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(LaneMachine, settings=search)


@pytest.mark.timeout(0)
def test_no_long_story_breaks_the_lane() -> None:
    SEEN.clear()
    first = int(os.environ.get("MIRROR_MODEL_SEED", random.randrange(10**6)))
    for seed in range(first, first + EXAMPLES):
        try:
            story(seed)
        except Violation as found:
            raise AssertionError(f"MIRROR_MODEL_SEED={seed} MIRROR_MODEL_EXAMPLES=1: {found}") from found
    print(f"seeds {first} to {first + EXAMPLES - 1}: {dict(SEEN)}")
    missing = [what for what in MUST_HAPPEN if not SEEN[what]]
    assert not missing or EXAMPLES < 20, f"seed {first}: the search never came to: {missing}"


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_engine_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same stories every time."""
    BREAKS[name](monkeypatch)
    with pytest.raises(Violation) as found:
        for seed in range(MOST_STORIES):
            story(seed)
    print(f"{name}: {found.value}")
