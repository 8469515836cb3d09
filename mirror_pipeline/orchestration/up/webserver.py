"""Dagster's page and this tool's own behind one gate, metrics and messages: a service of ``mirror up``.

``$MIRROR_UP_TOKEN_FILE`` names the file with the token; without it, no token is required.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from mirror_pipeline.errors import UsageError
from mirror_pipeline.exporter import METRICS_HOST, METRICS_PORT
from mirror_pipeline.exporter.serve import serving_metrics, watching
from mirror_pipeline.exporter.watch import Watches
from mirror_pipeline.page.app import MirrorPages
from mirror_pipeline.page.server import PORTS_TRIED, serve
from mirror_pipeline.page.token import TOKEN_FILE_ENV, rules_of

# As in Dagster's own command line.
STATEMENT_TIMEOUT_MS, POOL_RECYCLE_SECONDS, POOL_OVERFLOW = 15_000, 3600, 20
POLL_MS = 2000


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    from dagster import DagsterInstance
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster._utils.interrupts import setup_interrupt_handlers
    from dagster._utils.log import configure_loggers
    from dagster_webserver.app import create_app_from_workspace_process_context
    from dagster_webserver.version import __version__

    options = _arguments(arguments)
    configure_loggers(log_level="WARNING")
    setup_interrupt_handlers()
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(STATEMENT_TIMEOUT_MS, POOL_RECYCLE_SECONDS, POOL_OVERFLOW)
        target = WorkspaceFileTarget([str(options.workspace)])
        with WorkspaceProcessContext(instance, target, version=__version__, code_server_log_level="warning") as context:
            app = create_app_from_workspace_process_context(context, live_data_poll_rate=POLL_MS, lifespan=_lifespan)
            with watching(options.config) as watches, ExitStack() as stack:
                rules = rules_of(watches.config, options.host, options.port, _token(), options.allow_host)
                if options.metrics is not None:
                    options.metrics.write_text(str(_serve_metrics(watches, stack)))
                serve(MirrorPages(watches, dagster=True).app(), rules, beside=app)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mirror_pipeline.orchestration.up.webserver")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, help="serve them, and write their port into this file")
    parser.add_argument("--allow-host", action="append", default=[])
    return parser.parse_args(arguments)


def _serve_metrics(watches: Watches, stack: ExitStack) -> int:
    """At the first port that is free when it is bound: another `mirror up` may be starting, too."""
    for port in range(METRICS_PORT, METRICS_PORT + PORTS_TRIED):
        with suppress(UsageError):
            return stack.enter_context(serving_metrics(watches, METRICS_HOST, port))
    return stack.enter_context(serving_metrics(watches, METRICS_HOST, 0))


def _token() -> str | None:
    path = os.environ.get(TOKEN_FILE_ENV)
    return Path(path).read_text().strip() if path else None


@asynccontextmanager
async def _lifespan(_app: Any) -> AsyncIterator[None]:
    with suppress(asyncio.CancelledError):  # uvicorn ends it like this on a signal
        yield


if __name__ == "__main__":
    main()
