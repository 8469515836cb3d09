"""Halts: made in one place, plain values, each code documented, each acceptable one with its meaning."""

from __future__ import annotations

import ast
import inspect
import logging
import pickle
import re
from pathlib import Path

import pytest

from mirror_pipeline import halts
from mirror_pipeline.errors import BrokerError, CorruptBatch, TopicHalted
from mirror_pipeline.halts import ACCEPTABLE, MEANING, Halt, accept_command, accept_hint, log_internal
from mirror_pipeline.model import TopicPartition

ROOT = Path(__file__).parents[2]
SOURCE, TARGET = TopicPartition("t", 1), TopicPartition("east.t", 1)
DAMAGE, REFUSAL = CorruptBatch("checksum"), BrokerError(29, "TOPIC_AUTHORIZATION_FAILED", "refused", hint="allow it")

MADE: dict[str, Halt] = {
    "trimmed": halts.trimmed(SOURCE, 3, 9),
    "unexplained_hole": halts.unexplained_hole(SOURCE, 3, 9),
    "oversize": halts.oversize(SOURCE, 3, 1_000_000, DAMAGE),
    "corrupt": halts.corrupt(SOURCE, 3, 9, DAMAGE),
    "unreadable": halts.unreadable(SOURCE, 3, DAMAGE, cluster="source"),
    "truncated": halts.truncated(SOURCE, 3, 9),
    "rewritten": halts.rewritten(SOURCE, 3, 9),
    "recreated": halts.recreated("t", "old-id/2", "new-id"),
    "source_gone": halts.source_gone("t", "west"),
    "gone": halts.gone("t", "west", "delete"),
    "ended": halts.ended("t", "west"),
    "copy_deleted": halts.copy_deleted("t", "east.t", "east"),
    "source_missing": halts.source_missing("t"),
    "other_cluster": halts.other_cluster("t", "west", "old-id", "new-id"),
    "renamed": halts.renamed("t", "east.t", "e.t"),
    "paused": halts.paused("t", "ann@host", 0),
    "promoted": halts.promoted("t", "east.t", "west", "ann@host", 0),
    "written_by_reverse": halts.written_by_reverse("t", "back"),
    "standing_by": halts.standing_by("t", "back", "m"),
    "unnamable": halts.unnamable("t", "x" * 250, "has 250 characters, Kafka allows 249"),
    "colliding": halts.colliding("t", "east.t", "west", "u"),
    "looping": halts.looping("t", ["there", "back", "there"], begun=True),
    "other_target_cluster": halts.other_target_cluster("t", "east", "old-id", "new-id"),
    "target_gone": halts.target_gone("t", "east.t", REFUSAL),
    "target_recreated": halts.target_recreated("t", "east.t", "old-id", "new-id"),
    "target_truncated": halts.target_truncated(TARGET, 3, 9),
    "target_filled": halts.target_filled("t", "east.t", 9),
    "target_claimed": halts.target_claimed("t", "two mirrors write east.t"),
    "foreign_writer": halts.foreign_writer(TARGET, 3),
    "displaced": halts.displaced(TARGET, 9, 3),
    "sequence_gap": halts.sequence_gap(TARGET, 9, 7, 5),
    "fill_too_large": halts.fill_too_large(TARGET, 9, 3),
    "target_ahead": halts.target_ahead("t", TARGET, 9, 3),
    "markers_refused": halts.markers_refused(TARGET),
    "tail_deleted": halts.tail_deleted(TARGET, 9),
    "copy_differs": halts.copy_differs("m", SOURCE, 3, "altered", 2),
    "blocked": halts.blocked("t", ("too few partitions", "compacted")),
    "settings_refused": halts.settings_refused("t", "east.t", "east"),
    "target_smaller": halts.target_smaller("t", "east.t", 1, 2),
    "without_leaders": halts.without_leaders("t", "east.t", "east", 30.0),
    "not_begun": halts.not_begun("t", REFUSAL),
    "buffer_gap": halts.buffer_gap("t", TARGET, ValueError("spans are missing")),
    "buffer_damaged": halts.buffer_damaged(TARGET, DAMAGE),
    "refused": halts.refused(SOURCE, REFUSAL),
    "refused_topic": halts.refused_topic("t", REFUSAL),
    "internal": halts.internal(SOURCE, IndexError("list index\nout of range")),
}
"""One halt of each constructor."""
CODES = {halt.code for halt in MADE.values()} - {"", REFUSAL.name.lower()}
"""Every code but those that are error names of Kafka."""


def test_each_constructor_is_tried_here() -> None:
    made = {name for name, member in vars(halts).items() if inspect.isfunction(member) and member.__annotations__.get("return") == "Halt"}
    assert {name for name in made if not name.startswith("_")} == set(MADE)


def test_no_halt_is_made_elsewhere() -> None:
    elsewhere = []
    for path in (ROOT / "mirror_pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and path != Path(halts.__file__):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called in ("TopicHalted", "Halt"):
                    elsewhere.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not elsewhere, f"add a constructor to halts.py: {elsewhere}"


def test_the_codes_are_those_of_troubleshooting() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", page.partition("\n## A topic halted\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert {code for row in rows for code in re.findall(r"`([a-z_]+)`", row)} == CODES


def test_troubleshooting_says_which_are_tried_again() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`|an error name of Kafka[^|]*) \| (yes|search|no) \|", page, re.MULTILINE)
    said = {code: again == "yes" for cell, again in rows for code in re.findall(r"`([a-z_]+)`", cell)}
    assert said == {halt.code: halt.again for halt in MADE.values() if halt.code} | {"message_too_large": True, "invalid_timestamp": True}


@pytest.mark.parametrize("name", ["INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED"])
def test_a_topic_that_another_run_writes_is_not_tried_again(name: str) -> None:
    assert not halts.refused_topic("t", BrokerError(47, name, "fenced")).again


def test_what_can_be_accepted_is_a_code_and_has_a_meaning() -> None:
    assert set(ACCEPTABLE) <= CODES
    assert set(ACCEPTABLE) == set(MEANING)


@pytest.mark.parametrize("name", MADE)
def test_a_halt_crosses_processes_and_travels_in_its_exception(name: str) -> None:
    halt = MADE[name]
    error = halt.error()
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert isinstance(again, TopicHalted)
    assert again.halt == pickle.loads(pickle.dumps(halt)) == halt  # noqa: S301
    assert (again.message, again.hint, str(again)) == (halt.message, halt.hint, str(error))
    assert halts.not_begun("another", error) is halt
    assert halt.message and "\n" not in halt.message + halt.hint
    assert halt.hint


def test_a_halt_of_the_target_is_shown_with_its_source_partition() -> None:
    halt = halts.displaced(TARGET, 9, 3)
    shown = halt.at(SOURCE)
    assert ((halt.topic, halt.partition), (shown.topic, shown.partition)) == (("east.t", 1), ("t", 1))
    assert (shown.code, shown.message, shown.hint) == (halt.code, halt.message, halt.hint)


def test_the_traceback_of_an_internal_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        log_internal(MADE["trimmed"])
        assert not caplog.records
        log_internal(MADE["internal"])
    assert "topic_halted topic=t code=internal: t[1]: unexpected IndexError: list index out of range" in caplog.text


def test_the_command_survives_odd_names() -> None:
    assert accept_command("m", "a b", "trimmed") == "mirror resolve --mirror m --topic 'a b' --accept trimmed"
    assert accept_command("m", "t", "foreign_writer") == ""
    assert accept_hint("m", "t", "foreign_writer") == ""
