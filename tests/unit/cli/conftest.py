"""The ``mirror`` command against a facade in memory."""

from __future__ import annotations

import pytest

from mirror_pipeline.cli import load, main
from tests.support.cli_fakes import Cli, Ended, FakeMirror, opened


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """``cli("plan", "--json", mirrors=[...])``; without mirrors the real configuration is read."""

    def call(*words: str, mirrors: list[FakeMirror] | None = None) -> Ended:
        if mirrors is not None:
            monkeypatch.setattr(load, "load", lambda path: opened(*mirrors))
        code = main.main(list(words))
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return call
