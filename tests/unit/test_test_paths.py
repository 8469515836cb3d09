"""Every folder of integration tests has a path, and what ``--path`` and a mark change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.paths import PATHS, path_of

FOLDERS = Path(__file__).parents[1] / "integration"


def test_every_folder_has_a_path() -> None:
    assert {file.parent.name for file in FOLDERS.rglob("test_*.py")} == set(PATHS)


@pytest.mark.parametrize(
    ("folder", "mark", "wish", "path"),
    [
        ("copy", None, "both", "spark"), ("copy", "driver", "both", "driver"), ("copy", "driver", "spark", "spark"),
        ("cli", None, "both", "driver"),
    ],
)
def test_an_option_overrules_a_mark_and_a_mark_its_folder(folder: str, mark: str | None, wish: str, path: str) -> None:
    found = SimpleNamespace(args=(mark,)) if mark else None
    item = SimpleNamespace(path=FOLDERS / folder / "test_a.py", get_closest_marker=lambda _: found)
    assert path_of(item, wish) == path  # type: ignore[arg-type]
