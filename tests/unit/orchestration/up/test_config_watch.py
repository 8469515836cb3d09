"""What the terminal of ``mirror up`` says about mirror.yaml."""

from __future__ import annotations

from pathlib import Path

from mirror_pipeline.orchestration.up.config_watch import ConfigWatch
from tests.support.orchestration_fakes import write_project


def test_a_file_that_stops_loading_is_said_once_and_so_is_its_recovery(tmp_path: Path) -> None:
    path = write_project(tmp_path, ["orders"]).path
    said: list[str] = []
    watch = ConfigWatch(path, said.append)
    watch.look()
    good = path.read_text()
    path.write_text(good.replace("topics:", "topcis:"))
    for _ in range(3):
        watch.look()
    assert len(said) == 1
    assert said[0].startswith(f"{path}:") and "topcis" in said[0]
    assert said[0].endswith("lanes that run keep their settings, no run starts until the file loads")
    path.write_text(good.replace("topics:", "topcis:") + "# the same typo\n")
    watch.look()
    assert len(said) == 1
    path.unlink()
    watch.look()
    assert "no such file" in said[1]
    path.write_text(good)
    watch.look()
    watch.look()
    assert said[2:] == [f"{path} loads again"]


def test_a_change_that_loads_is_no_news(tmp_path: Path) -> None:
    path = write_project(tmp_path, ["orders"]).path
    said: list[str] = []
    watch = ConfigWatch(path, said.append)
    path.write_text(path.read_text() + "# a comment\n")
    watch.look()
    assert said == []
