"""Named places where a test may end or stop the own process. Off unless the environment asks for it.

``MIRROR_CRASH_AT=name`` kills the process with SIGKILL the first time it comes past ``crash_point(name)``;
``name:3`` the third time. ``MIRROR_STOP_AT`` sends SIGSTOP instead: the process hangs until it receives SIGCONT.
With ``MIRROR_FAULT_ONCE=file`` the first process that gets there creates the file, and no other one is touched after that.
"""

from __future__ import annotations

import os
import signal
import threading

CRASH, STOP, ONCE = "MIRROR_CRASH_AT", "MIRROR_STOP_AT", "MIRROR_FAULT_ONCE"
POINTS = (
    "begin.before", "begin.after", "stage.before_fetch", "stage.before_close", "commit.before", "commit.after",
    "produce.before_send", "produce.after_send", "produce.before_ack", "record.before", "record.after",
    "recover.before", "evict.before", "evict.after",
)  # fmt: skip
FILL_POINTS = ("fill.before_send", "fill.after_send")
"""Around the markers that fill holes, with `offsets: exact`."""
PADDING_POINTS = ("padding.before_send", "padding.before_delete")
"""Where an empty target log is moved to the copy's first offset, with `offsets: exact`."""
GROUP_POINTS = ("groups.named", "groups.written")
"""In a round over consumer groups, which only mirrors that carry groups run."""
TOPIC_POINTS = ("settings.named", "settings.changed", "acls.named", "acls.changed")
"""In a round over settings and ACLs of target topics that changes some."""
DELETION_POINTS = ("deletion.named", "deletion.deleted")
"""Before and after the copy of a topic is deleted, with `topics.on_source_delete: delete`."""
ARCHIVE_POINTS = ("archive.written", "archive.noted", "archive.added", "archive.removed")
"""In a move of spans into the archive, with `buffer.archive`."""
FAILOVER_POINTS = (
    "failover.begun", "failover.looked", "failover.copied", "failover.groups", "failover.verified", "failover.promoting",
    "failover.promoted", "failover.written", "failback.begun", "failback.tail", "failback.copied", "failback.opened",
)  # fmt: skip
"""After each step of `mirror failover` and `mirror failback`."""
TAKE_BACK_POINTS = ("failback.rebuilding", "failback.deleted", "failback.rebuilt", "failback.adopted")
"""In `mirror failback` where names come back to the same topic; all but the last with `--tail rebuild`."""
REPLACE_POINTS = ("failback.settings", "failback.closed", *TAKE_BACK_POINTS)
"""The same with `offsets: exact`, where `--tail rebuild` makes the topic anew."""
ADOPT_POINTS = ("adopt.mapped", "adopt.adopted")
"""In `mirror adopt`: before and after its commit."""

_seen: dict[str, int] = {}
_lock = threading.Lock()


def _wanted(variable: str) -> tuple[str, int]:
    name, _, number = os.environ.get(variable, "").partition(":")
    return name, int(number or 1)


_AT = {number: _wanted(variable) for variable, number in ((CRASH, signal.SIGKILL), (STOP, signal.SIGSTOP))}
_NAMES = frozenset(name for name, _ in _AT.values() if name)


def crash_point(name: str) -> None:
    """End or stop this process if the environment names this place."""
    if name in _NAMES:
        _reach(name)


def _reach(name: str) -> None:
    with _lock:
        _seen[name] = _seen.get(name, 0) + 1
        count = _seen[name]
    for number, (wanted, nth) in _AT.items():
        if wanted == name and count == nth and _first():
            os.kill(os.getpid(), number)


def _first() -> bool:
    """Whether no other process was here before, as far as ``MIRROR_FAULT_ONCE`` asks for that."""
    path = os.environ.get(ONCE)
    if not path:
        return True
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
