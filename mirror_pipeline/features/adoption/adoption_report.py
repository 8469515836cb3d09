"""What `mirror adopt` was asked for, and what it found."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from mirror_pipeline.errors import UsageError

FULL = "full"
FOREIGN = "foreign"
ALLOWED_FINDINGS = (FOREIGN,)
"""Differences that may be accepted: records on the target that the source does not have."""


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """How to prove that a target topic is a copy.

    ``last``: compare only that many records at the end of each partition; None compares all. ``allow``: names of ``ALLOWED``.
    ``mm2_alias``: MirrorMaker 2 has made the copy; its alias of the source cluster.
    """

    last: int | None = None
    allow: Collection[str] = ()
    dry_run: bool = False
    mm2_alias: str | None = None

    @property
    def proof(self) -> str:
        """The proof as it is written on the command line."""
        return FULL if self.last is None else f"last:{self.last}"


def options_of(proof: str, allow: Collection[str], *, dry_run: bool, mm2_alias: str | None = None) -> AdoptOptions:
    """The options for words of the command line: ``full`` or ``last:N``. Raises UsageError."""
    unknown = sorted(set(allow) - set(ALLOWED_FINDINGS))
    if unknown:
        raise UsageError(f"allow {unknown[0]}: no such difference", hint=f"choose {', '.join(ALLOWED_FINDINGS)}")
    if proof == FULL:
        return AdoptOptions(None, tuple(allow), dry_run, mm2_alias)
    word, _, number = proof.partition(":")
    if word != "last" or not number.isdecimal() or not int(number):
        raise UsageError(f"proof {proof}: no such proof", hint="choose `full`, or `last:N` for the last N records of each partition")
    return AdoptOptions(int(number), tuple(allow), dry_run, mm2_alias)


@dataclass(frozen=True, slots=True)
class AdoptedPartition:
    """One partition: ``records`` at source offsets ``[source_start, source_end)`` are the target's ``[target_start, target_end)``.

    The copy continues at both ends. ``foreign`` target records are not on the source. ``unproven`` target offsets lie before the
    part that was compared: the source has deleted those records, or the proof leaves them out. ``runs`` counts the runs of the offset
    map, ``remaining`` the source offsets that are still to be copied.
    """

    partition: int
    source_start: int
    source_end: int
    target_start: int
    target_end: int
    records: int
    runs: int
    foreign: int = 0
    unproven: int = 0
    remaining: int = 0


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """An adoption, or with ``dry_run`` what one would write; ``state`` is ``adopted`` or ``ready``."""

    mirror: str
    topic: str
    target_topic: str
    lane: str
    state: str
    dry_run: bool
    proof: str
    partitions: tuple[AdoptedPartition, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def records(self) -> int:
        """Records that were found equal on both sides."""
        return sum(part.records for part in self.partitions)

    def to_json(self) -> dict[str, Any]:
        """The document of ``adopt --json``."""
        return {**asdict(self), "records": self.records}
