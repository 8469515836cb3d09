"""The exporter's process: watches the mirrors of a file, follows the file, and answers scrapes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server

from mirror_pipeline.config import Config, load_config
from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.exporter.facts import EVERY_SECONDS, Facts, Watch
from mirror_pipeline.exporter.families import MirrorCollector
from mirror_pipeline.exporter.notify import Notifier
from mirror_pipeline.mirror import Mirror

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 5.0


class Exporter:
    """Watches the mirrors of a file; a file that changed is read again, one that does not load changes nothing."""

    def __init__(self, path: Path, names: Sequence[str] | None = None, *, every: float = EVERY_SECONDS) -> None:
        self._path, self._names, self._every = path, names, every
        self._watches: dict[str, Watch] = {}
        self._stamp: object = None
        self.config: Config
        self.follow()

    def facts(self) -> list[Facts]:
        """The last look at each mirror."""
        return [watch.facts for watch in list(self._watches.values())]

    def follow(self) -> None:
        """Watch the mirrors that the file has now. Raises ConfigError if it does not load."""
        stat = self._path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        config = self.config = load_config(self._path)
        self.end()
        chosen = [each.name for each in config.mirrors if not self._names or each.name in self._names]
        self._watches = {name: Watch(Mirror(config, name), every=self._every) for name in chosen}
        for watch in self._watches.values():
            watch.start()

    def end(self) -> None:
        """No look begins any more."""
        for watch in self._watches.values():
            watch.end()


@contextmanager
def exporting(path: Path, names: Sequence[str] | None, address: str, port: int, *, every: float, partitions: bool) -> Iterator[int]:
    """Serve ``/metrics`` meanwhile; gives the port.

    Raises:
        ConfigError: the file does not load.
        UsageError: the address cannot be listened at.
    """
    exporter = Exporter(path, names, every=every)
    registry = CollectorRegistry()
    registry.register(MirrorCollector(exporter.facts, partitions=partitions))
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise UsageError(f"cannot listen at {address}:{port}: {error.strerror}", hint="choose another with --listen") from error
    over = threading.Event()
    follower = threading.Thread(target=_follow, args=(exporter, over), name="follow", daemon=True)
    follower.start()
    try:
        yield server.server_port
    finally:
        over.set()
        exporter.end()
        server.shutdown()
        server.server_close()
        thread.join()


def _follow(exporter: Exporter, over: threading.Event) -> None:
    """Follow the file, and tell of trouble."""
    notifier = Notifier(exporter.config.state_folder)
    while not over.wait(FOLLOW_SECONDS):
        try:
            exporter.follow()
        except (MirrorError, OSError) as error:
            log.warning("config_not_loaded error=%s", error)
        notifier.look(exporter.facts(), exporter.config.notify)
