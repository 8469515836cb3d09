"""The share of tests on each path, and what ``--path`` changes."""

from __future__ import annotations

import pytest

from tests.support.paths import DRIVER, SPARK, VARIABLE, on_spark, path_settings

NAMES = [f"tests/integration/test_{n}.py::test_{n}" for n in range(3000)]


def test_two_in_three_tests_run_on_spark() -> None:
    assert 1900 < sum(on_spark(name, "both") for name in NAMES) < 2100


@pytest.mark.parametrize("wish", ["spark", "driver"])
def test_all_tests_run_where_the_option_says(wish: str) -> None:
    assert {on_spark(name, wish) for name in NAMES} == {wish == "spark"}


def test_setup_and_call_of_a_test_have_the_same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "both")
    for name in NAMES[:100]:
        settings = []
        for stage in ("setup", "call", "teardown"):
            monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{name} ({stage})")
            settings.append(path_settings())
        assert settings == [SPARK if on_spark(name, "both") else DRIVER] * 3
