"""The tree of errors in errors.py, and the page on troubleshooting, name every error and every halt code there is."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mirror_pipeline
from mirror_pipeline import errors

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def kinds() -> dict[str, str]:
    """Every error of the package, with the name of its parent."""
    for module in pkgutil.walk_packages(mirror_pipeline.__path__, "mirror_pipeline."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def below(kind: type[errors.MirrorError]) -> Iterator[tuple[str, str]]:
        for child in kind.__subclasses__():
            # Dagster's failures are no errors of ours, tests have some of their own.
            if child.__module__.startswith("mirror_pipeline."):
                yield child.__name__, kind.__name__
                yield from below(child)

    return dict(below(errors.MirrorError))


def drawn() -> dict[str, str]:
    """The tree as the module's docstring draws it."""
    found, path = {}, {0: "MirrorError"}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│├└─ ]+)([A-Z]\w+)", line)
        if match:
            depth = len(match[1]) // 4
            path[depth] = match[2]
            found[match[2]] = path[depth - 1]
    return found


def test_the_drawn_tree_is_the_tree(kinds: dict[str, str]) -> None:
    assert drawn() == kinds


def test_every_error_of_the_package_is_in_troubleshooting(kinds: dict[str, str]) -> None:
    assert [name for name in kinds if f"| `{name}` |" not in PAGE] == []
