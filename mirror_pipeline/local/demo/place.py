"""The folder of a demo: two embedded clusters, a mirror.yaml, and their removal however the demo ends."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from mirror_pipeline.errors import UsageError
from mirror_pipeline.execution.jars import Progress
from mirror_pipeline.host import temporary_folder
from mirror_pipeline.local.embedded.start import LocalCluster, cluster_status, start_clusters, stop_clusters

EAST, WEST = "east", "west"
MIRROR = "east-to-west"
BROKERS = 3  # of each cluster, as production has them
# The demo waits until the compacted topic is compacted; the default is 15 s.
BROKER_SETTINGS = {"log.cleaner.backoff.ms": "500"}

CONFIG = """\
# Written by `mirror demo`: a source with edge-case records, mirrored to a second cluster.
clusters:
  {east}: {{bootstrap_servers: "{source}"}}
  {west}: {{bootstrap_servers: "{target}"}}
mirrors:
  - name: {mirror}
    source: {east}
    target: {west}
    topics: {{include: [".*"]}}
    naming: prefix
    engine: {{inline_bytes: 0}}   # Spark runs every task; by default the mirror's own process runs small ones
buffer: {{uri: ./mirror_buffer, max_bytes: 5GB}}
"""


@dataclass
class DemoFolder:
    """A demo's folder. ``created``: the demo created the folder itself."""

    directory: Path
    keep: bool
    created: bool
    clusters: list[LocalCluster] = field(default_factory=list)

    @property
    def clusters_directory(self) -> Path:
        """The argument of ``mirror clusters stop --dir``."""
        return self.directory / "clusters"

    @property
    def config(self) -> Path:
        """The mirror.yaml, once written."""
        return self.directory / "mirror.yaml"

    def start(self, kafka_version: str, progress: Progress | None = None) -> None:
        """Start both clusters and write mirror.yaml.

        Raises:
            UsageError: an unknown Kafka version.
            StartFailed: a broker did not start.
        """
        self.clusters = start_clusters(
            self.clusters_directory,
            names=[EAST, WEST],
            version=kafka_version,
            brokers=BROKERS,
            config=BROKER_SETTINGS,
            progress=progress,
        )
        addresses = {"source": self.bootstrap(EAST), "target": self.bootstrap(WEST)}
        self.config.write_text(CONFIG.format(east=EAST, west=WEST, mirror=MIRROR, **addresses))

    def bootstrap(self, name: str) -> str:
        """Bootstrap address of one of the two clusters."""
        return next(c.bootstrap_servers for c in self.clusters if c.name == name)

    def clear(self) -> None:
        """Stop the clusters and remove the demo's files."""
        if cluster_status(self.clusters_directory):
            stop_clusters(self.clusters_directory)
        if self.created:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        for entry in self.directory.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


@contextmanager
def open_place(directory: Path | None, *, keep: bool) -> Iterator[DemoFolder]:
    """A folder to work in; unless ``keep``, clusters and files are removed afterwards, also on Ctrl-C, SIGTERM and errors.

    Args:
        directory: a folder that is empty or does not exist; None creates a temporary one.
        keep: leave everything as it is.

    Raises:
        UsageError: the folder is not empty, or cannot be created.
    """
    place = _make(directory, keep)
    with terminated_is_interrupted():
        try:
            yield place
        finally:
            if not keep:
                with uninterrupted():
                    place.clear()


def _make(directory: Path | None, keep: bool) -> DemoFolder:
    if directory is None:
        return DemoFolder(Path(tempfile.mkdtemp(prefix="mirror-demo-", dir=temporary_folder())), keep, created=True)
    existed = directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(
                f"{directory} is not empty", hint="name a new folder; `mirror clusters stop --dir` stops an earlier demo's clusters"
            )
    except OSError as error:
        raise UsageError(f"{directory} cannot be used: {error.strerror}", hint="name a writable folder") from error
    return DemoFolder(directory.absolute(), keep, created=not existed)


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM ends the demo like Ctrl-C; both clean up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore a second Ctrl-C during the clean-up: it would leave brokers running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
