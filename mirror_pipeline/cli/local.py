"""Commands for this machine: ``clusters``, ``up``, ``demo``, ``version``."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mirror_pipeline import __version__
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG_PATH, NO_VALUE, AsJson, ConfigFile, PlainCommand, PlainGroup, Settings
from mirror_pipeline.cli.show.tables import cells, table
from mirror_pipeline.cli.spark_output import children_unheard
from mirror_pipeline.errors import UsageError

if TYPE_CHECKING:
    from mirror_pipeline.local.embedded.start import LocalCluster

KAFKA = "4.4.0"

clusters = typer.Typer(
    name="clusters",
    help="Embedded Kafka clusters for trials and tests: KRaft brokers on free local ports.",
    no_args_is_help=True,
    cls=PlainGroup,
)
Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder for the data, logs and addresses of the clusters.")]
Count = Annotated[int, typer.Option("--count", min=1, metavar="N", help="Number of clusters, named c1, c2 and so on.")]
Brokers = Annotated[
    int | None,
    typer.Option("--brokers", min=1, metavar="N", help="Brokers per cluster; default: as created, 1 for a new cluster."),
]
Names = Annotated[list[str] | None, typer.Option("--name", metavar="NAME", help="Name of a cluster, instead of --count; may be repeated.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only this cluster.")]
Version = Annotated[
    str | None,
    typer.Option("--kafka", metavar="VERSION", help="4.4.0, 4.3.0 or 3.9.1; default: as created, 4.4.0 for a new cluster."),
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port of the web page.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address the web page listens on; loopback by default.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Additional host name to accept, such as a proxy's; may be given several times."),
]
NoToken = Annotated[
    bool, typer.Option("--no-token", metavar=NO_VALUE, help="Disable the access token. Use only behind a proxy that authenticates users.")
]
NoMetrics = Annotated[
    bool, typer.Option("--no-metrics", metavar=NO_VALUE, help="Serve no metrics for Prometheus (port 9308, or the next free one).")
]
Keep = Annotated[bool, typer.Option("--keep", metavar=NO_VALUE, help="Keep the clusters running and keep the files.")]
Page = Annotated[bool, typer.Option("--ui", metavar=NO_VALUE, help="Start Dagster's web page at the end; without --keep, until Ctrl-C.")]
Workplace = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Working folder, instead of a temporary one.")]
Kafka = Annotated[str, typer.Option("--kafka", metavar="VERSION", help="Version of the embedded clusters: 4.4.0, 4.3.0 or 3.9.1.")]


@clusters.command(cls=PlainCommand)
def start(
    directory: Directory,
    count: Count = 2,
    brokers: Brokers = None,
    name: Names = None,
    kafka: Version = None,
    as_json: AsJson = False,
) -> None:
    """Start clusters and print their bootstrap addresses.

    Clusters that already exist in the folder start with their data. They run until they are stopped. Kafka itself is
    downloaded once and verified by checksum. A topic gets one replica per broker, at most three, unless its creator
    specifies another number.
    """
    from mirror_pipeline.execution.jars import terminal_progress
    from mirror_pipeline.local.embedded.start import start_clusters

    with terminal_progress() as progress:
        _show(start_clusters(directory, count, brokers=brokers, version=kafka, names=name or None, progress=progress), as_json)


@clusters.command(cls=PlainCommand)
def stop(directory: Directory, name: Name = None, as_json: AsJson = False) -> None:
    """Stop clusters cleanly and keep their data."""
    from mirror_pipeline.local.embedded.start import stop_clusters

    _show(stop_clusters(directory, name), as_json)


@clusters.command(cls=PlainCommand)
def status(directory: Directory, as_json: AsJson = False) -> None:
    """List the clusters of a folder, running or not."""
    from mirror_pipeline.local.embedded.start import cluster_status

    _show(cluster_status(directory), as_json)


def _show(found: Sequence[LocalCluster], as_json: bool) -> None:
    rows = [cluster.to_json() for cluster in found]
    if as_json:
        print_json({"clusters": rows})
        return
    if not rows:
        answers().print("no clusters here; 'mirror clusters start' creates them")
        return
    grid = table(["cluster", "bootstrap address", "state", "Kafka"], last=["process"])
    for row in rows:
        state = Text(row["state"], "green" if row["state"] == "running" else "yellow")
        pids = ", ".join(str(pid) for pid in row["pids"] if pid is not None)
        grid.add_row(*cells(row["name"], row["bootstrap_servers"], state, row["version"], pids))
    answers().print(grid)


def up(
    config: ConfigFile = DEFAULT_CONFIG_PATH,
    port: Port = 3000,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
    no_token: NoToken = False,
    no_metrics: NoMetrics = False,
) -> None:
    """Start Dagster's web server and daemon for every mirror, and `mirror exporter`; lag sensors start the lanes. Ctrl-C stops it.

    The printed address contains an access token, which the page requires. It is new at each start unless `$MIRROR_UP_TOKEN` sets one.
    """
    if not config.is_file():
        raise UsageError(f"{config}: no such file", hint="'mirror init' writes a starter file; -c FILE names another file")
    from mirror_pipeline.orchestration.up.supervisor import run_up

    raise typer.Exit(run_up(config, host=host, port=port, allow_hosts=allow_host or (), with_token=not no_token, metrics=not no_metrics))


def demo(
    context: typer.Context,
    keep: Keep = False,
    directory: Workplace = None,
    kafka: Kafka = KAFKA,
    ui: Page = False,
    as_json: AsJson = False,
) -> None:
    """Mirror test topics between two embedded clusters and compare them record by record.

    Starts two clusters of three brokers each and fills topics that cover every record-format edge case. Needs no
    configuration file. Exit code 1 when a topic is not identical on both sides.
    """
    from mirror_pipeline.local.demo.demo import run_demo
    from mirror_pipeline.local.demo.screen import Screen

    settings: Settings = context.obj
    with children_unheard(wanted=not settings.debug):
        report = run_demo(directory, keep=keep, kafka_version=kafka, ui=ui, screen=Screen(table=not as_json))
    if as_json:
        print_json(report.to_json())
    raise typer.Exit(report.exit_code)


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    facts = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    if as_json:
        print_json(facts)
    else:
        answers().print(f"mirror {facts['version']}, Python {facts['python']}, {facts['platform']}", markup=False, soft_wrap=True)
