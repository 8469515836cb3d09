"""``mirror exporter`` and ``mirror page``: both watch the mirrors of a file."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Annotated

import typer

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers, note
from mirror_pipeline.cli.jobs import signals_stop
from mirror_pipeline.cli.local import AllowHost, Host, NoToken, Port
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, ConfigFile, Mirrors
from mirror_pipeline.errors import UsageError
from mirror_pipeline.exporter import METRICS_HOST, METRICS_PORT
from mirror_pipeline.text import parse_duration

Listen = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to answer; port 0 takes a free one.")]
Every = Annotated[str, typer.Option("--every", metavar="TIME", help="How often the clusters are looked at.")]
Partitions = Annotated[bool, typer.Option("--partitions", metavar=NO_VALUE, help="Lag also by partition.")]


def exporter(
    config: ConfigFile = DEFAULT_CONFIG_PATH, mirror: Mirrors = None, listen: Listen = f"{METRICS_HOST}:{METRICS_PORT}",
    every: Every = "10s", partitions: Partitions = False,
) -> None:  # fmt: skip
    """Serve metrics for Prometheus at /metrics: lag, what a failover would lose now, halts, gaps, buffer, groups.

    Reads ledger, lane files and both clusters every few seconds; a scrape never waits for a cluster, and gets the last figures and
    their age while one is down. Follows changes of the file. docs/metrics.md has every name. Ctrl-C ends it.
    """
    names = load.load(config).pick(mirror)
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--listen {listen}: this is not HOST:PORT", hint="for example 127.0.0.1:9308, or 0.0.0.0:9308 for other hosts")
    from mirror_pipeline.exporter.serve import serving_metrics, watching

    over = threading.Event()
    with (
        signals_stop(over, lambda _: None),
        watching(config, mirror, every=parse_duration(every)) as watches,
        serving_metrics(watches, host.strip("[]"), int(port), partitions=partitions) as found,
    ):
        answers().print(f"metrics of {', '.join(names)} at http://{host}:{found}/metrics")
        over.wait()
    _leave()


def page(
    config: ConfigFile = DEFAULT_CONFIG_PATH, port: Port = 3000, host: Host = "127.0.0.1", allow_host: AllowHost = None,
    no_token: NoToken = False,
) -> None:  # fmt: skip
    """Serve the page of the mirrors, without Dagster: how each is, what a failover would lose now, and what may be done. Ctrl-C ends it.

    `mirror up` serves the same page beside Dagster's. The printed address contains an access token, which the page requires.
    It is new at each start unless `$MIRROR_UP_TOKEN` sets one; `page.users` in mirror.yaml lets others in, to look or to change.
    """
    from mirror_pipeline.exporter.serve import watching
    from mirror_pipeline.page.app import MirrorPages
    from mirror_pipeline.page.gate import PAGE_PREFIX
    from mirror_pipeline.page.server import choose_port, serve
    from mirror_pipeline.page.token import address, make_token, rules_of, warning

    chosen, token = choose_port(host, port), None if no_token else make_token()
    if risk := warning(host, not no_token):
        note(risk)
    with watching(config, tell=False) as watches:
        rules = rules_of(watches.config, host, chosen, token, allow_host or ())
        said = f"mirrors: {address(host, chosen)}{PAGE_PREFIX}{f'?token={token}' if token else ''}"
        pages = MirrorPages(watches, dagster=False).app()
        serve(pages, rules, ready=lambda: answers().print(said, markup=False, soft_wrap=True))
    _leave()


def _leave() -> None:
    """End the process without ending the interpreter: beside a look that is inside librdkafka or Delta that can hang (seen once in CI)."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
