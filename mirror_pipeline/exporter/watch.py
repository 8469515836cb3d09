"""A look at a mirror every few seconds, kept so that a scrape or a page never waits for a cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirror_pipeline.config import Config, load_config
from mirror_pipeline.errors import MirrorError
from mirror_pipeline.exporter.facts import Facts, look
from mirror_pipeline.exporter.history import History
from mirror_pipeline.files import file_stamp
from mirror_pipeline.mirror import Mirror

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
# A look may take this share of a core: with thousands of topics looks are rarer.
CORE_SHARE = 0.015
# Groups are listed and described on both clusters, which costs more than all the rest.
LOOKS_A_GROUP_LOOK = 6


class Watch:
    """Looks at one mirror in a thread of its own. ``facts`` are those of the last look, ``history`` those of earlier ones."""

    def __init__(self, mirror: Mirror, *, every: float = EVERY_SECONDS, before: Watch | None = None) -> None:
        self._mirror = mirror
        self._every = every
        self._stop = threading.Event()
        self._soon = threading.Event()
        self.facts: Facts = Facts(mirror.name) if before is None else before.facts
        self.history: History = History() if before is None else before.history
        self._thread = threading.Thread(target=self._run, name=f"look-{mirror.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def look_again(self) -> None:
        """Do not wait for the next look: something was changed."""
        self._soon.set()

    def end(self) -> None:
        """No look begins any more."""
        self._stop.set()
        self._soon.set()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            began = time.process_time()  # Delta and librdkafka work in threads of their own
            try:
                self.facts = look(self._mirror, self.facts, groups=number % LOOKS_A_GROUP_LOOK == 0)
                self.history.add(self.facts, time.time())
            except Exception as error:
                log.exception("look_failed mirror=%s", self.facts.mirror)
                self.facts = replace(self.facts, error=f"{type(error).__name__}: {error}")
            number += 1
            self._soon.wait(max(self._every, (time.process_time() - began) / CORE_SHARE))
            self._soon.clear()


class Watches:
    """The watches of a file's mirrors; a file that changed is read again, one that does not load changes nothing (``problem``)."""

    def __init__(self, path: Path, names: Sequence[str] | None = None, *, every: float = EVERY_SECONDS) -> None:
        self._path, self._names, self._every = path, names, every
        self._watches: dict[str, Watch] = {}
        self._stamp: object = ()  # no file's, so that it is read
        self.config: Config
        self.problem = ""
        self.follow()

    @property
    def all(self) -> list[Watch]:
        """In the order of the file."""
        return list(self._watches.values())

    def get(self, name: str) -> Watch | None:
        """Of one mirror; None if there is none of that name."""
        return self._watches.get(name)

    def facts(self) -> list[Facts]:
        """The last look at each mirror."""
        return [watch.facts for watch in self.all]

    def follow(self) -> None:
        """Watch the mirrors that the file has now. Raises ConfigError if it does not load."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            config = load_config(self._path)
        except MirrorError as error:
            self.problem = str(error)
            raise
        self.config, self.problem = config, ""
        self.end()
        chosen = [each.name for each in config.mirrors if not self._names or each.name in self._names]
        self._watches = {name: Watch(Mirror(config, name), every=self._every, before=self._watches.get(name)) for name in chosen}
        for watch in self._watches.values():
            watch.start()

    def end(self) -> None:
        """No look begins any more."""
        for watch in self._watches.values():
            watch.end()
