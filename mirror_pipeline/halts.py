"""The reasons for which a topic halts, and which of them a person can accept. docs/troubleshooting.md explains each."""

from __future__ import annotations

import logging
import shlex
import traceback
from pathlib import Path

from mirror_pipeline.errors import BrokerError, TopicHalted
from mirror_pipeline.model import DecisionKind, TopicPartition

log = logging.getLogger(__name__)

ACCEPTABLE: dict[str, DecisionKind] = {
    "trimmed": DecisionKind.GAP,
    "unexplained_hole": DecisionKind.GAP,
    "oversize": DecisionKind.GAP,
    "corrupt": DecisionKind.GAP,
    "recreated": DecisionKind.RECREATED,
    "truncated": DecisionKind.TRUNCATED,
    "target_recreated": DecisionKind.TARGET,
    "target_truncated": DecisionKind.TARGET,
    "source_gone": DecisionKind.SOURCE_GONE,
}
"""Halts that `mirror resolve` can end, and the decision that it records."""

MEANING = {
    "trimmed": "leave out what the source has deleted, and record it as a gap",
    "unexplained_hole": "leave out the missing source offsets, and record them as a gap",
    "oversize": "leave the record out, keep it in the quarantine table, and record a gap",
    "corrupt": "leave the damaged batch out, keep its bytes in the quarantine table, and record a gap",
    "recreated": "append the records of the new source topic after those of the old one",
    "truncated": "continue where the source's log ends now; what was copied beyond it stays on the target, recorded as a gap",
    "target_recreated": "copy everything again, into the target topic as it is now (it must be empty)",
    "target_truncated": "copy everything again, into the target topic as it is now (it must be empty)",
    "source_gone": "leave the topic out of the mirror; what was deleted before it was read is recorded as a gap",
}
"""What accepting a halt means, in words."""


def internal(place: TopicPartition, error: Exception, *, topic: str = "") -> TopicHalted:
    """The halt for an internal error in one partition's work: the others continue.

    Call it where the exception is handled. The halt carries the traceback from a task to the driver, which logs it
    with :func:`log_internal`.

    Args:
        place: the source or target partition.
        error: the exception.
        topic: the source topic; by default that of ``place``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return TopicHalted(
        topic or place.topic,
        f"{place}: unexpected {type(error).__name__}{': ' if text else ''}{text}{where}",
        hint="an error in mirror-pipeline: report it with the traceback in the log; the next run tries again",
        partition=place.partition,
        code="internal",
        trace="".join(traceback.format_exception(error)),
    )


def log_internal(halt: TopicHalted) -> None:
    """Log the traceback of an ``internal`` halt; other halts explain themselves."""
    if halt.trace:
        log.error("topic_halted topic=%s code=%s: %s\n%s", halt.topic, halt.code, halt.message, halt.trace)


def refused(place: TopicPartition, error: BrokerError) -> TopicHalted:
    """The halt for a partition that a broker refuses permanently."""
    return TopicHalted(
        place.topic, f"{place}: {error.message}", hint=error.hint, partition=place.partition, code=error.name.lower()
    )


def accept_command(mirror: str, topic: str, code: str) -> str:
    """The command that accepts a halt; "" when only fixing its cause helps."""
    if code not in ACCEPTABLE:
        return ""
    return shlex.join(["mirror", "resolve", "--mirror", mirror, "--topic", topic, "--accept", code])


def accept_hint(mirror: str, topic: str, code: str) -> str:
    """The same as a sentence."""
    command = accept_command(mirror, topic, code)
    return f"to {MEANING[code]}: {command}" if command else ""
