"""Embedded Kafka clusters for the demo and the tests: KRaft brokers as JVM processes on free ports.

A cluster has the folder ``<directory>/<name>``: settings, logs, process ids and data. Any process that knows the directory
can list, stop and restart it; data and, if still free, ports are kept.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirror_pipeline.errors import UsageError
from mirror_pipeline.execution.jars import Progress, ensure_jars, kinds
from mirror_pipeline.files import file_lock
from mirror_pipeline.local.embedded.broker import StartFailed
from mirror_pipeline.local.embedded.cluster import LocalCluster, write_state
from mirror_pipeline.local.embedded.settings import ClusterSpec

__all__ = ["LocalCluster", "StartFailed", "cluster_status", "start_clusters", "stop_clusters"]

HEAP_OF_MANY = "256m"  # of each broker when a cluster has several: they share its load


def start_clusters(
    directory: str | Path,
    count: int = 2,
    *,
    version: str | None = None,
    names: Sequence[str] | None = None,
    brokers: int | None = None,
    config: Mapping[str, str] | None = None,
    listeners: Mapping[str, str] | None = None,
    storage_args: Sequence[str] = (),
    heap: str | None = None,
    jvm_options: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[LocalCluster]:
    """Start ``count`` clusters in ``directory`` (in parallel) and return them ready; running ones are left unchanged.

    Args:
        directory: created if missing; a cluster that exists there is started with its data.
        count: how many, named c1, c2, ... unless ``names`` says otherwise.
        version: ``4.4.0``, ``4.3.0`` or ``3.9.1``; default: the version that the cluster was created with, 4.4.0 for a new one.
        names: one name per cluster.
        brokers: brokers per cluster, each a controller too; 1 for a new one.
        config: broker settings that override the defaults here.
        listeners: additional listeners, name to security protocol, each on a free port (``LocalCluster.listener(name)``).
        storage_args: arguments for ``kafka-storage format`` (for instance ``--add-scram``) when a cluster is created.
        heap: heap of each broker; for a new one 512m, or 256m when the cluster has several.
        jvm_options: options for each broker's JVM that override the defaults here, such as ``-XX:TieredStopAtLevel=4`` for the
            server compiler: slower to start, faster under load.
        progress: called for jars that have to be fetched.

    Raises:
        UsageError: a name, version or directory that cannot be used.
        StartFailed: with the cause from the broker's log.
    """
    chosen = list(names) if names is not None else [f"c{i}" for i in range(1, count + 1)]
    base = _usable(Path(directory).absolute(), chosen)
    requested: dict[str, Any] = {"version": version, "brokers": brokers, "heap": heap}
    requested |= {"config": dict(config or {}), "listeners": dict(listeners or {}), "storage_args": tuple(storage_args)}
    requested["jvm_options"] = tuple(jvm_options)
    with _locked(base):
        clusters = [_prepared(base / name, requested) for name in chosen]
        for kind in sorted({cluster.version for cluster in clusters}):
            ensure_jars(f"kafka-{kind}", progress)
        _start_together(clusters)
    return clusters


def _usable(base: Path, names: Sequence[str]) -> Path:
    if not names or len(set(names)) != len(names) or any(not n or n.startswith(".") or set(n) & set("/, ") for n in names):
        raise UsageError(f"cannot name clusters {list(names)}", hint="use at least one name, all different, without /, comma or space")
    if "," in str(base):
        raise UsageError(f"embedded clusters cannot use {base}", hint="Kafka splits log.dirs at commas: use another folder")
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{base} cannot be created: {error.strerror}", hint="name a writable folder") from error
    return base


def _prepared(folder: Path, requested: Mapping[str, Any]) -> LocalCluster:
    """The cluster in ``folder``, created if missing, with the explicitly requested settings."""
    explicit = {key: value for key, value in requested.items() if value}
    version = explicit.get("version")
    if version is not None and f"kafka-{version}" not in kinds():
        known = [name.removeprefix("kafka-") for name in kinds() if name.startswith("kafka-")]
        raise UsageError(f"there is no embedded Kafka {version}", hint=f"one of {', '.join(known)}")
    if not (folder / "cluster.json").exists():
        if explicit.get("brokers", 1) > 1:
            explicit.setdefault("heap", HEAP_OF_MANY)
        return LocalCluster.create(folder, ClusterSpec(**explicit))
    cluster = LocalCluster(folder)
    for key in ("version", "brokers"):
        before = getattr(cluster.spec, key)
        if explicit.get(key, before) != before:
            raise UsageError(f"{folder} holds a cluster with {key} {before}, not {explicit[key]}", hint="use another folder or name")
    if cluster.state == "stopped":
        write_state(folder, replace(cluster.spec, **explicit), cluster.cluster_id, cluster.ports)
        cluster = LocalCluster(folder)
    return cluster


def _start_together(clusters: Sequence[LocalCluster]) -> None:
    cancelled = threading.Event()
    stopped = [cluster for cluster in clusters if not cluster.alive]
    with ThreadPoolExecutor(max_workers=max(1, len(stopped))) as pool:
        starts = [pool.submit(cluster.start, cancelled) for cluster in stopped]
        try:
            for start in starts:
                start.result()
        except BaseException:
            cancelled.set()
            for cluster, start in zip(stopped, starts, strict=True):
                if start.exception() is None:
                    cluster.stop()
            raise


def stop_clusters(directory: str | Path, name: str | None = None) -> list[LocalCluster]:
    """Stop every cluster in ``directory``, or the one called ``name``; return them. Data is kept.

    Raises:
        UsageError: the directory has no cluster, or none of that name.
    """
    with _locked(Path(directory).absolute()):
        clusters = cluster_status(directory)
        chosen = [cluster for cluster in clusters if name in (None, cluster.name)]
        if not chosen:
            known = ", ".join(cluster.name for cluster in clusters) or "none"
            raise UsageError(f"no cluster {name or ''} in {directory}".replace("  ", " "), hint=f"clusters there: {known}")
        with ThreadPoolExecutor(max_workers=len(chosen)) as pool:
            list(pool.map(LocalCluster.stop, chosen))
    return chosen


def cluster_status(directory: str | Path) -> list[LocalCluster]:
    """Every cluster in ``directory``, running or not, by name; an empty list if there is none."""
    return [LocalCluster(path.parent) for path in sorted(Path(directory).absolute().glob("*/cluster.json"))]


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[None]:
    """Serialize starts and stops in one directory."""
    if not base.is_dir():
        raise UsageError(f"{base} is no folder", hint="name the folder that `mirror clusters start` was given")
    try:
        with file_lock(base / ".lock"):
            yield
    except PermissionError as error:
        raise UsageError(f"{base} cannot be written", hint="name a writable folder") from error
