"""Codes of halts: each is documented, each that can be accepted says what that means."""

from __future__ import annotations

import re
from pathlib import Path

from mirror_pipeline.halts import ACCEPTABLE, MEANING, accept_command, accept_hint

ROOT = Path(__file__).parents[2]


def codes() -> set[str]:
    """Every code in the engine's sources."""
    texts = [path.read_text() for path in (ROOT / "mirror_pipeline").rglob("*.py")]
    return {code for text in texts for code in re.findall(r'(?:code=|_halt\()"([a-z_]+)"', text)}


def test_every_code_is_in_troubleshooting() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert len(codes()) > 10
    assert {code for code in codes() if f"`{code}`" not in page} == set()


def test_what_can_be_accepted_is_a_code_and_has_a_meaning() -> None:
    assert set(ACCEPTABLE) <= codes()
    assert set(ACCEPTABLE) == set(MEANING)


def test_the_command_survives_odd_names() -> None:
    assert accept_command("m", "a b", "trimmed") == "mirror resolve --mirror m --topic 'a b' --accept trimmed"
    assert accept_command("m", "t", "foreign_writer") == ""
    assert accept_hint("m", "t", "foreign_writer") == ""
