"""Machine code that is kept for the next process, and what happens where it cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine_code_places import KERNEL, Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_next_process_needs_no_numba(place: Place) -> None:
    assert place.run() == ("42 True\n", "")
    assert place.run() == ("42 False\n", "")
    (path,) = place.kept()
    assert path.parent == place.folder / "__pycache__"


def test_another_source_is_compiled_again(place: Place) -> None:
    place.run()
    (place.folder / "kernel.py").write_text(KERNEL.replace("by\n", "by + 1\n"))
    assert place.run() == ("45 True\n", "")
    assert len(place.kept()) == 2


@pytest.mark.long
@pytest.mark.parametrize("damage", [lambda code: code[:40], lambda code: code[:-1] + bytes([code[-1] ^ 1]), lambda code: b""])
def test_damaged_code_is_never_run(place: Place, damage: object) -> None:
    place.run()
    (path,) = place.kept()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))  # type: ignore[operator]
    said, warned = place.run()
    assert said == "42 True\n"
    assert f"machine code kept in {path} is damaged" in warned
    assert path.read_bytes() == whole


def test_what_cannot_lie_beside_its_module_lies_in_the_cache_folder(place: Place) -> None:
    (place.folder / "__pycache__").touch()  # a file where a folder should be: nobody can write there, root included
    assert place.run() == ("42 True\n", "")
    assert [path.parent for path in place.kept()] == [place.cache / "machine-code"]
    assert place.run() == ("42 False\n", "")


def test_in_an_image_of_another_processor_it_lies_in_the_temporary_folder(place: Place) -> None:
    (place.folder / "__pycache__").touch()
    place.cache.touch()
    assert place.run() == ("42 True\n", "")
    assert [path.parent for path in place.kept()] == [place.temporary_cache / "machine-code"]
    assert place.run() == ("42 False\n", "")


def test_without_a_place_every_process_compiles_and_says_so(place: Place) -> None:
    (place.folder / "__pycache__").touch()
    place.cache.touch()
    place.temporary_cache.touch()
    for _ in range(2):
        said, warned = place.run()
        assert said == "42 True\n"
        assert "every process compiles it again" in warned


def test_code_that_does_not_stand_alone_is_refused(place: Place) -> None:
    said, problem = place.run("quotient")
    assert said == ""
    assert "ValueError: kernel.quotient would call" in problem
    assert place.kept() == []


_WITHOUT = """
import logging, sys
from mirror_pipeline.kafka.records import machine_code
from mirror_pipeline.kafka.records.batch import OpenRecord, open_batch, seal
from mirror_pipeline.kafka.records.merge import merge
logging.basicConfig(format="%(message)s")
machine_code._kept = lambda places, name: None
sys.modules["numba"] = None
records = [OpenRecord(n, n, b"") for n in range(640)]
data = memoryview(b"".join(seal(records[n : n + 16], codec=0) for n in range(0, 640, 16)))
merged = merge(data, records=640, max_bytes=1 << 20)
assert merge(data, records=640, max_bytes=1 << 20) == merged
print(len(merged), [record for batch in merged for record in open_batch(batch)] == records)
"""


def test_without_numba_batches_are_merged_slowly() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], timeout=100, capture_output=True, text=True, check=True)
    assert done.stdout == "1 True\n"
    assert done.stderr.count("no machine code, so merging small batches takes far more CPU") == 1
