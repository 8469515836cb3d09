"""``mirror exporter``."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from mirror_pipeline.cli import load
from mirror_pipeline.cli.errors import answers
from mirror_pipeline.cli.jobs import signals_stop
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
    from mirror_pipeline.exporter.serve import exporting

    over = threading.Event()
    exported = exporting(config, mirror, host.strip("[]"), int(port), every=parse_duration(every), partitions=partitions)
    with signals_stop(over, lambda _: None), exported as found:
        answers().print(f"metrics of {', '.join(names)} at http://{host}:{found}/metrics")
        over.wait()
