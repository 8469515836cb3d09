"""Shared code of the tests stands in helpers: no file imports from a test file or from a conftest."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "benchmarks", "scripts", "mirror_pipeline", "resources")


def imported(text: str) -> Iterator[str]:
    """Dotted names of what a file imports, names imported from a module included; imports inside functions, too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def into_tests(text: str) -> list[str]:
    """Those of the imports that lead into a test file or a conftest; a function or a folder of such a name is allowed."""
    return [name for name in imported(text) if any(file.is_file() for file in candidates(name))]


def candidates(name: str) -> Iterator[Path]:
    """Test files that a dotted name may lead into. Of a relative name only the last parts are known: any such file counts."""
    parts = name.split(".")
    for length, part in enumerate(parts, start=1):
        if part.startswith(("test_", "conftest")):
            if parts[0] == "tests":
                yield ROOT.joinpath(*parts[:length]).with_suffix(".py")
            elif not parts[0]:
                yield from (ROOT / "tests").rglob(f"{part}.py")


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_imports_from_a_test(folder: str) -> None:
    wrong = {str(path.relative_to(ROOT)): names for path in (ROOT / folder).rglob("*.py") if (names := into_tests(path.read_text()))}
    assert wrong == {}


@pytest.mark.parametrize(
    "line",
    [
        "from tests.unit.test_arrows import MODULES", "from tests.unit import test_arrows", "import tests.unit.test_arrows",
        "from tests.conftest import VERSIONS", "def f():\n    from tests.unit.test_arrows import MODULES",
        "from .test_arrows import MODULES",
    ],
)  # fmt: skip
def test_an_import_from_a_test_is_noticed(line: str) -> None:
    assert into_tests(line)


def test_an_import_of_a_helper_is_none() -> None:
    assert not into_tests("from tests.support.mirrors import produce\nfrom tests.faults import kills\nfrom .bound import BoundMirror")
