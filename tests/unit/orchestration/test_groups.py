"""Consumer groups in Dagster: the sensor's events, the check, and that neither exists where no groups are selected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import dagster as dg
import pytest
import yaml

from mirror_pipeline.config import GroupSelection
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.orchestration.definitions import build
from mirror_pipeline.orchestration.groups import groups_check, in_step, tick
from mirror_pipeline.orchestration.names import groups_key
from mirror_pipeline.orchestration.project import KnownMirror, read_project
from mirror_pipeline.reports import CarriedGroup, GroupsReport
from tests.support.orchestration_fakes import NAME, FakeMirror, FakeMirrors, known, write_project


def row(group: str, state: str, why: str = "", behind: int | None = 0) -> CarriedGroup:
    return CarriedGroup(NAME, group, "orders", 0, 7, 7, behind, 0, state, why)


@dataclass
class GroupsMirror(FakeMirror):
    answer: GroupsReport | Exception = GroupsReport(NAME, (row("billing", "in_step"),))

    def carry_groups(self) -> GroupsReport:
        self.calls.append({"call": "carry_groups"})
        return self.groups()

    def groups(self) -> GroupsReport:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def with_groups() -> KnownMirror:
    mirror = known("orders")
    return replace(mirror, config=replace(mirror.config, groups=GroupSelection((".*",))))


def ticked(fake: GroupsMirror, monkeypatch: pytest.MonkeyPatch) -> dg.SensorResult | dg.SkipReason:
    monkeypatch.setattr(FakeMirrors, "fakes", {NAME: fake})
    return tick(with_groups(), FakeMirrors())


def test_the_sensor_carries_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = GroupsMirror()
    result = ticked(fake, monkeypatch)
    assert isinstance(result, dg.SensorResult)
    assert fake.calls == [{"call": "carry_groups"}]
    made, checked = result.asset_events
    assert isinstance(made, dg.AssetMaterialization) and isinstance(checked, dg.AssetCheckEvaluation)
    assert made.asset_key == checked.asset_key == groups_key(NAME)
    assert {name: value.value for name, value in made.metadata.items()} == {"groups": 1, "groups_not_in_step": 0, "records_behind": 0}
    assert checked.passed


def test_an_unreachable_cluster_makes_the_sensor_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ticked(GroupsMirror(answer=ClusterUnreachable("west", "west: no broker answered")), monkeypatch)
    assert isinstance(result, dg.SkipReason)
    assert "west: no broker answered" in (result.skip_message or "")


@pytest.mark.parametrize(
    ("state", "passed", "severity"),
    [("in_step", True, None), ("moved", True, None), ("not_copied_yet", False, "WARN"), ("both_sides", False, "ERROR")],
)
def test_the_check_says_who_must_act(state: str, passed: bool, severity: str | None) -> None:
    result = in_step(NAME, GroupsReport(NAME, (row("billing", state, "the reason", 12), row("shop", "in_step"))))
    assert result.passed is passed
    if severity:
        assert (result.severity.name, result.description) == (severity, "billing: the reason")
        assert {name: value.value for name, value in (result.metadata or {}).items()}["records_behind"] == 12


def test_a_note_fails_the_check() -> None:
    result = in_step(NAME, GroupsReport(NAME, (), ("groups.include: 'x' matches none",)))
    assert not result.passed and result.description == "groups.include: 'x' matches none"


def test_the_asset_exists_where_groups_are_selected(tmp_path: Path) -> None:
    def keys(folder: Path) -> tuple[set[dg.AssetKey], set[str]]:
        defs = build(read_project(folder / "mirror.yaml"))
        dg.Definitions.validate_loadable(defs)
        return {spec.key for spec in defs.resolve_all_asset_specs()}, {sensor.name for sensor in defs.sensors or ()}

    write_project(tmp_path, ["orders"])
    assert groups_key(NAME) not in keys(tmp_path)[0]
    path = tmp_path / "mirror.yaml"
    body = yaml.safe_load(path.read_text())
    body["mirrors"][0]["groups"] = {"include": ["billing"]}
    path.write_text(yaml.safe_dump(body))
    assets, sensors = keys(tmp_path)
    assert groups_key(NAME) in assets and "groups_east_to_west" in sensors
    assert isinstance(groups_check(with_groups()), dg.AssetChecksDefinition)
