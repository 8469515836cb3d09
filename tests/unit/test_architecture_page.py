"""docs/architecture.md names the rooms, the levels and the files that the source tree has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mirror_pipeline"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def levels() -> dict[str, int]:
    """Each room's level, from the top, as tests/unit/test_arrows.py checks it."""
    tree = ast.parse((Path(__file__).parent / "test_arrows.py").read_text(encoding="utf-8"))
    values = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "LEVELS" and node.value]
    return {room: number for number, rooms in enumerate(ast.literal_eval(values[0]), 1) for room in rooms}


def test_rooms_and_levels_are_those_of_the_tree() -> None:
    assert {room: int(level) for level, room in re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.M)} == levels()


def test_folders_inside_the_rooms_are_those_of_the_tree() -> None:
    folders = [path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")]
    inner = {f"{folder}/" for folder in folders if len(folder.parts) > 1}
    assert set(re.findall(r"^\| `([\w/]+/)` \|", PAGE, re.M)) == inner


def test_files_on_the_page_exist() -> None:
    files = re.findall(r"[`\"]([\w/]+\.py)[`\"]", PAGE)
    assert len(files) > 8
    assert [name for name in files if not (PACKAGE / name).is_file() and not (ROOT / name).is_file()] == []
