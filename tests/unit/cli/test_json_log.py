"""Standard error as JSON: each line one object, whoever writes it."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mirror_pipeline.cli.json_log import JsonLines, event_of


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("mirror_pipeline.x", logging.WARNING, "x.py", 1, message, arguments, None)


@pytest.mark.parametrize(("message", "arguments", "event", "fields"), [
    ("topic_halted topic=%s code=%s: %s; it is tried again", ("t", "trimmed", "gone"), "topic_halted", {"topic": "t", "code": "trimmed"}),
    ("config_not_loaded error=%s", ("line 3: no such key",), "config_not_loaded", {"error": "line 3: no such key"}),
    ("broker_silent node=%d: %s", (3, "no answer"), "broker_silent", {"node": 3}),
    ("notify_failed title=%r", ("a b",), "notify_failed", {"title": "a b"}),
    ("maintenance: %s", ("disk",), "log", {}),
    ("nothing to say", (), "log", {}),
])  # fmt: skip
def test_keys_of_a_message_become_fields(message: str, arguments: tuple[object, ...], event: str, fields: dict[str, object]) -> None:
    made = event_of(record(message, *arguments))
    said = {"level": "warning", "event": event, "logger": "mirror_pipeline.x", "message": message % arguments}
    assert made == {**said, **fields}


def test_a_field_cannot_replace_what_every_event_has() -> None:
    assert event_of(record("a_b level=%s", "x"))["level"] == "warning"


def test_lines_become_objects_however_they_are_cut() -> None:
    out = io.BytesIO()
    stream = JsonLines(out, "utf-8", "backslashreplace", line_buffering=True)
    for piece in ("one", " two\nthree\n", "\n", "vier ü", "\n", "last"):
        stream.write(piece)
    stream.flush()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["one two", "three", "vier ü"]
    assert list(lines[0]) == ["ts", "level", "event", "message"]


def mirror(folder: Path, *words: str, **environment: str) -> list[str]:
    command = [sys.executable, "-m", "mirror_pipeline.cli", *words]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    return done.stderr.splitlines()


@pytest.mark.parametrize("asked", [("option", {}), ("variable", {"MIRROR_LOG_FORMAT": "json"})], ids=lambda asked: asked[0])
def test_errors_of_a_command_are_objects_too(tmp_path: Path, asked: tuple[str, dict[str, str]]) -> None:
    how, environment = asked
    words = ("--log-format", "json", "status") if how == "option" else ("status",)
    lines = [json.loads(line) for line in mirror(tmp_path, *words, **environment)]
    assert lines[0]["message"].startswith("error: mirror.yaml")
    assert {line["event"] for line in lines} == {"output"}


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    assert mirror(tmp_path, "--log-format", "xml", "status")[0] == "error: --log-format xml: this is not text or json"
