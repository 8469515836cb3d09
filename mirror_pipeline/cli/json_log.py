"""``--log-format json``: everything on standard error as one JSON object a line, for whoever collects logs."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from mirror_pipeline.cli.streams import Notices

LOG_FORMAT = "MIRROR_LOG_FORMAT"
"""Environment variable: ``json`` is ``--log-format json``, also for the processes that a command starts."""
# A placeholder of a log message, with the key that it is the value of.
_PLACE = re.compile(r"(?:(\w+)=)?%[-#0 +]*(?:\d+)?(?:\.\d+)?([sdrfgi])")
_EVENT = re.compile(r"([a-z][a-z0-9]*_[a-z0-9_]+)(?=[ :]|$)")


class JsonLines(Notices):
    """Standard error of which each line becomes an object: notes, progress and errors are events named ``output``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._begun = ""

    def write(self, text: str) -> int:
        """Take text; its whole lines are written. An empty line is none."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                self.put({"level": "info", "event": "output", "message": line.rstrip()})
        return len(text)

    def put(self, event: Mapping[str, Any], at: float | None = None) -> None:
        """Write one object, with its time first."""
        moment = datetime.fromtimestamp(time.time() if at is None else at, UTC).isoformat(timespec="milliseconds")
        super().write(json.dumps({"ts": moment, **event}, ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        """Write what has no end of line."""
        if not self.closed:
            begun, self._begun = self._begun, ""
            self.write(begun + "\n")
        super().close()


class JsonHandler(logging.Handler):
    """Writes log records to what standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        if isinstance(sys.stderr, JsonLines):
            sys.stderr.put(event_of(record), record.created)
        else:
            sys.stderr.write(record.getMessage() + "\n")


def event_of(record: logging.LogRecord) -> dict[str, Any]:
    """Level, event, message and the fields of a message of the form ``event key=%s key=%d: text``."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    template = str(record.msg)
    name = _EVENT.match(template)
    places = [match.group(1) for match in _PLACE.finditer(template)]
    found = {key: value for key, value in zip(places, arguments, strict=False) if key}
    body = {
        "level": record.levelname.lower(), "event": name.group(1) if name else "log", "logger": record.name, "message": record.getMessage(),
    }  # fmt: skip
    if record.exc_info:
        body["trace"] = logging.Formatter().formatException(record.exc_info)
    return {**{key: value if isinstance(value, int | float | str) else str(value) for key, value in found.items()}, **body}


def use_json() -> None:
    """Write standard error as JSON from now on, in this process and in those that it starts."""
    os.environ[LOG_FORMAT] = "json"
    error = sys.stderr
    if isinstance(error, Notices) and not isinstance(error, JsonLines):
        encoding = error.encoding
        sys.stderr = JsonLines(error.detach(), encoding, "backslashreplace", line_buffering=True)
    logging.getLogger("mirror_pipeline").setLevel(logging.INFO)
    root = logging.getLogger()
    if not any(isinstance(each, JsonHandler) for each in root.handlers):
        root.addHandler(JsonHandler(logging.INFO))
