from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMirror:
    """The one mirror that ``FakeMirrors`` knows."""
    mirror = FakeMirror()
    monkeypatch.setattr(FakeMirrors, "fakes", {NAME: mirror})
    return mirror


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UP_PID", "UP_URL", "UP_TOKEN", "UP_TOKEN_FILE", "CONFIG", "PROJECT", "BACKFILL_PARTITION", "BACKFILL_START"):
        monkeypatch.delenv(f"MIRROR_{name}", raising=False)
