"""The pages say what the program does: generated ones are up to date, links lead somewhere, errors and options are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from mirror_pipeline import errors
from mirror_pipeline.cli.main import app
from scripts import cli_page

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
OURS = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")),
    *(DOCS / f"{name}.md" for name in ("index", "quickstart", "deploy", "concepts", "cli", "troubleshooting", "architecture")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command with its options, read from typer without the help of cli_page.py."""
    waiting = [("", typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop()
        for name, inner in getattr(command, "commands", {}).items():
            waiting.append((f"{path} {name}".strip(), inner))
        if not hasattr(command, "commands"):
            yield path, [name for option in command.params for name in (*option.opts, *option.secondary_opts)]


def anchors(text: str) -> set[str]:
    """The anchors GitHub gives a page's headings."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_command_page_is_up_to_date() -> None:
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == cli_page.render(), "run: make docs"


@pytest.mark.parametrize(("path", "options"), list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_option_is_on_the_command_page(path: str, options: list[str]) -> None:
    section = (DOCS / "cli.md").read_text(encoding="utf-8").split(f"\n## mirror {path}\n")[1].split("\n## ")[0]
    assert [name for name in options if f"`{name}`" not in section] == []


def test_every_command_that_takes_json_shows_its_shape() -> None:
    answering = {path for path, options in commands() if "--json" in options}
    assert answering == set(cli_page.SHAPES)


@pytest.mark.parametrize("kind", [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.MirrorError)])
def test_every_error_is_in_troubleshooting(kind: type[errors.MirrorError]) -> None:
    assert f"| `{kind.__name__}` |" in (DOCS / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.is_file() or (anchor and anchor not in anchors(there.read_text(encoding="utf-8"))):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.name)
def test_commands_in_the_pages_exist(page: Path) -> None:
    known = dict(commands())
    wrong = []
    for line in re.findall(r"(?:^|`)mirror ([a-z][^`\n#]*)", page.read_text(encoding="utf-8"), re.M):
        words = line.split()
        path = " ".join(words[:2]) if words[0] in ("clusters", "offsets", "quarantine") else words[0]
        options = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        if not set(options) <= {*known.get(path, ()), "--help", "--debug"} or path not in known:
            wrong.append(line)
    assert wrong == []


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
