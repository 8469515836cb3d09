"""The times of a start, and what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import job_cost, start


def test_the_first_time_of_each_step_counts(tmp_path: Path) -> None:
    path = tmp_path / "stamps"
    assert start.steps(path, 100.0) == {}
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (["session", 103.0], ["first task", 104.5], ["first task", 109.0])))
    assert start.steps(path, 100.0) == {"session": 3.0, "first task": 4.5}


def test_medians_of_a_kind_of_start() -> None:
    runs = [{"first record": first, "first task": task, "cpu": 9.0} for first, task in ((2.0, 7.0), (3.0, 5.0), (9.0, 6.0))]
    assert start.show("archive", runs) == "archive first record 3.00, first task 6.00 s; 9.0 CPU-seconds"


class Rdd:
    """Takes the place of Spark's."""

    def __init__(self) -> None:
        self.prepared = False

    def mapPartitions(self, function: object) -> Rdd:
        self.function = function
        return self

    @property
    def _jrdd(self) -> None:
        self.prepared = True

    def collect(self) -> list[tuple[float, float]]:
        assert self.prepared
        return [job_cost.clocked(None)]


def test_steps_of_a_job_make_up_all_of_it() -> None:
    notes: list[dict[str, float]] = []
    job_cost.TimedRdd(Rdd(), notes).mapPartitions(len).collect()
    (note,) = notes
    assert set(note) == {"prepare", "hand over", "back", "job"}
    assert all(seconds >= 0 for seconds in note.values())
    assert note["prepare"] + note["hand over"] + note["back"] <= note["job"]
