"""Tags of this project's runs. Whatever ends, judges or deletes runs selects them by these tags, and touches no others.

A Dagster instance may hold runs of other people, and of other mirror.yaml files whose mirrors have the same names.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

import dagster as dg

from mirror_pipeline.orchestration import names

IN_FLIGHT = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)

StepContext = dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext


def run_tags(project: str, kind: str, max_seconds: float, *, mirror: str = "", lane: str = "") -> dict[str, str]:
    """The tags of a run: of which project, kind, mirror and lane it is, and how long it may take."""
    tags = {names.PROJECT_TAG: project, names.KIND_TAG: kind, names.MAX_RUNTIME_TAG: str(int(max_seconds))}
    return tags | ({names.MIRROR_TAG: mirror} if mirror else {}) | ({names.LANE_TAG: lane} if lane else {})


def step_tags(project: str) -> dict[str, str]:
    """The tags of an operation: they tell its run which of the run's steps are ours."""
    return {names.PROJECT_TAG: project}


def tag_run(context: StepContext, tags: Mapping[str, str]) -> None:
    """Tag the run of this step: a run started from an asset's page has none of its job's tags.

    These tags show the lag sensor that a lane is running, the reaper in which process, and Dagster how long the run may take. A run
    that also holds steps of others gets no time limit and is marked as shared.
    """
    wanted = {**tags, names.PROCESS_TAG: _this_process(context.run.run_id)}
    if names.PROJECT_TAG in context.run.tags:  # as the code server, which looks for it, named it: a worker may have the file elsewhere
        wanted.pop(names.PROJECT_TAG, None)
    if _is_shared(context):
        wanted[names.SHARED_TAG] = "true"
        wanted.pop(names.MAX_RUNTIME_TAG, None)
    if any(context.run.tags.get(key) != value for key, value in wanted.items()):
        context.instance.add_run_tags(context.run.run_id, wanted)


def tag_check_run(context: dg.AssetCheckExecutionContext, tags: Mapping[str, str]) -> None:
    """Tag the run of a check that was started by itself; as part of another run it belongs to that run's steps."""
    if len(context.job_def.nodes) == 1:
        tag_run(context, tags)


def process_of(run: dg.DagsterRun) -> tuple[str, int] | None:
    """Host and pid of the process that executes the run; None while it has not told.

    A retried run inherits its parent's tags, so the tag names the run that it is about.
    """
    run_id, host, pid, _ = _parts(run)
    return (host, int(pid)) if run_id == run.run_id and pid.isdigit() else None


def sees_process(run: dg.DagsterRun) -> bool:
    """Whether the run's process would be visible from here: the same host, and the same process namespace on it."""
    run_id, host, _, space = _parts(run)
    return run_id == run.run_id and (host, space) == (socket.gethostname(), _namespace())


def _parts(run: dg.DagsterRun) -> tuple[str, str, str, str]:
    run_id, host, pid, space = ((run.tags.get(names.PROCESS_TAG) or "").split(" ") + [""] * 4)[:4]
    return run_id, host, pid, space


def _this_process(run_id: str) -> str:
    return f"{run_id} {socket.gethostname()} {os.getpid()} {_namespace()}"


def _namespace() -> str:
    """Containers may share a host's name; the numbers of their processes are their own."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"


def _is_shared(context: StepContext) -> bool:
    return any(names.PROJECT_TAG not in node.definition.tags for node in context.job_def.nodes)
