"""`make site`: docs/ builds strictly, every link and anchor leads somewhere, and no page loads anything from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(site)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}
    home = (site / "index.html").read_text(encoding="utf-8")
    assert pages <= {Path(link).stem for link in re.findall(r'href="([\w-]+\.html)"', home)} | {"index"}


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//"""
        r"""|<link[^>]*(?:stylesheet|preconnect|icon)[^>]*href=["']?(?:https?:)?//"""
    )
    pages = list(site.glob("*.html"))
    assert pages
    assert [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []
    assert [page.name for page in pages if 'class="mermaid"' in page.read_text(encoding="utf-8")] == []  # its renderer would be fetched


@pytest.mark.parametrize("text", ["[x](nowhere.md)", "[x](index.md#nowhere)", "[x](../README.md)"])
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, text: str) -> None:
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(config.partition("\nnav:")[0], encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode == 1
    assert "contains a link" in built.stderr


def test_every_alert_names_a_runbook_and_every_runbook_its_alerts(site: Path) -> None:
    rules = yaml.safe_load((ROOT / "observability" / "alerts.yml").read_text())["groups"][0]["rules"]
    named = {rule["alert"]: rule["annotations"]["runbook"].removeprefix("docs/runbooks.md#") for rule in rules}
    page = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    sections = {re.sub(r"\W+", "-", title.lower()): text for title, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", page, re.M)}
    anchors = re.findall(r'<h2 id="([^"]+)"', (site / "runbooks.html").read_text(encoding="utf-8"))
    assert set(anchors) == sections.keys()
    assert {alert: anchor for anchor, text in sections.items() for alert in re.findall(r"`(Mirror[A-Z]\w+)`", text)} == named
