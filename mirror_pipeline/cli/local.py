"""On this machine: ``clusters``, ``up``, ``demo``, ``version``."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mirror_pipeline import __version__
from mirror_pipeline.cli.errors import answers, print_json
from mirror_pipeline.cli.options import DEFAULT_CONFIG, NO_VALUE, AsJson, ConfigFile, PlainCommand, PlainGroup, Settings
from mirror_pipeline.cli.spark_output import children_unheard
from mirror_pipeline.cli.tables import cells, table
from mirror_pipeline.errors import UsageError

if TYPE_CHECKING:
    from mirror_pipeline.local.embedded.start import LocalCluster

KAFKA = "4.3.0"

clusters = typer.Typer(
    name="clusters",
    help="Embedded Kafka clusters for trying things out and for tests: KRaft brokers on free ports of this machine.",
    no_args_is_help=True,
    cls=PlainGroup,
)
Directory = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of the clusters: data, logs, addresses.")]
Count = Annotated[int, typer.Option("--count", min=1, metavar="N", help="How many clusters: c1, c2 and so on.")]
Brokers = Annotated[
    int | None,
    typer.Option("--brokers", min=1, metavar="N", help="Brokers of each cluster; by default what it was made with, 1 for a new one."),
]
Names = Annotated[list[str] | None, typer.Option("--name", metavar="NAME", help="Names instead; one for each time it is given.")]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Only this cluster.")]
Version = Annotated[
    str | None,
    typer.Option("--kafka", metavar="VERSION", help="4.3.0 or 3.9.1; by default what the cluster was made with, 4.3.0 for a new one."),
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="PORT", help="Port of the web page.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address that the web page listens on; loopback unless told.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="Another name the page answers to, such as a proxy's; once for each."),
]
NoToken = Annotated[
    bool, typer.Option("--no-token", metavar=NO_VALUE, help="Let in whoever reaches the page: only behind a proxy that asks who it is.")
]
Keep = Annotated[bool, typer.Option("--keep", metavar=NO_VALUE, help="Leave the clusters running and the files where they are.")]
Page = Annotated[bool, typer.Option("--ui", metavar=NO_VALUE, help="Start Dagster's web page at the end; without --keep until Ctrl-C.")]
Workplace = Annotated[Path | None, typer.Option("--dir", metavar="DIR", help="Work here instead of in a temporary folder.")]
Kafka = Annotated[str, typer.Option("--kafka", metavar="VERSION", help="Version of the embedded clusters: 4.3.0 or 3.9.1.")]


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

    Clusters that the folder has already are started with their data. They run until they are stopped. Kafka itself is
    fetched once and checked by checksum. Topics get as many replicas as a cluster has brokers, three at most, unless whoever creates
    them says otherwise.
    """
    from mirror_pipeline.execution.jars import terminal_progress
    from mirror_pipeline.local.embedded.start import start_clusters

    with terminal_progress() as progress:
        _show(start_clusters(directory, count, brokers=brokers, version=kafka, names=name or None, progress=progress), as_json)


@clusters.command(cls=PlainCommand)
def stop(directory: Directory, name: Name = None, as_json: AsJson = False) -> None:
    """Stop clusters cleanly; their data stays."""
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
        answers().print("no clusters here; 'mirror clusters start' makes some")
        return
    grid = table(["cluster", "bootstrap address", "state", "Kafka"], last=["process"])
    for row in rows:
        state = Text(row["state"], "green" if row["state"] == "running" else "yellow")
        pids = ", ".join(str(pid) for pid in row["pids"] if pid is not None)
        grid.add_row(*cells(row["name"], row["bootstrap_servers"], state, row["version"], pids))
    answers().print(grid)


def up(
    config: ConfigFile = DEFAULT_CONFIG,
    port: Port = 3000,
    host: Host = "127.0.0.1",
    allow_host: AllowHost = None,
    no_token: NoToken = False,
) -> None:
    """Start Dagster's web server and daemon with every mirror wired: lag sensors start the lanes. Ctrl-C ends it.

    The address it prints carries a token, a new one at each start unless `$MIRROR_UP_TOKEN` has one; without it the page shows nothing.
    """
    if not config.is_file():
        raise UsageError(f"{config}: no such file", hint="'mirror init' writes one to start from; -c FILE names another")
    from mirror_pipeline.orchestration.up.supervisor import run_up

    raise typer.Exit(run_up(config, host=host, port=port, allow_hosts=allow_host or (), with_token=not no_token))


def demo(
    context: typer.Context,
    keep: Keep = False,
    directory: Workplace = None,
    kafka: Kafka = KAFKA,
    ui: Page = False,
    as_json: AsJson = False,
) -> None:
    """Two embedded clusters of three brokers each, topics of every odd shape, a mirror between them, and a comparison record by record.

    Needs no configuration file. Exit code 1 when a topic is not identical on both sides.
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
