"""A continuous run follows mirror.yaml: what changes for its mirror takes effect within seconds, without a restart of the process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mirror_pipeline.config import Config, load_config
from mirror_pipeline.errors import ConfigError
from mirror_pipeline.files import file_stamp
from mirror_pipeline.operations.run import together
from mirror_pipeline.reports import RunReport

log = logging.getLogger(__name__)

RELOAD_SECONDS = 2.0
# The caller's wish to stop reaches the run within this time.
_STEP_SECONDS = 0.1

Run = Callable[[Config, threading.Event, float | None], RunReport]


def run_following(config: Config, name: str, stop: threading.Event, seconds: float | None, run: Run) -> RunReport:
    """Run a mirror; when the file says something else about it, end that run after its micro-batches and begin another.

    A file that does not load changes nothing. Of the buffer all but its place is followed: the place needs a restart.

    Args:
        run: a run by a configuration, until the event is set or the seconds are over.
    """
    began, total = time.monotonic(), None
    while True:
        follower = _Follower(config, name, stop)
        left = None if seconds is None else max(0.0, seconds - (time.monotonic() - began))
        with follower:
            report = run(config, follower.ended, left)
        total = report if total is None else together(total, report)
        if follower.found is None or stop.is_set() or (seconds is not None and time.monotonic() - began >= seconds):
            return total
        config = follower.found
        log.info("config_followed mirror=%s file=%s", name, config.path)


class _Follower:
    """Looks at the file while a run is at work. ``ended`` tells that run to end, ``found`` is the configuration to go on with."""

    def __init__(self, config: Config, name: str, stop: threading.Event) -> None:
        self._config, self._name, self._stop = config, name, stop
        self._stamp = file_stamp(config.path)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="config-follower", daemon=True)
        self.ended = threading.Event()
        self.found: Config | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._over.wait(_STEP_SECONDS):
            if self._stop.is_set():
                self.ended.set()
                return
            if time.monotonic() - looked >= RELOAD_SECONDS:
                looked = time.monotonic()
                self._look()
                if self.found is not None:
                    self.ended.set()
                    return

    def _look(self) -> None:
        stamp = file_stamp(self._config.path)
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            config = load_config(self._config.path)
        except ConfigError as error:
            log.warning("config_not_followed mirror=%s error=%s", self._name, error)
            return
        if not any(mirror.name == self._name for mirror in config.mirrors):
            log.warning("config_not_followed mirror=%s error=it is not in %s any more; its run goes on", self._name, config.path)
        elif config.buffer.uri != self._config.buffer.uri:
            log.warning("config_not_followed mirror=%s error=another buffer.uri needs a restart", self._name)
        elif _of(config, self._name) != _of(self._config, self._name):
            self.found = config


def _of(config: Config, name: str) -> tuple[object, ...]:
    """All that concerns one mirror: of others what they write where it writes, or where it reads only what no mirror wrote."""
    mirror = config.mirror(name)
    near = [other for other in config.mirrors if other.target == mirror.target or mirror.topics.originals_only]
    return (
        mirror,
        [(other.name, other.source, other.target, other.topics, other.naming) for other in near],
        config.clusters[mirror.source],
        config.clusters[mirror.target],
        config.buffer,
    )
