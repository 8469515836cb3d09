"""Dagster's web server with access control: ``python -m mirror_pipeline.orchestration.up.webserver``, a service of ``mirror up``.

``$MIRROR_UP_TOKEN_FILE`` names the file with the token; without it, no token is required.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn

from mirror_pipeline.orchestration.up.gate import Gate, GateRules
from mirror_pipeline.orchestration.up.page import TOKEN_FILE_ENV

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
            serve(app, GateRules(options.host, options.port, _token(), tuple(options.allow_host)))


def serve(app: Any, rules: GateRules) -> None:
    """Serve an ASGI app behind the gate. Addresses are not logged: the first request may contain the token."""
    uvicorn.run(
        Gate(app, rules), host=rules.host, port=rules.port, log_level="warning", access_log=False, proxy_headers=False, server_header=False
    )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mirror_pipeline.orchestration.up.webserver")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--allow-host", action="append", default=[])
    return parser.parse_args(arguments)


def _token() -> str | None:
    path = os.environ.get(TOKEN_FILE_ENV)
    return Path(path).read_text().strip() if path else None


@asynccontextmanager
async def _lifespan(_app: Any) -> AsyncIterator[None]:
    with suppress(asyncio.CancelledError):  # uvicorn ends it like this on a signal
        yield


if __name__ == "__main__":
    main()
