"""Tests of the tests: every build broken on purpose is caught, and the whole one passes the very same tests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.mutants.mutants import FAST, SLOW, Mutant
from tests.mutants.workshop import MutantStale, Verdict, Workshop, parts, patch

pytestmark = [pytest.mark.long, pytest.mark.timeout(0)]


class Judged:
    """All builds of this session, judged two at a time from the first question on."""

    def __init__(self, mutants: list[Mutant], *, forked: bool) -> None:
        self._workshop = Workshop(forked=forked)
        self._whole = self._workshop.whole(parts(mutants))
        self._broken: dict[str, Future[Verdict] | MutantStale] = {}
        for mutant in mutants:
            try:
                self._broken[mutant.name] = self._workshop.broken(mutant)
            except MutantStale as problem:
                self._broken[mutant.name] = problem

    def check(self, mutant: Mutant) -> None:
        found = self._broken[mutant.name]
        if isinstance(found, MutantStale):
            raise found
        whole = self._whole.result()
        assert whole.code == 0, f"the whole build fails:\n{whole.text[-3000:]}"
        verdict = found.result()
        assert verdict.caught(mutant), f"not caught: {mutant.name} (exit code {verdict.code})\n{verdict.text[-3000:]}"
        print(f"{mutant.name}: {verdict.failed_tests[:300]}")

    def close(self) -> None:
        self._workshop.close()


@pytest.fixture(scope="module")
def judged(request: pytest.FixtureRequest) -> Iterator[dict[bool, Judged]]:
    """Judges the mutants that were asked for: fast and slow ones apart."""
    given = [getattr(item, "callspec", _NONE).params.get("mutant") for item in request.session.items]
    asked = [mutant for mutant in given if isinstance(mutant, Mutant)]
    fast, slow = [m for m in asked if m in FAST], [m for m in asked if m in SLOW]
    made = {late: Judged(some, forked=not late) for late, some in ((False, fast), (True, slow)) if some}
    yield made
    for each in made.values():
        each.close()


class _NONE:
    params: dict[str, object] = {}


@pytest.mark.parametrize("mutant", FAST, ids=lambda mutant: mutant.name)
def test_a_broken_build_is_caught(mutant: Mutant, judged: dict[bool, Judged]) -> None:
    judged[False].check(mutant)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("mutant", SLOW, ids=lambda mutant: mutant.name)
def test_a_build_that_only_brokers_can_judge_is_caught(mutant: Mutant, judged: dict[bool, Judged]) -> None:
    judged[True].check(mutant)


def test_a_mutant_that_does_not_apply_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("mutant") / "code.py"
    path.write_text("a = 1\nb = 1\n")
    for old in ("c", " = 1"):
        with pytest.raises(MutantStale):
            patch(path, Mutant("x", "code.py", old, "", "test"))
    patch(path, Mutant("x", "code.py", "a = 1", "a = 2", "test"))
    assert path.read_text() == "a = 2\nb = 1\n"
