"""Messages: one when a cause has lasted, one when it is over; kept in a file, so that a restart repeats nothing."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

from mirror_pipeline.config.secrets import SecretRef, resolved
from mirror_pipeline.config.settings import NotifyConfig
from mirror_pipeline.errors import ConfigError
from mirror_pipeline.exporter.causes import FROM_LAG, Cause, causes
from mirror_pipeline.exporter.facts import Facts
from mirror_pipeline.files import replace_file
from mirror_pipeline.text import duration, few

log = logging.getLogger(__name__)

STATE_FILE = "notified.json"
# Sends a title and a text to an address; whether it was taken.
Send = Callable[[str, str, str], bool]


def send(address: str, title: str, text: str) -> bool:
    """By Apprise."""
    import apprise

    channel = apprise.Apprise()
    return bool(channel.add(address)) and bool(channel.notify(body=text, title=title))


@dataclass(slots=True)
class Open:
    """A cause that lasts: since when (seconds since the epoch), and to which addresses it was told, by their place in the file."""

    cause: Cause
    since: float
    told: list[int] = field(default_factory=list)


class Messages:
    """Tells what lasts, and that it is over.

    Args:
        send: see :data:`Send`.
        kept: what earlier looks have told, as :attr:`kept` had it.
    """

    def __init__(self, send: Send = send, kept: str = "") -> None:
        self._send = send
        self._open: dict[str, Open] = {}
        self._gaps: dict[str, int] = {}
        if kept:
            self._remember(kept)

    @property
    def kept(self) -> str:
        """What was told, so that nothing is told twice: a JSON document."""
        return json.dumps({"open": [asdict(each) for each in self._open.values()], "gaps": self._gaps})

    def look(self, facts: Collection[Facts], config: NotifyConfig, now: float | None = None) -> None:
        """Compare what is wrong now with what was, and send what is due. A message that is not taken is sent again at the next look."""
        now = time.time() if now is None else now
        mirrors = {each.mirror for each in facts if each.status is not None}
        measured = {each.mirror for each in facts if each.lag is not None}
        found = {cause.key: cause for each in facts if each.mirror in mirrors for cause in causes(each)}
        for key, cause in found.items():
            self._open.setdefault(key, Open(cause, now)).cause = cause
        gone = {key: each for key, each in self._open.items() if key not in found and each.cause.mirror in mirrors}
        over = {key: each for key, each in gone.items() if each.cause.kind not in FROM_LAG or each.cause.mirror in measured}
        lasting = {key: each for key, each in self._open.items() if key in found and now - each.since >= config.after}
        for index, url in enumerate(config.urls):
            address = _resolved(url)
            if address is not None:
                self._tell_new(index, address, lasting.values())
                self._tell_over(index, address, over, now)
                self._tell_gaps(address, facts)
        for key in [key for key, each in over.items() if not each.told]:
            del self._open[key]
        self._gaps |= {each.mirror: each.gap_records for each in facts if each.mirror in mirrors}

    def _tell_new(self, index: int, address: str, lasting: Iterable[Open]) -> None:
        due = sorted((each for each in lasting if index not in each.told), key=_kind)
        for (mirror, _), group in groupby(due, _kind):
            rows = list(group)
            body = "\n".join(few([row.cause.line for row in rows]))
            if self._sent(address, f"mirror {mirror}: {_title(rows)}", body):
                for row in rows:
                    row.told.append(index)

    def _tell_over(self, index: int, address: str, over: Mapping[str, Open], now: float) -> None:
        due = sorted((each for each in over.values() if index in each.told), key=_kind)
        for (mirror, _), group in groupby(due, _kind):
            rows = list(group)
            body = "\n".join(few([f"{row.cause.text}: over after {duration(now - row.since)}" for row in rows]))
            if self._sent(address, f"mirror {mirror}: over: {_title(rows)}", body):
                for row in rows:
                    row.told.remove(index)

    def _tell_gaps(self, address: str, facts: Iterable[Facts]) -> None:
        for each in facts:
            lost = each.gap_records - self._gaps.get(each.mirror, each.gap_records)
            if lost > 0:
                text = "`mirror gaps` lists them with cause and decision"
                self._sent(address, f"mirror {each.mirror}: {lost:,} source offsets were given up", text)

    def _sent(self, address: str, title: str, text: str) -> bool:
        try:
            done = self._send(address, title, text)
        except Exception:
            log.exception("notify_failed title=%r", title)
            return False
        if not done:
            log.warning("notify_not_taken title=%r", title)
        return done

    def _remember(self, kept: str) -> None:
        try:
            body = json.loads(kept)
            opened = [Open(Cause(**each["cause"]), each["since"], each["told"]) for each in body["open"]]
            self._open, self._gaps = {each.cause.key: each for each in opened}, dict(body["gaps"])
        except (ValueError, TypeError, KeyError) as error:  # of another version, or cut off: causes are told once more
            log.warning("notified_not_read error=%s", error)


class Notifier(Messages):
    """Messages that are remembered in a file.

    Args:
        folder: where.
        send: see :data:`Send`.
    """

    def __init__(self, folder: Path, send: Send = send) -> None:
        self._path = folder / STATE_FILE
        try:
            kept = self._path.read_text() if self._path.exists() else ""
        except (OSError, ValueError) as error:
            log.warning("notified_not_read error=%s", error)
            kept = ""
        super().__init__(send, kept)

    def look(self, facts: Collection[Facts], config: NotifyConfig, now: float | None = None) -> None:
        """See :meth:`Messages.look`; what was told is written down."""
        super().look(facts, config, now)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, self.kept)
        except OSError as error:
            log.warning("notified_not_written error=%s", error)


def _kind(each: Open) -> tuple[str, str]:
    return each.cause.mirror, each.cause.kind


def _title(rows: list[Open]) -> str:
    first = rows[0].cause.text
    return first if len(rows) == 1 else f"{first}, and {len(rows) - 1} more"


def _resolved(url: str | SecretRef) -> str | None:
    try:
        return resolved(url)
    except ConfigError as error:
        log.warning("notify_address error=%s", error.message)
        return None

