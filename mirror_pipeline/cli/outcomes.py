"""How runs ended: the tables, the JSON document, the exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

from mirror_pipeline.cli import tables
from mirror_pipeline.cli.errors import OK, PROBLEM, UNREACHABLE, describe, say
from mirror_pipeline.cli.jobs import Outcome
from mirror_pipeline.cli.output import answers, note, print_json
from mirror_pipeline.cli.tables_status import each
from mirror_pipeline.errors import ClusterUnreachable
from mirror_pipeline.reports import RunReport


def show(outcomes: Sequence[Outcome[RunReport]], *, as_json: bool, debug: bool, speed: bool, drain: bool = False) -> int:
    """Print how every mirror fared (``speed`` only of runs that did not wait for records); returns the gravest exit code among them.

    With ``drain``, and where the source did not answer, also up to which source offsets the target is.
    """
    reports = [outcome.result for outcome in outcomes if outcome.result is not None]
    shown = [(report, drain) for report in reports] + [(report, True) for report in map(_told, outcomes) if report is not None]
    if shown and not as_json:
        answers().print(each([tables.run(report, speed=speed, positions=positions) for report, positions in shown]))
    code = max((exit_code(report) for report in reports), default=OK)
    for outcome in outcomes:
        code = max(code, _failure(outcome, "" if len(outcomes) == 1 else f"{outcome.name}: ", debug))
    if as_json:
        print_json(to_json(outcomes))
    return code


def exit_code(report: RunReport) -> int:
    """0 when every topic is ok, 3 when a cluster could not be reached at the end and something may be missing for it, 1 otherwise."""
    if report.source_down or (report.target_down and (report.state != "ok" or report.lag_records)):
        return UNREACHABLE
    return OK if report.state == "ok" and all(topic.state == "ok" for topic in report.topics) else PROBLEM


def to_json(outcomes: Sequence[Outcome[RunReport]]) -> dict[str, Any]:
    """``run --json``: one element a mirror, whatever became of it; ``error`` is the first one there was."""
    document: dict[str, Any] = {"mirrors": [_mirror_json(outcome) for outcome in outcomes]}
    first = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    if first is not None:
        document["error"] = describe(first).to_json()
    return document


def _mirror_json(outcome: Outcome[RunReport]) -> dict[str, Any]:
    if outcome.result is not None:
        return outcome.result.to_json()
    empty: dict[str, Any] = {"mirror": outcome.name, "state": "not run", "records": 0, "bytes": 0, "seconds": 0.0, "topics": []}
    if outcome.error is not None:
        report = _told(outcome)
        empty |= {**(report.to_json() if report else {}), "state": "failed", "error": describe(outcome.error).to_json()}
    return empty


def _told(outcome: Outcome[RunReport]) -> RunReport | None:
    """What a run did before it gave its source up."""
    return outcome.error.report if isinstance(outcome.error, ClusterUnreachable) else None


def _failure(outcome: Outcome[RunReport], prefix: str, debug: bool) -> int:
    if outcome.error is not None:
        if debug:
            traceback.print_exception(outcome.error, file=sys.stderr)
        failure = describe(outcome.error)
        say(failure, prefix)
        return failure.exit_code
    if outcome.result is None:
        note(f"{prefix}stopped before it began")
        return PROBLEM
    return OK
