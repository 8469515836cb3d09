"""Where the hours of a backfill begin: not years before there was a mirror."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from mirror_pipeline.config import load_config
from mirror_pipeline.kafka.admin import Admin
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.backfill import backfill_asset, partitions
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.project import read_project
from mirror_pipeline.topics import catalogue
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, NoSpark, known, write_project

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


@pytest.mark.parametrize(
    ("first", "hours", "config", "asked"),
    [
        (0, None, {}, False), (0, None, {"everything": True}, True), (0, 48, {}, True), (5, None, {}, True),
    ],
)  # fmt: skip
def test_every_hour_there_is_is_copied_only_where_that_was_said(
    fake: FakeMirror, instance: dg.DagsterInstance, first: int, hours: int | None, config: dict[str, Any], asked: bool
) -> None:
    """*Materialize all* launches a run of all partitions for each asset, with no configuration."""
    since = int((datetime.now(UTC) - timedelta(days=3)).timestamp() * 1000)
    parts, topic = partitions(since), known("orders")
    asset = backfill_asset(topic, (topic.topics or ())[0], parts)
    keys = parts.get_partition_keys()
    chosen = keys[first : first + hours if hours else None]
    ran = dg.materialize(
        [asset, dg.AssetSpec(names.source_key(NAME, "orders"))], instance=instance, raise_on_error=False,
        tags={"dagster/asset_partition_range_start": chosen[0], "dagster/asset_partition_range_end": chosen[-1]},
        resources={"mirror_project": FakeMirrors(), "mirror_spark": NoSpark()},
        run_config={"ops": {asset.op.name: {"config": config}}} if config else None,
    )  # fmt: skip
    assert ran.success is asked
    assert ["backfill"] * asked == [call["call"] for call in fake.calls if call["call"] == "backfill"]
    if not asked:
        (failed,) = [event for event in ran.all_events if event.event_type_value == "STEP_FAILURE"]
        assert "every hour since" in str(failed.step_failure_data.user_failure_data)
