"""MirrorMaker 2 in dedicated mode: its settings at default and tuned, and starting it.

Dedicated mode sets byte array converters for key, value and headers itself, so records pass Connect unparsed in both
variants. Client settings carry the prefix of the cluster they talk to: ``target.producer.*``, ``source.consumer.*``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.sides import TITLES, Flow, Launched
from mirror_pipeline.children import default_signals
from mirror_pipeline.execution.jars import ensure_jars
from mirror_pipeline.execution.java import find_java
from mirror_pipeline.local.embedded.settings import logging_properties, properties

JARS = "mm2-4.3.0"

NEEDED: dict[str, tuple[str, str]] = {
    "{a}->{b}.enabled": ("true", "one flow, from source to target"),
    "{a}->{b}.topics": ("{topics}", "the workload's topics and no others"),
    "{b}->{a}.enabled": ("false", "nothing flows back"),
    "{b}->{a}.emit.heartbeats.enabled": ("false", "avoids a second herder that only writes heartbeats to the source"),
    "replication.factor": ("1", "each cluster has one broker; the default is 2"),
    "checkpoints.topic.replication.factor": ("1", "one broker"),
    "heartbeats.topic.replication.factor": ("1", "one broker"),
    "offset-syncs.topic.replication.factor": ("1", "one broker"),
    "offset.storage.replication.factor": ("1", "one broker"),
    "status.storage.replication.factor": ("1", "one broker"),
    "config.storage.replication.factor": ("1", "one broker"),
}
"""What MirrorMaker 2 cannot do without on one-broker clusters. Both variants have it; ``default`` has nothing else."""

TUNED: dict[str, tuple[str, str]] = {
    "tasks.max": ("{tasks}", "one task per core (default 1), each with a consumer and a producer for a share of the partitions"),
    "{b}.producer.batch.size": ("262144", "16 KiB by default: larger batches, fewer requests, less work for client and broker"),
    "{b}.producer.linger.ms": ("{linger}", "gives a batch time to fill; Kafka 4's default, 5, where latency is measured"),
    "{b}.producer.max.in.flight.requests.per.connection": (
        "5", "Connect sets 1: the connection is idle between a response and the next request",
    ),
    "{b}.producer.enable.idempotence": (
        "true", "Connect sets false; keeps the order with five requests in flight, as Mirror Pipeline does",
    ),
    "{b}.producer.buffer.memory": ("134217728", "32 MiB by default: space for 256 KiB batches of many partitions"),
    "{b}.producer.max.request.size": ("4194304", "1 MiB by default: several batches in one request"),
    "{b}.producer.compression.type": ("{codec}", "the source's codec (default none), so both targets hold the same amount of data"),
    "{a}.consumer.max.poll.records": ("10000", "500 by default: fewer poll loops of Connect per megabyte"),
    "{a}.consumer.fetch.max.bytes": ("67108864", "50 MiB by default: one response can hold data of all partitions"),
    "{a}.consumer.max.partition.fetch.bytes": ("8388608", "1 MiB by default: fewer fetches per partition"),
    "{a}.consumer.receive.buffer.bytes": ("-1", "64 KiB by default; -1 lets the kernel size the window, which a long link needs"),
    "{b}.producer.send.buffer.bytes": ("-1", "128 KiB by default: sized by the kernel"),
}

# What bin/connect-mirror-maker.sh starts Java with.
HEAP = ("-Xms256M", "-Xmx2G")
JVM = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip


def settings(variant: str, flow: Flow) -> dict[str, str]:
    """The property file of a variant (``default`` or ``tuned``) for a flow."""
    a, b = aliases(flow.tag)
    codec = flow.workload.codec
    words = {
        "a": a, "b": b, "topics": flow.workload.pattern, "codec": codec,
        "linger": "5" if flow.workload.kind == "latency" else "20", "tasks": str(flow.mm2_tasks or os.cpu_count() or 1),
    }  # fmt: skip
    chosen = {**NEEDED, **(TUNED if variant == "tuned" else {})}
    addresses = {"clusters": f"{a},{b}", f"{a}.bootstrap.servers": flow.source, f"{b}.bootstrap.servers": flow.target}
    return {**addresses, **_trust(a, flow), **{key.format(**words): value.format(**words) for key, (value, _) in chosen.items()}}


def _trust(alias: str, flow: Flow) -> dict[str, str]:
    if flow.source_ca is None:
        return {}
    return {
        f"{alias}.security.protocol": "SSL",
        f"{alias}.ssl.truststore.type": "PEM",
        f"{alias}.ssl.truststore.location": str(flow.source_ca),
    }


def aliases(tag: str) -> tuple[str, str]:
    """Names of source and target cluster: new ones for each round, so that no state of an earlier round is used."""
    return f"{tag}s", f"{tag}t"


def reasons() -> dict[str, dict[str, Mapping[str, str]]]:
    """Every property of both variants with value and reason, for the results."""
    plain = {"a": "source", "b": "target", "topics": "<workload's topics>", "codec": "<source's codec>", "tasks": "<cores>"}
    plain["linger"] = "20, or 5 for latency"

    def listed(chosen: Mapping[str, tuple[str, str]]) -> dict[str, Mapping[str, str]]:
        return {key.format(**plain): {"value": value.format(**plain), "why": why} for key, (value, why) in chosen.items()}

    return {"default": listed(NEEDED), "tuned": listed({**NEEDED, **TUNED})}


def start(settings: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """A process of MirrorMaker 2, in a session of its own; property file and logs are in ``folder``."""
    jars = ensure_jars(JARS)
    (folder / "mm2.properties").write_text(properties(settings))
    key, text = logging_properties("4.3.0")
    (folder / "logging.properties").write_text(text)
    log = [f"-Dmirror.broker={folder}", f"-D{key}=file:{folder / 'logging.properties'}"]
    command = [str(find_java()), *HEAP, *JVM, *log, "-cp", f"{jars}/*", "org.apache.kafka.connect.mirror.MirrorMaker"]
    with (folder / "stdout.log").open("wb") as out:
        return subprocess.Popen(
            [*command, str(folder / "mm2.properties")], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=default_signals,
        )  # fmt: skip


class MirrorMaker:
    """One variant of MirrorMaker 2 as a side of the comparison."""

    rival = True

    def __init__(self, variant: str) -> None:
        self.name = variant
        self.title = TITLES[variant]

    def launch(self, flow: Flow, folder: Path) -> Launched:
        """Start it for a flow; logs and settings are in ``folder``."""
        process = start(settings(self.name, flow), folder)
        alias = aliases(flow.tag)[0]
        return Launched(process, {name: f"{alias}.{name}" for name in flow.workload.names}, folder / "server.log")
