"""The check of a mirror's overview, on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from mirror_pipeline import Mirror, load_config
from mirror_pipeline.orchestration import names
from mirror_pipeline.orchestration.overview import overview_check, overview_spec
from mirror_pipeline.orchestration.project import UP_PID_ENV
from tests.support.mirrors import write_config
from tests.support.orchestration_fakes import NAME, FakeMirrors, known


def test_under_mirror_up_it_leads_to_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UP_PID_ENV, raising=False)
    assert "/mirrors/m" not in str(overview_spec(known("orders")).description)
    monkeypatch.setenv(UP_PID_ENV, "1")
    assert f"(/mirrors/m/{NAME})" in str(overview_spec(known("orders")).description)


def test_clusters_that_do_not_answer_make_it_red_and_fail_no_run(tmp_path: Path, fake: Any, instance: dg.DagsterInstance) -> None:
    mirror = Mirror(load_config(write_config(tmp_path, "127.0.0.1:1", "127.0.0.1:2", [".*"])), "m")
    FakeMirrors.fakes[NAME] = cast(Any, mirror)
    check = overview_check(known("orders"))
    job = dg.define_asset_job("look", selection=dg.AssetSelection.checks(check))
    defs = dg.Definitions(asset_checks=[check], jobs=[job], resources={"mirror_project": FakeMirrors()})
    (found,) = defs.resolve_job_def("look").execute_in_process(instance=instance).get_asset_check_evaluations()
    assert (found.asset_key, found.check_name, found.passed) == (names.overview_key(NAME), names.OVERVIEW_CHECK, False)
    assert str(found.metadata["state"].value).startswith("**not known: cluster east")
