"""Failures of a Dagster step that show a message and a hint instead of a stack trace."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterUserCodeProcessError
from dagster_shared.error import SerializableErrorInfo

from mirror_pipeline.orchestration import metadata


class PlainFailure(DagsterUserCodeProcessError, dg.Failure):
    """A failure without a stack trace: Dagster shows the error info of a user process in its place."""

    def __init__(self, description: str, metadata: dict[str, Any]) -> None:
        info = SerializableErrorInfo(description, [], "Failure")
        super().__init__(description, user_code_process_error_infos=[info])  # type: ignore[no-untyped-call]
        self.metadata = dg.Failure(metadata=metadata).metadata
        self.allow_retries = False


def failure(message: str, *, hint: str = "", details: dict[str, Any] | None = None) -> dg.Failure:
    """A step failure without a stack trace that Dagster does not retry."""
    facts: dict[str, Any] = {}
    if hint:
        facts[metadata.HINT_KEY] = hint
    if details:
        facts["topics"] = dg.MetadataValue.json(json.loads(json.dumps(details)))
    return PlainFailure(f"{message} ({hint})" if hint else message, facts)
