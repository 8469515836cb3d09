"""Two clusters behind TLS, SCRAM and an authorizer, and a mirror between them that has no rights yet."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

from mirror_pipeline.local.cluster import LocalCluster, start_clusters, stop_clusters
from tests.integration.test_wire_security import authority, certificate

USER, PASSWORD = "mirror", "canary-password-93f1c2"
NAME, TOPIC, TARGET = "secured", "pay.events", "east.pay.events"
COMMAND = re.compile(r"kafka-acls\.sh (--bootstrap-server[^;\n\"]*?--topic (?:'[^']+'|[^\s;\"']+))")


@dataclass
class Secured:
    """The clusters, by alias; the operator comes in by an open listener, the mirror by TLS and SCRAM."""

    folder: Path
    clusters: dict[str, LocalCluster]
    config: Path
    operators: dict[str, AdminClient] = field(default_factory=dict)

    def mirror(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command of the mirror, with a temporary folder of its own."""
        return subprocess.run(self.line(*words), env=self.environment, capture_output=True, text=True, timeout=400, check=False)

    def line(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "mirror_pipeline.cli", "-c", str(self.config), *words]

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary), "SPARK_LOCAL_DIRS": str(self.temporary)}

    def operator(self, alias: str) -> AdminClient:
        if alias not in self.operators:  # kept: its calls end with it
            self.operators[alias] = AdminClient({"bootstrap.servers": self.clusters[alias].bootstrap_servers})
        return self.operators[alias]

    def grant(self, command: str) -> set[tuple[str, str, str]]:
        """Carry out a printed ``kafka-acls.sh`` command; (cluster, operation, topic) of each right.

        It does not say on which cluster: the topic's name does.
        """
        words = shlex.split(command)
        given = {word: words[at + 1] for at, word in enumerate(words) if word.startswith("--") and at + 1 < len(words)}
        assert given["--allow-principal"] == f"User:{USER}"
        operations = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
        topic, kind = given["--topic"], given.get("--resource-pattern-type", "literal").upper()
        alias = "west" if topic.startswith("east.") else "east"
        acls = [
            AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType[kind], f"User:{USER}", "*",
                AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()], AclPermissionType.ALLOW,
            )
            for operation in operations
        ]  # fmt: skip
        for future in self.operator(alias).create_acls(acls).values():
            future.result(30)
        return {(alias, operation, topic) for operation in operations}


@contextmanager
def secured(folder: Path) -> Iterator[Secured]:
    """Start everything; the mirror's principal has no rights yet."""
    authority(folder, "ca")
    certificate(folder, "broker", "ca", "subjectAltName=IP:127.0.0.1", ["-nodes"])
    (folder / "keystore.pem").write_text((folder / "broker-key.pem").read_text() + (folder / "broker.pem").read_text())
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "keystore.pem"),
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    users = ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
    (folder / "tmp").mkdir()
    try:
        found = start_clusters(
            folder / "clusters", names=["east", "west"], brokers=1, heap="256m", config=settings, listeners={"SECURE": "SASL_SSL"},
            storage_args=users,
        )  # fmt: skip
        yield Secured(folder, {cluster.name: cluster for cluster in found}, _configured(folder, found))
    finally:
        stop_clusters(folder / "clusters")


def _configured(folder: Path, clusters: Iterable[LocalCluster]) -> Path:
    password = folder / "secrets" / "password"
    password.parent.mkdir()
    password.write_text(PASSWORD)
    security = {
        "protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": USER, "password": f"${{file:{password}}}",
        "ca_file": str(folder / "ca.pem"),
    }  # fmt: skip
    document = {
        "clusters": {cluster.name: {"bootstrap_servers": cluster.listener("SECURE"), "security": security} for cluster in clusters},
        "mirrors": [{"name": NAME, "source": "east", "target": "west", "topics": {"include": [r"pay\..*"]}}],
        "engine": {"spark_master": "local[2]", "inline_bytes": 0},
    }
    config = folder / "project" / "mirror.yaml"
    config.parent.mkdir()
    config.write_text(yaml.safe_dump(document))
    return config


def commands(text: str) -> list[str]:
    """The ``kafka-acls.sh`` lines in what was printed, each once."""
    return list(dict.fromkeys(COMMAND.findall(text)))


def retried(call: Any, seconds: float = 20.0) -> None:
    """ACLs reach a broker a moment after the controller has them: wait until ``call`` says yes."""
    deadline = time.monotonic() + seconds
    while not call():
        assert time.monotonic() < deadline
        time.sleep(0.3)
