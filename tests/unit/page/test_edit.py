"""A form changes mirror.yaml: only what was asked, with the version before kept."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_pipeline.config import load_config
from mirror_pipeline.errors import ConfigError, UsageError
from mirror_pipeline.page.edit import ConfigText, MirrorForm

FILE = """# our clusters
clusters:
  east: {bootstrap_servers: "e:9092"}   # Frankfurt
  west:
    bootstrap_servers: 'w:9092'

mirrors:
  - name: first   # the oldest
    source: east
    target: west
    start: 2026-03-01T00:00:00Z
    topics:
      include: ["orders", 'pay\\..*']  # two
    engine:
      bandwidth: 20MB   # until the new link
"""
NEW = MirrorForm("second", "west", "east", (r"a\..*", "b: #"), ("x",), "identity", "latest", "record_gap", (".*",))


@pytest.fixture
def text(tmp_path: Path) -> ConfigText:
    path = tmp_path / "mirror.yaml"
    path.write_text(FILE)
    return ConfigText.read(path)


def test_a_new_mirror_comes_at_the_end_and_nothing_else_changes(text: ConfigText) -> None:
    changed = text.with_mirror(NEW, new=True)
    assert changed.text.startswith(FILE)
    assert changed.form("second") == NEW
    assert changed.load().mirror("second").topics.include == NEW.include


@pytest.mark.parametrize("indent", ["mirrors:\n- name: first\n  source: east", "mirrors:\n    - name: first\n      source: east"])
def test_the_file_keeps_its_indentation(text: ConfigText, indent: str) -> None:
    depth = indent.split("\n")[2].index("source")
    rest = f"\n{' ' * depth}target: west\n{' ' * depth}topics:\n{' ' * (depth + 2)}include: [a]\n"
    whole = FILE.split("mirrors:")[0] + indent + rest
    changed = replace(text, text=whole).with_mirror(NEW, new=True)
    assert changed.text.startswith(whole)


def test_what_a_form_leaves_alone_stays_to_the_letter(text: ConfigText) -> None:
    form = text.form("first")
    assert form == MirrorForm("first", "east", "west", ("orders", r"pay\..*"), start="2026-03-01T00:00:00Z")
    assert text.with_mirror(form, new=False).text == FILE
    changed = text.with_mirror(replace(form, include=("orders",), start=""), new=False)
    kept = [line for line in FILE.splitlines() if "include" not in line and "start" not in line]
    assert [line for line in changed.text.splitlines() if "include" not in line] == kept
    assert "# two" in changed.text and changed.load().mirror("first").engine.bandwidth == 20_000_000


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"include": ("(",)}, "mirrors"),
        ({"target": "west", "source": "west"}, "source"),
        ({"start": "soon"}, "start"),
        ({"include": ()}, "include"),
    ],
)
def test_a_form_is_judged_as_the_file_is(text: ConfigText, change: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        text.with_mirror(replace(NEW, **change), new=True)  # type: ignore[arg-type]
    assert text.path.read_text() == FILE


def test_a_name_that_is_there_or_is_not_there_is_said(text: ConfigText) -> None:
    with pytest.raises(UsageError, match="already a mirror first"):
        text.with_mirror(replace(NEW, name="first"), new=True)
    with pytest.raises(UsageError, match="no mirror second"):
        text.with_mirror(NEW, new=False)


def test_a_mapping_that_the_form_cannot_show_is_left_to_the_file(text: ConfigText) -> None:
    odd = replace(text, text=FILE.replace("start: 2026-03-01T00:00:00Z", "naming: {orders: o}"))
    with pytest.raises(UsageError, match="naming of mirror first is a mapping"):
        odd.form("first")


def test_saving_keeps_the_version_before_the_mode_and_a_link(text: ConfigText, tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    text.path.rename(real)
    text.path.symlink_to(real)
    real.chmod(0o640)
    version = text.with_mirror(NEW, new=True).save(text)
    assert version.read_text() == FILE
    assert text.path.is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o640
    assert [mirror.name for mirror in load_config(text.path).mirrors] == ["first", "second"]


def test_a_file_that_somebody_changed_meanwhile_is_not_overwritten(text: ConfigText) -> None:
    changed = text.with_mirror(NEW, new=True)
    text.path.write_text(FILE + "# a note\n")
    with pytest.raises(UsageError, match="changed by somebody else"):
        changed.save(text)
    assert text.path.read_text() == FILE + "# a note\n"
