"""Two clusters behind TLS, SCRAM and an authorizer, a mirror with rights of its own between them, and a search for what must not leak."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType

from mirror_pipeline.local.embedded.start import LocalCluster, start_clusters, stop_clusters
from tests.support.certificates import keystore
from tests.support.scram import SCRAM, USER, login

PASSWORD = "canary-password-93f1c2"
PAYLOAD = "canary-payload-4b7e0d"
NAME, TOPIC, TARGET = "secured", "pay.events", "east.pay.events"
COMMAND = re.compile(r"kafka-acls\.sh (--bootstrap-server[^;\n\"]*?--(?:topic|group) (?:'[^']+'|[^\s;\"']+))")


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
        """Carry out a printed ``kafka-acls.sh`` command; (cluster, operation, topic or group) of each right.

        It does not say on which cluster: the topic's name does, and of groups that only the target's are read.
        """
        words = shlex.split(command)
        given = {word: words[at + 1] for at, word in enumerate(words) if word.startswith("--") and at + 1 < len(words)}
        assert given["--allow-principal"] == f"User:{USER}"
        operations = [words[at + 1] for at, word in enumerate(words) if word == "--operation"]
        resource = "topic" if "--topic" in given else "group"
        name, kind = given[f"--{resource}"], given.get("--resource-pattern-type", "literal").upper()
        alias = "west" if name.startswith("east.") or (resource == "group" and "Read" in operations) else "east"
        codes = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper() for operation in operations]
        self.allow(alias, resource, name, *codes, kind=kind)
        return {(alias, operation, name) for operation in operations}

    def allow(self, alias: str, resource: str, name: str, *operations: str, kind: str = "PREFIXED") -> None:
        """Let the mirror's principal do something with a topic or a group, or with all whose names begin so."""
        acls = [
            AclBinding(
                ResourceType[resource.upper()], name, ResourcePatternType[kind], f"User:{USER}", "*", AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]  # fmt: skip
        for future in self.operator(alias).create_acls(acls).values():
            future.result(30)

    def security(self) -> dict[str, str]:
        """The ``security`` block of a cluster in mirror.yaml."""
        return _security(self.folder)


@contextmanager
def secured(folder: Path) -> Iterator[Secured]:
    """Start everything; the mirror's principal has no rights yet."""
    settings = {
        **keystore(folder),
        **SCRAM,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    users = ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
    (folder / "tmp").mkdir()
    try:
        found = start_clusters(
            folder / "clusters", names=["east", "west"], brokers=1, heap="256m", config=settings,
            listeners={"SECURE": "SASL_SSL", "TLS": "SSL"}, storage_args=users,
        )  # fmt: skip
        yield Secured(folder, {cluster.name: cluster for cluster in found}, _configured(folder, found))
    finally:
        stop_clusters(folder / "clusters")


def _configured(folder: Path, clusters: Iterable[LocalCluster]) -> Path:
    password = folder / "secrets" / "password"
    password.parent.mkdir()
    password.write_text(PASSWORD)
    security = _security(folder)
    document = {
        "clusters": {cluster.name: {"bootstrap_servers": cluster.listener("SECURE"), "security": security} for cluster in clusters},
        "mirrors": [{"name": NAME, "source": "east", "target": "west", "topics": {"include": [r"pay\..*"]}}],
        "engine": {"spark_master": "local[2]", "inline_bytes": 0},
    }
    config = folder / "project" / "mirror.yaml"
    config.parent.mkdir()
    config.write_text(yaml.safe_dump(document))
    return config


def _security(folder: Path) -> dict[str, str]:
    return login(folder / "secrets" / "password", folder / "ca.pem")


def commands(text: str) -> list[str]:
    """The ``kafka-acls.sh`` lines in what was printed, each once."""
    return list(dict.fromkeys(COMMAND.findall(text)))


@dataclass
class Leaks:
    """Looks, for as long as it is open, at the processes below one and at the files of some folders."""

    root: int
    folders: tuple[Path, ...]
    found: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Leaks:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.3):
            for process in _family(self.root):
                for name in ("cmdline", "environ"):
                    try:
                        content = Path(f"/proc/{process}/{name}").read_bytes()
                    except OSError:
                        continue
                    self.seen.add(content.split(b"\0")[0].decode(errors="replace").rsplit("/", 1)[-1] if name == "cmdline" else "")
                    self._note(content, f"{name} of {process}")
            for folder in self.folders:
                self.found |= leaks(folder, (PASSWORD, PAYLOAD))

    def _note(self, content: bytes, where: str) -> None:
        self.found |= {f"{word} in {where}" for word in (PASSWORD, PAYLOAD) if word.encode() in content}


def _family(root: int) -> list[int]:
    try:
        top = psutil.Process(root)
        return [root, *(child.pid for child in top.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def leaks(folder: Path, words: Iterable[str], *, but: Iterable[Path] = ()) -> set[str]:
    """Files below a folder that hold one of the words, as it is or in UTF-16; those below ``but`` are left out."""
    found = set()
    for path in folder.rglob("*"):
        if any(allowed in (path, *path.parents) for allowed in but):
            continue
        try:
            content = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue
        found |= {f"{word} in {path}" for word in words if word.encode() in content or word.encode("utf-16-le") in content}
    return found


def retried(call: Any, seconds: float = 20.0) -> None:
    """ACLs reach a broker a moment after the controller has them: wait until ``call`` says yes."""
    deadline = time.monotonic() + seconds
    while not call():
        assert time.monotonic() < deadline
        time.sleep(0.3)
