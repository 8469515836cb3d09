"""A full disk is said plainly: by `check` beforehand, and by a run while it waits."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mirror_pipeline import load_config
from mirror_pipeline.buffer.place import space
from mirror_pipeline.cli.show.progress import Bars, Lines
from mirror_pipeline.cli.show.run_progress import RunContent
from mirror_pipeline.flow import Flow
from mirror_pipeline.operations import check
from mirror_pipeline.reports import Finding
from tests.support.cli_fakes import progress

FULL = "its disk is full: 6.0 MB left, and the next micro-batch may need 256.0 MB"


@pytest.fixture
def buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Finding]:
    """What `check` finds of a buffer of 50 GB on a disk with so many bytes left."""
    path = tmp_path / "mirror.yaml"
    path.write_text(
        "clusters: {east: {bootstrap_servers: 'a:1'}, west: {bootstrap_servers: 'b:1'}}\n"
        "mirrors: [{name: m, source: east, target: west, topics: {include: ['.*']}}]\nbuffer: {max_bytes: 50GB}\n"
    )

    def find(free: float) -> Finding:
        monkeypatch.setattr(space, "free_bytes", lambda store: int(free))
        return check._buffer(Flow(load_config(path), "m"))

    return find


def test_a_disk_that_cannot_take_one_micro_batch_is_wrong(buffer: Callable[[float], Finding]) -> None:
    found = buffer(6e6)
    assert not found.ok and "its disk is full: 6.0 MB left" in found.detail and "lower buffer.max_bytes" in found.hint


def test_a_disk_smaller_than_the_cap_is_a_warning(buffer: Callable[[float], Finding]) -> None:
    found = buffer(20e9)
    assert found.ok and "warning: its disk has 20.0 GB free, buffer.max_bytes is 50.0 GB" in found.detail


def test_a_disk_with_room_is_fine(buffer: Callable[[float], Finding]) -> None:
    found = buffer(60e9)
    assert found.ok and "warning" not in found.detail


def written(view: Callable[..., Any], pictures: list[Any]) -> str:
    paper = io.StringIO()
    with view(Console(file=paper, width=140, force_terminal=view is Bars, color_system=None), "starting", RunContent()) as shown:
        for picture in pictures:
            shown.observe(picture)
    return paper.getvalue()


def test_a_run_says_that_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    said = written(Lines, [progress(buffer_full=FULL), progress(buffer_full=FULL), progress()]).splitlines()
    assert said[1:] == [f"m: the buffer is full, reading waits: {FULL}", "m: buffer has space again"]
    view = Bars(Console(file=io.StringIO(), width=140), "", RunContent())
    view.observe(progress(buffer_full=FULL))
    paper = Console(file=io.StringIO(), width=140)
    paper.print(view.render())
    assert f"the buffer is full, reading waits: {FULL}" in paper.file.getvalue()  # type: ignore[attr-defined]
