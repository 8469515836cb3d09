"""docs/cli.md, made from the commands themselves: ``python -m mirror_pipeline.cli.reference`` writes it, a test compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from mirror_pipeline.cli.main import app

PAGE = Path("docs/cli.md")

_HEAD = """\
# Command line

<!-- Made by `python -m mirror_pipeline.cli.reference` from the commands; change their help texts, not this page. -->

`mirror COMMAND --help` shows the same on a terminal. `-c FILE` names the configuration file ([configuration](configuration.md)); without it
`mirror.yaml` of the current folder is read. `--debug`, anywhere on the line, adds the traceback to an error.

Answers go to standard output; progress, notes and errors to standard error. Progress is drawn as bars when standard error is a terminal,
otherwise it is a line every ten seconds.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | the work was done, or tried, and a problem was found |
| 2 | the command line or the configuration is wrong |
| 3 | a cluster is unreachable; `health`: or a lane is stale |
| 70 | a fault of mirror itself: please report it, with what `--debug` shows |
| 130, 141 | interrupted by a second Ctrl-C; the reader of a pipe went away |

When several mirrors end differently, the greatest code counts.

With `--json` standard output holds exactly one JSON document. An error is told on standard error all the same, and the document is
`{"error": {"message", "hint", "exit_code"}}`. `run --json` always names every mirror: one that failed has `"state": "failed"` and
its own `error`.
What to do about each error: [troubleshooting](troubleshooting.md).

"""

_SHAPES = {
    "init": '{"path"}',
    "check": '{"ok", "findings": [{"mirror", "what", "ok", "detail", "hint"}]}',
    "plan": '{"mirrors": [{"mirror", "topics": [{"topic", "target_topic", "partitions", "records", "bytes", "actions", "warnings", '
    '"blockers", "state", "code", "reason", "hint"}], "excluded": [{"topic", "why"}], "notes"}]}',
    "run": '{"mirrors": [{"mirror", "state", "records", "bytes", "seconds", '
    '"topics": [{"topic", "state", "reason", "hint", "positions": {PARTITION: OFFSET}, ...}], ...}]}',
    "backfill": '{"mirror", "topic", "target_topic", "from_time", "to_time", "ranges": {PARTITION: [START, END]}, "run": {as in run}}',
    "lag": '{"mirrors": [{"mirror", "lag_records", "lag_seconds", "halted", "notes", "topics": [{"topic", "target_topic", "lag_records", '
    '"lag_seconds", "state", "code", "reason", "hint", "partitions": [{"partition", "position", "end", "staged", "lag"}], ...}]}]}',
    "status": '{"mirrors": [{"mirror", "source", "target", "lanes": [{"lane", "state", "heartbeat", "topics", "records", "bytes", '
    '"buffer": {"spans_bytes", "ledger_bytes", "log_bytes", "live_files", "unverified_bytes", "oldest_staged", "full_since", ...}, ...}], '
    '"buffer_bytes", "buffer_total_bytes", "buffer_max_bytes", "staged_records", "staged_bytes", "gaps", "verified_at", "different"}]}',
    "health": '{"state", "exit_code", "mirrors": [{"mirror", "state", "exit_code", "problems", "lanes", "topics"}]}',
    "gaps": '{"gaps": [{"mirror", "topic", "partition", "start", "end", "cause", "decided_by", "at"}]}',
    "verify": '{"ok", "records", "leaves", "differences": [{"topic", "partition", "source_offset", "target_offset", "kind", '
    '"detail"}], "repaired": [as differences], "more", '
    '"bytes", "expired", "seconds", "sampled", "topics": [{"mirror", "topic", "target_topic", "verdict", '
    '"partitions": [{"partition", "start", "end", "root", "target_root", ...}], ...}]}',
    "repair": '{"ok", "mirror", "topic", "target_topic", "side_topic", "dry_run", "records": [{"partition", "source_offset", '
    '"kind", "state", "target_offset"}], "more", "others", "why", "written", "already_there", "would_be_written", "lost"}',
    "evict": '{"mirrors": [{"mirror", "lanes": [{"lane", "micro_batches", "freed_bytes", "verified_records", "kept_bytes", "differences", '
    '"note", ...}]}]}',
    "demo": '{"ok", "rows": [{"topic", "target_topic", "partitions", "records", "bytes", "verdict", ...}], "records", "bytes", ...}',
    "resolve": '{"halts": [{"mirror", "lane", "topic", "partition", "code", "reason", "hint", "start", "end", "accept"}]}'
    ' or, with --accept, {"mirror", "topic", "accepted", "meaning", "spans", "decided_by"}',
    "version": '{"version", "python", "platform"}',
    "clusters start": '{"clusters": [{"name", "bootstrap_servers", "version", "state", "brokers", "pids", "directory"}]}',
    "clusters stop": "as clusters start",
    "clusters status": "as clusters start",
}


def render() -> str:
    """The page as text."""
    root = typer.main.get_command(app)
    commands = list(_commands(root))
    index = "\n".join(f"- [`mirror {path}`](#mirror-{path.replace(' ', '-')}): {_first_line(command)}" for path, command in commands)
    parts = [_HEAD + index, _options("Options before the command", root)]
    parts += [_section(path, command) for path, command in commands]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def _first_line(command: Any) -> str:
    return " ".join(str(command.help).split("\n\n")[0].split())


def _section(path: str, command: Any) -> str:
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in str(command.help).split("\n\n"))
    parts = [f"## mirror {path}", text, _options("", command)]
    if path in _SHAPES:
        parts.append(f"JSON: `{_SHAPES[path]}`")
    return "\n\n".join(parts)


def _options(title: str, command: Any) -> str:
    rows = [_row(option) for option in command.params if not getattr(option, "hidden", False)]
    head = [f"## {title}", ""] if title else []
    return "\n".join([*head, "| option | default | meaning |", "|---|---|---|", *rows])


def _row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    value = f" `{option.metavar}`" if option.metavar else ""
    text = str(option.help).replace("|", "\\|")
    return f"| {names}{value} | {_default(option)} | {text} |"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    return "" if option.default in (None, False, "") else f"`{option.default}`"


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(render(), encoding="utf-8")
