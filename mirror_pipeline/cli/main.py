"""The ``mirror`` command: registers all commands and turns every outcome into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from mirror_pipeline.cli import (
    adoption,
    backup,
    exporter,
    failover,
    json_log,
    local,
    offsets,
    pause,
    quarantine,
    resolve,
    run,
    setup,
    status,
    streams,
    support,
    take_over,
    verify,
)
from mirror_pipeline.cli.errors import report
from mirror_pipeline.cli.options import NO_VALUE, PlainCommand, PlainGroup, Settings
from mirror_pipeline.errors import ProblemFound, UsageError
from mirror_pipeline.host import refuse_few_files, refuse_few_threads

BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader, such as head, closed the pipe."""

FIRST, COPY, LOOK, HERE = "Before copying", "Copying", "Monitoring and verification", "On this machine"
OVER = "Changing clusters"


Before = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration file; may also follow the command.")]
Debug = Annotated[bool, typer.Option("--debug", metavar=NO_VALUE, help="Print the traceback of an error; valid anywhere on the line.")]


def _version(asked: bool) -> None:
    if asked:
        local.version()
        raise typer.Exit


LogFormat = Annotated[
    str,
    typer.Option("--log-format", metavar="FORMAT", envvar=json_log.LOG_FORMAT, help="text, or json: standard error as an object a line."),
]
Version = Annotated[bool, typer.Option("--version", metavar=NO_VALUE, is_eager=True, callback=_version, help="Print the version.")]


class MirrorApp(typer.Typer):
    """A typer app that always exits through :func:`main`, also when it is called as ``app()``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        streams.prepare()
        sys.exit(main(*args, **kwargs))


app = MirrorApp(
    name="mirror",
    help="Copy topics from one Kafka cluster to another, each record exactly once and in order.",
    epilog="Exit codes: 0 success, 1 a problem was found, 2 usage or configuration error, 3 cluster unreachable, 70 internal error.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    cls=PlainGroup,
)


@app.callback()
def root(
    context: typer.Context,
    config: Before = None,
    debug: Debug = False,
    log_format: LogFormat = "text",
    show_version: Version = False,
) -> None:
    if log_format == "json":
        json_log.use_json()
    elif log_format != "text":
        raise UsageError(f"--log-format {log_format}: this is not text or json", hint="leave it out for plain lines")
    refuse_few_files()
    refuse_few_threads()
    context.obj = Settings(debug=debug)
    if config is not None:
        given = {"config": config}
        context.default_map = dict.fromkeys(WITH_CONFIG, given) | {
            "offsets": dict.fromkeys(OFFSETS_WITH_CONFIG, given), "quarantine": dict.fromkeys(QUARANTINE_WITH_CONFIG, given),
        }  # fmt: skip


WITH_CONFIG = (
    "init", "check", "doctor", "plan", "run", "backfill", "lag", "status", "health", "gaps", "sql", "resolve", "verify", "repair",
    "evict", "up", "groups", "failover", "failback", "adopt", "exporter", "pause", "resume", "page", "remirror",
    "support-bundle", "backup", "restore",
)  # fmt: skip
OFFSETS_WITH_CONFIG = ("translate", "show")
QUARANTINE_WITH_CONFIG = ("list", "export", "send")

for _panel, _commands in (
    (FIRST, (setup.init, take_over.import_mm2, setup.check, setup.doctor, setup.plan)),
    (COPY, (run.run, run.backfill, pause.pause, pause.resume)),
    (LOOK, (status.lag, status.status, status.health, status.gaps, status.sql)),
    (LOOK, (verify.verify, verify.repair, resolve.resolve, resolve.remirror, status.evict, offsets.groups)),
    (LOOK, (exporter.exporter, exporter.page, support.support_bundle)),
    (OVER, (failover.failover, failover.failback, adoption.adopt, backup.backup, backup.restore)),
    (HERE, (local.up, local.demo, local.version)),
):
    for _command in _commands:
        app.command(cls=PlainCommand, rich_help_panel=_panel)(_command)
app.add_typer(offsets.commands, rich_help_panel=LOOK)
app.add_typer(quarantine.commands, rich_help_panel=LOOK)
app.add_typer(local.clusters, rich_help_panel=HERE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, print its output, and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    words = [word for word in given if word != "--debug"]
    try:
        code = typer.main.get_command(app).main(args=["--debug", *words] if debug else words, prog_name="mirror", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _unwritten(debug) or BROKEN_PIPE
    except SystemExit as left:  # rich and typer catch a broken pipe first and exit
        if isinstance(left.__context__, BrokenPipeError):
            return _unwritten(debug) or BROKEN_PIPE
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last handler: every error becomes an exit code here
        return _unwritten(debug) or report(error, as_json="--json" in words, debug=debug, command=_path(error))


def _unwritten(debug: bool) -> int:
    """The exit code when the answer cannot be written; 0 when it can."""
    why = streams.broken(sys.stdout)
    if why is None:
        return 0
    if isinstance(why, BrokenPipeError):
        return BROKEN_PIPE
    hint = "the command has ended, its answer is lost: free space, or lead the output elsewhere"
    return report(ProblemFound(f"standard output cannot be written: {why.strerror}", hint=hint), as_json=False, debug=debug)


def _path(error: BaseException) -> str:
    """The command that a usage error refers to, such as ``mirror run``."""
    context = getattr(error, "ctx", None) if isinstance(error, TyperException) else None
    return str(getattr(context, "command_path", "mirror"))
