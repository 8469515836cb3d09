"""The demo without brokers: its folder, what it shows, and that its exit code can be 1."""

from __future__ import annotations

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mirror_pipeline.config import load_config
from mirror_pipeline.errors import UsageError
from mirror_pipeline.local.demo.demo import DemoReport, DemoRow
from mirror_pipeline.local.demo.place import CONFIG, EAST, MIRROR, WEST, open_place
from mirror_pipeline.local.demo.screen import Screen
from mirror_pipeline.verdicts import Difference

SAME = DemoRow("orders", "east.orders", 3, 1_000, 5_000_000, 1.25, "identical", "plain batches")
OTHER = replace(SAME, topic="odd", verdict="different", differences=(Difference("altered", "odd", 2, 7, 9, "value differs at byte 3"),))


def report(*rows: DemoRow) -> DemoReport:
    return DemoReport(rows, 10, 3.0, "/d", "/d/mirror.yaml", False, {"east": "127.0.0.1:1"}, "http://127.0.0.1:3000")


def shown(result: DemoReport, width: int = 180) -> str:
    out = io.StringIO()
    Screen(Console(file=io.StringIO()), Console(file=out, width=width)).result(result)
    return out.getvalue()


def test_exit_code_is_1_unless_every_topic_is_identical() -> None:
    assert report(SAME, SAME).exit_code == 0
    assert report(SAME, OTHER).exit_code == 1
    assert report(SAME, replace(SAME, verdict="unreadable")).exit_code == 1
    assert report().exit_code == 1


def test_the_table_names_topic_partitions_records_megabytes_seconds_and_verdict() -> None:
    lines = shown(report(SAME, OTHER)).splitlines()
    assert lines[0].split()[:6] == ["topic", "partitions", "records", "MB", "seconds", "verdict"]
    assert lines[1].split()[:6] == ["orders", "3", "1,000", "5.00", "1.2", "identical"]
    assert "odd[2] altered: source offset 7, target offset 9 value differs at byte 3" in lines
    assert lines[-1].startswith("1 of 2 topics identical")


def test_json_is_plain_and_tells_the_verdict() -> None:
    body = json.loads(json.dumps(report(SAME, OTHER).to_json()))
    assert (body["ok"], body["records"]) == (False, 2_000)
    assert body["rows"][1]["differences"][0]["kind"] == "altered"


def test_a_quiet_screen_leaves_standard_output_empty() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=io.StringIO()), Console(file=out), table=False)
    screen.result(report(SAME))
    screen.advice(["do this"])
    assert out.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_step_leaves_one_line_with_its_facts(terminal: bool) -> None:
    steps = io.StringIO()
    screen = Screen(Console(file=steps, force_terminal=terminal, width=100, color_system=None), Console(file=io.StringIO()))
    with screen.step("filling") as step:
        step.show(1, 2, "half")
        step.done = "two topics"
    assert "ok filling: two topics" in steps.getvalue().splitlines()[-1]


def test_the_mirror_yaml_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "mirror.yaml"
    path.write_text(CONFIG.format(east=EAST, west=WEST, mirror=MIRROR, source="127.0.0.1:19092", target="127.0.0.1:29092"))
    config = load_config(path)
    assert config.clusters[EAST].bootstrap_servers == ("127.0.0.1:19092",)
    assert (config.mirror(MIRROR).source, config.mirror(MIRROR).target) == (EAST, WEST)
    assert config.buffer.uri == str(tmp_path / "mirror_buffer")


def test_a_folder_of_ours_is_removed_and_one_of_theirs_is_emptied(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for directory in (None, tmp_path / "new", theirs):
        with open_place(directory, keep=False) as place:
            (place.directory / "sub").mkdir()
            (place.directory / "sub" / "file").write_text("x")
            (place.directory / "file").write_text("x")
        assert place.directory.exists() == (directory == theirs)
    assert list(theirs.iterdir()) == []


def test_keep_leaves_everything(tmp_path: Path) -> None:
    with open_place(tmp_path / "kept", keep=True) as place:
        (place.directory / "file").write_text("x")
    assert (tmp_path / "kept" / "file").exists()


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(UsageError, match="is not empty"), open_place(tmp_path, keep=False):
        pass
    assert (tmp_path / "precious").read_text() == "x"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_clear_up_too(tmp_path: Path, number: int) -> None:
    with pytest.raises(KeyboardInterrupt), open_place(tmp_path / "new", keep=False) as place:
        (place.directory / "file").write_text("x")
        os.kill(os.getpid(), number)
        signal.pause()
    assert not (tmp_path / "new").exists()
