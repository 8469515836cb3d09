"""Whether a mirror is healthy, by the status of its lanes: for probes and ``status --exit-code``. Contacts no cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mirror_pipeline.reports import LaneStatus, MirrorStatus

FINE, PROBLEM, UNREACHABLE, STALE = "fine", "problem", "unreachable", "stale"
EXIT_CODES = {FINE: 0, PROBLEM: 1, UNREACHABLE: 3, STALE: 3}
"""As for every command: 1 a problem was found, 3 a cluster is unreachable; also 3 for a stale lane."""
BY_SEVERITY = (STALE, UNREACHABLE, PROBLEM, FINE)


@dataclass(frozen=True, slots=True)
class Health:
    """One mirror's health; ``problems`` has a line for each problem."""

    mirror: str
    state: str
    problems: tuple[str, ...]
    lanes: int
    topics: int

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a problem, 3 unreachable or stale."""
        return EXIT_CODES[self.state]

    def to_json(self) -> dict[str, Any]:
        """One element of ``health --json``'s ``mirrors``."""
        return {**asdict(self), "exit_code": self.exit_code}


def health_of(status: MirrorStatus, now: float, max_age: float | None = None) -> Health:
    """The health of a mirror by its status.

    Args:
        status: from :meth:`Mirror.status`.
        now: seconds since the epoch.
        max_age: a mirror whose last heartbeat is older than this is stale, in seconds; None: a run that has ended is not stale.
    """
    found = [finding for lane in status.lanes for finding in _of_lane(lane, now)]
    signs = [lane.heartbeat for lane in status.lanes if lane.heartbeat is not None]
    if not signs:
        found.append((STALE, "it has never run"))
    elif max_age is not None and now - max(signs) > max_age:
        found.append((STALE, f"no lane has sent a heartbeat for {_age(now - max(signs))}"))
    return Health(
        status.mirror, worst(state for state, _ in found), tuple(text for _, text in found),
        len(status.lanes), sum(len(lane.topics) for lane in status.lanes),
    )  # fmt: skip


def worst(states: Iterator[str] | Sequence[str]) -> str:
    """The most severe of some states."""
    known = set(states)
    return next((state for state in BY_SEVERITY if state in known), FINE)


def _of_lane(lane: LaneStatus, now: float) -> Iterator[tuple[str, str]]:
    if lane.state == "stale" and lane.heartbeat is not None:
        yield STALE, f"{lane.lane} has sent no heartbeat for {_age(now - lane.heartbeat)}"
    if lane.state == "failed":
        state = UNREACHABLE if lane.exit_code == EXIT_CODES[UNREACHABLE] else PROBLEM
        yield state, f"{lane.lane} failed: {lane.message or 'no reason given'}"
    if lane.target_down_since is not None:
        yield UNREACHABLE, f"{lane.lane}: target down for {_age(now - lane.target_down_since)}"
    if lane.source_down:
        yield UNREACHABLE, f"{lane.lane}: source down: {lane.source_down}"
    for topic in lane.topics:
        if topic.state in ("halted", "behind"):
            code = f" ({topic.code})" if topic.code else ""
            yield PROBLEM, f"{topic.topic} {topic.state}{code}: {topic.reason or 'no reason given'}"


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} m" if seconds < 7200 else f"{seconds / 3600:.0f} h"
