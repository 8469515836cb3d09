"""Where the hours of a backfill begin: not years before there was a mirror."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from mirror_pipeline.config import load_config
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.orchestration.backfill import partitions
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.project import read_project
from mirror_pipeline.topics import catalogue
from tests.support.orchestration_fakes import NAME, write_project

NOVEMBER = int(datetime(2026, 11, 23, 12, tzinfo=UTC).timestamp() * 1000)
JANUARY = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(("since", "start"), [(NOVEMBER, "2026-10-01"), (JANUARY, "2025-12-01"), (0, "2024-01-01")])
def test_it_begins_the_month_before_the_mirror_was_first_seen(since: int, start: str) -> None:
    assert f"{partitions(since).start:%Y-%m-%d}" == start


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_BACKFILL_START", "2020-02-02")
    assert f"{partitions(NOVEMBER).start:%Y-%m-%d}" == "2020-02-02"


def test_the_catalogue_tells_when_that_was(tmp_path: Path) -> None:
    write_project(tmp_path, ["orders"])
    saved = tmp_path / ".mirror" / f"{NAME}.catalogue.json"
    saved.write_text(json.dumps({**json.loads(saved.read_text()), "since": NOVEMBER}))
    project = read_project(tmp_path / "mirror.yaml")
    (key,) = [k for k in build(project).resolve_asset_graph().get_all_asset_keys() if k.path[1] == "backfill"]
    found = build(project).resolve_asset_graph().get(key).partitions_def
    assert found is not None and f"{found.start:%Y-%m-%d}" == "2026-10-01"  # type: ignore[attr-defined]


def test_a_refresh_keeps_when_the_first_catalogue_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(write_project(tmp_path, None).path)
    times = iter([NOVEMBER, NOVEMBER + 5000])
    monkeypatch.setattr(catalogue, "build_catalogue", lambda *_: catalogue.Catalogue(NAME, next(times), "c", (), ()))
    made = [catalogue.refresh_catalogue(config, config.mirrors[0], cast(Admin, None)) for _ in range(2)]
    assert [(one.refreshed_at, one.since) for one in made] == [(NOVEMBER, NOVEMBER), (NOVEMBER + 5000, NOVEMBER)]
