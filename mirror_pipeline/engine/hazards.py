"""The reasons for which a topic halts, and which of them a person can accept. docs/troubleshooting.md explains each."""

from __future__ import annotations

import shlex

from mirror_pipeline.model import DecisionKind

ACCEPTABLE: dict[str, DecisionKind] = {
    "trimmed": DecisionKind.GAP,
    "unexplained_hole": DecisionKind.GAP,
    "oversize": DecisionKind.GAP,
    "corrupt": DecisionKind.GAP,
    "recreated": DecisionKind.RECREATED,
    "truncated": DecisionKind.TRUNCATED,
    "target_recreated": DecisionKind.TARGET,
    "target_truncated": DecisionKind.TARGET,
}
"""Halts that `mirror resolve` can end, and what it then writes down."""

MEANING = {
    "trimmed": "leave out what the source has deleted, and record it as a gap",
    "unexplained_hole": "leave out the missing source offsets, and record them as a gap",
    "oversize": "leave the record out, keep it in the quarantine table, and record a gap",
    "corrupt": "leave the damaged batch out, keep its bytes in the quarantine table, and record a gap",
    "recreated": "append the records of the new source topic behind those of the old one",
    "truncated": "go on where the source's log ends now; what was copied beyond it stays on the target, recorded as a gap",
    "target_recreated": "copy everything again, into the target topic as it is now (it must be empty)",
    "target_truncated": "copy everything again, into the target topic as it is now (it must be empty)",
}
"""What accepting means, for people."""


def accept_command(mirror: str, topic: str, code: str) -> str:
    """The command that accepts a halt, "" when only mending its cause helps."""
    if code not in ACCEPTABLE:
        return ""
    return shlex.join(["mirror", "resolve", "--mirror", mirror, "--topic", topic, "--accept", code])


def accept_hint(mirror: str, topic: str, code: str) -> str:
    """The same as a sentence."""
    command = accept_command(mirror, topic, code)
    return f"to {MEANING[code]}: {command}" if command else ""
