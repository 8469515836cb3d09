"""Names inside Dagster: asset keys, groups, pools, operations, run tags.

Asset keys hold a topic's real name. Jobs, sensors and operations need Python-like names: plain words, with a hash only where
two names would be equal, as for the topics ``a.b`` and ``a_b``.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

import dagster as dg

LOCATION = "mirror_pipeline"
LANE_TAG = "mirror/lane"
MIRROR_TAG = "mirror/name"
KIND_TAG = "mirror/kind"
MAX_RUNTIME_TAG = "dagster/max_runtime"
HALTED_TAG = "mirror/halted"
STATE_TAG = "mirror/state"
# Which mirror.yaml a run belongs to: an instance may hold runs of other projects, and of other mirror.yaml files.
PROJECT_TAG = "mirror/project"
# On a run that also executes steps of others.
SHARED_TAG = "mirror/shared"
# Which cluster the run waits for, and since when.
DOWN_TAG = "mirror/down"
# The process that executes the run.
PROCESS_TAG = "mirror/process"
SAME_CHECK = "same_as_source"
COPYING_CHECK = "copying"
FRESH_CHECK = "fresh"
GROUPS_CHECK = "groups_in_step"
OVERVIEW_CHECK = "nothing_to_do"
KIND_LANE, KIND_BACKFILL, KIND_UPKEEP, KIND_FAILOVER = "lane", "backfill", "upkeep", "failover"
RUN_KINDS = (KIND_LANE, KIND_BACKFILL, KIND_UPKEEP, KIND_FAILOVER)

LONGEST_WORD = 60
LONGEST_NAME = 90
# Names that do not belong to one mirror. Their prefix leaves the plain words to projects that these definitions are merged into.
EVICT_JOB, EVICT_OP, EVICT_SCHEDULE = "mirror_evict", "mirror_evict_buffers", "mirror_evict_hourly"
PRUNE_JOB, PRUNE_OP, PRUNE_SCHEDULE = "mirror_prune", "mirror_prune_runs", "mirror_prune_nightly"
REAPER, MIRROR_FILE = "mirror_reaper", "mirror_file"
RESERVED = (EVICT_JOB, EVICT_OP, EVICT_SCHEDULE, PRUNE_JOB, PRUNE_OP, PRUNE_SCHEDULE, REAPER, MIRROR_FILE)
# Resource keys, which Dagster shares among all definitions of a code location. They are also parameter names of the steps.
MIRRORS_RESOURCE, SPARK_RESOURCE = "mirror_project", "mirror_spark"


def source_key(mirror: str, topic: str) -> dg.AssetKey:
    """The topic on the source cluster: an external asset."""
    return dg.AssetKey([mirror, "source", topic])


def target_key(mirror: str, topic: str) -> dg.AssetKey:
    """The topic's copy on the target cluster, by the name of the source topic."""
    return dg.AssetKey([mirror, "target", topic])


def backfill_key(mirror: str, topic: str) -> dg.AssetKey:
    """Past time ranges of the topic, one partition per hour or day."""
    return dg.AssetKey([mirror, "backfill", topic])


def groups_key(mirror: str) -> dg.AssetKey:
    """The committed offsets of the mirror's consumer groups on the target."""
    return dg.AssetKey([mirror, "groups"])


def overview_key(mirror: str) -> dg.AssetKey:
    """The mirror as a whole."""
    return dg.AssetKey([mirror, "overview"])


def topic_of(key: dg.AssetKey) -> str:
    """The source topic of any of the keys above."""
    return key.path[-1]


def word(text: str) -> str:
    """Only letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def unique(kind: str, *parts: str) -> str:
    """A name that no other combination of parts gets."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{kind}_{word('_'.join(parts))[:LONGEST_WORD]}_{digest}"


def distinct(names: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A readable name for each ``(kind, mirror, ...)``; equal names are replaced by :func:`unique` names."""
    plain = {parts: word("_".join((*parts[:2], *(part.removeprefix("lane-") for part in parts[2:]))))[:LONGEST_NAME] for parts in names}
    shared = Counter(plain.values()) + Counter(RESERVED)
    return {parts: name if shared[name] == 1 else unique(*parts) for parts, name in plain.items()}


def lane_label(mirror: str, lane: str) -> str:
    """The display name and tag value of a lane: ``east-to-west/0``."""
    return f"{mirror}/{lane.removeprefix('lane-')}"


def group(mirror: str, part: str) -> str:
    """Asset group of a lane, or of another part of a mirror."""
    return f"{word(mirror)}/{word(part)}"


def backfill_group(mirror: str) -> str:
    """Asset group of the backfills of a mirror: below one name for all mirrors."""
    return f"backfill/{word(mirror)}"


def pool(project: str, *parts: str) -> str:
    """A pool of this project; pools belong to the whole instance."""
    return "/".join(("mirror", project, *parts))
