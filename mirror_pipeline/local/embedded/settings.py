"""The configuration files of an embedded broker: server.properties and that of its log."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mirror_pipeline.local.embedded.ports import HOST

DEFAULT_VERSION = "4.4.0"
BROKER = "PLAINTEXT"
CONTROLLER = "CONTROLLER"
# Suffix of a listener's name: the advertised port, if it differs from the one it listens on (a proxy's port).
ADVERTISED = " advertised"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The requested settings of an embedded cluster; saved in its folder.

    ``listeners`` are additional ones, name to security protocol; every broker gets a free port for each. ``config``
    overrides broker settings, ``storage_args`` go to ``kafka-storage format`` when the cluster is created, ``jvm_options``
    follow the default ones on the command line of each broker's JVM, where the last one wins.
    """

    version: str = DEFAULT_VERSION
    brokers: int = 1
    config: dict[str, str] = field(default_factory=dict)
    listeners: dict[str, str] = field(default_factory=dict)
    storage_args: tuple[str, ...] = ()
    heap: str = "512m"
    jvm_options: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for the cluster's file."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ClusterSpec:
        """The reverse of :meth:`to_json`."""
        return cls(**{**body, "storage_args": tuple(body["storage_args"]), "jvm_options": tuple(body.get("jvm_options", ()))})

    @property
    def listener_names(self) -> list[str]:
        """Every listener a broker opens, the controller's included."""
        return [BROKER, CONTROLLER, *self.listeners]


def kafka_uuid() -> str:
    """A random id of a cluster or a log directory as Kafka writes it: 16 bytes, URL-safe base64, no padding, no leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def server_properties(spec: ClusterSpec, node: int, ports: Sequence[Mapping[str, int]], data: Path) -> str:
    """The text of server.properties for broker ``node`` (1, 2, ...); ``ports`` holds every broker's ports by listener name."""
    own = ports[node - 1]
    protocols = {CONTROLLER: "PLAINTEXT", BROKER: "PLAINTEXT", **spec.listeners}
    addresses = {name: f"{name}://{HOST}:{own[name]}" for name in spec.listener_names}
    advertised = {name: f"{name}://{HOST}:{own.get(name + ADVERTISED, own[name])}" for name in spec.listener_names}
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{p[CONTROLLER]}" for i, p in enumerate(ports, 1)),
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(address for name, address in advertised.items() if name != CONTROLLER),
        "controller.listener.names": CONTROLLER,
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name": BROKER,
        "log.dirs": str(data),
        **_small_cluster(spec),
        **spec.config,
    }
    return properties(settings)


def _small_cluster(spec: ClusterSpec) -> dict[str, str]:
    """Kafka defaults for large clusters, reduced for a small one. The default replication factor is the number of brokers, at most
    three; with three, a write needs two replicas in sync. A topic with one replica needs that one."""
    replicas = str(min(3, spec.brokers))
    in_sync = "2" if spec.brokers > 2 else "1"
    settings = {
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        "metadata.max.idle.interval.ms": "5000",  # Kafka's 500 ms keep three idle brokers at a tenth of a core
        "log.cleaner.dedupe.buffer.size": str(16 << 20),  # 128 MiB of a 512 MiB heap otherwise
    }
    if not spec.version.startswith("3."):
        settings["share.coordinator.state.topic.replication.factor"] = replicas
        settings["share.coordinator.state.topic.min.isr"] = in_sync
        settings["share.coordinator.state.topic.num.partitions"] = "3"
    return settings


def properties(settings: Mapping[str, str]) -> str:
    """A Java properties file."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in settings.items())


def _escape(value: str) -> str:
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if text.startswith(" "):
        text = "\\" + text
    return "".join(c if c.isascii() else "".join(f"\\u{u:04x}" for u in _utf16(c)) for c in text)


def _utf16(character: str) -> list[int]:
    raw = character.encode("utf-16-be")
    return [int.from_bytes(raw[i : i + 2]) for i in range(0, len(raw), 2)]


def logging_properties(version: str) -> tuple[str, str]:
    """The JVM property that names the log's configuration file, and that file's text, for a Kafka version."""
    return ("log4j.configuration", _LOG4J1) if version.startswith("3.") else ("log4j2.configurationFile", _LOG4J2)


# ${sys:mirror.broker} and ${mirror.broker} are the broker's folder, a system property of its JVM.
# Without its own shutdown hook the log stays open until Kafka has ended.
_LOG4J2 = """status=ERROR
shutdownHook=disable
appender.file.type=RollingFile
appender.file.name=FILE
appender.file.fileName=${sys:mirror.broker}/server.log
appender.file.filePattern=${sys:mirror.broker}/server.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=[%d] %p %m (%c)%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=20MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=3
rootLogger.level=INFO
rootLogger.appenderRef.file.ref=FILE
logger.state.name=state.change.logger
logger.state.level=WARN
logger.request.name=kafka.request.logger
logger.request.level=WARN
"""
_LOG4J1 = """log4j.rootLogger=INFO, FILE
log4j.appender.FILE=org.apache.log4j.RollingFileAppender
log4j.appender.FILE.File=${mirror.broker}/server.log
log4j.appender.FILE.MaxFileSize=20MB
log4j.appender.FILE.MaxBackupIndex=3
log4j.appender.FILE.layout=org.apache.log4j.PatternLayout
log4j.appender.FILE.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.state.change.logger=WARN
log4j.logger.kafka.request.logger=WARN
"""
