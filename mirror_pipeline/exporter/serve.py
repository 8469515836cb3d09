"""The exporter's process: watches mirrors, follows their file, tells of trouble, answers scrapes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server

from mirror_pipeline.errors import MirrorError, UsageError
from mirror_pipeline.exporter.families import MirrorCollector
from mirror_pipeline.exporter.notify import Notifier
from mirror_pipeline.exporter.watch import EVERY_SECONDS, Watches

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 5.0


@contextmanager
def watching(path: Path, names: Sequence[str] | None = None, *, every: float = EVERY_SECONDS, tell: bool = True) -> Iterator[Watches]:
    """Watch the mirrors of a file meanwhile, and with ``tell`` send the messages of ``notify``. Raises ConfigError if it does not load."""
    watches = Watches(path, names, every=every)
    over = threading.Event()
    follower = threading.Thread(target=_follow, args=(watches, over, tell), name="follow", daemon=True)
    follower.start()
    try:
        yield watches
    finally:
        over.set()
        watches.end()


@contextmanager
def serving_metrics(watches: Watches, address: str, port: int, *, partitions: bool = False) -> Iterator[int]:
    """Answer ``/metrics`` meanwhile; gives the port. Raises UsageError where the address cannot be listened at."""
    registry = CollectorRegistry()
    registry.register(MirrorCollector(watches.facts, partitions=partitions))
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise UsageError(f"cannot listen at {address}:{port}: {error.strerror}", hint="choose another with --listen") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _follow(watches: Watches, over: threading.Event, tell: bool) -> None:
    """Follow the file, and tell of trouble."""
    notifier = Notifier(watches.config.state_folder)
    while not over.wait(FOLLOW_SECONDS):
        try:
            watches.follow()
        except (MirrorError, OSError) as error:
            log.warning("config_not_loaded error=%s", error)
        if tell:
            notifier.look(watches.facts(), watches.config.notify)
