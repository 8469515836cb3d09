"""`lag --watch` keeps topic names whole on a narrow terminal, however long it has watched."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mirror_pipeline.cli.show import tables_status
from mirror_pipeline.lags import MirrorLag, PartitionLag, TopicLag

WATCHED = 60


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", ["orders", "payments.eu-central", "payments.central-europe.retail"])
def test_names_stay_whole(name: str, width: int) -> None:
    lag = MirrorLag("m", (TopicLag(name, f"east.{name}", (PartitionLag(0, 0, 1_234_567, 0, 1_234_567),), 75.0),), 75.0)
    history = tables_status.LagHistory(40)
    for _ in range(WATCHED):
        history.add(lag)
    paper = io.StringIO()
    Console(file=paper, width=width, color_system=None).print(tables_status.lag(lag, history, width=width))
    lines = paper.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    (row,) = [line for line in lines if line.startswith(name)]
    assert row.split()[0] == name and "1,234,567" in row and "1 m 15 s" in row
    assert ("history" in lines[1]) == ("█" in row)


def test_a_short_name_leaves_room_for_the_history() -> None:
    lag = MirrorLag("m", (TopicLag("orders", "east.orders", (PartitionLag(0, 0, 9, 0, 9),), 1.0),), 1.0)
    history = tables_status.LagHistory(20)
    for _ in range(WATCHED):
        history.add(lag)
    paper = io.StringIO()
    Console(file=paper, width=80, color_system=None).print(tables_status.lag(lag, history, width=80))
    assert paper.getvalue().count("█") >= 10
