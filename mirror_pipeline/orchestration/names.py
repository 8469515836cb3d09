"""Names inside Dagster: asset keys, groups, pools, operations, run tags.

Asset keys keep a topic's true name. Everything Dagster derives a Python-like name from gets a hash as well:
the topics ``a.b`` and ``a_b`` would otherwise be one.
"""

from __future__ import annotations

import hashlib
import re

import dagster as dg

LOCATION = "mirror_pipeline"
LANE_TAG = "mirror/lane"
MIRROR_TAG = "mirror/name"
KIND_TAG = "mirror/kind"
MAX_RUNTIME_TAG = "dagster/max_runtime"
HALTED_TAG = "mirror/halted"
SAME_CHECK = "same_as_source"
COPYING_CHECK = "copying"
KIND_LANE, KIND_BACKFILL, KIND_UPKEEP = "lane", "backfill", "upkeep"

LONGEST_WORD = 60


def source_key(mirror: str, topic: str) -> dg.AssetKey:
    """The topic on the source cluster: an external asset."""
    return dg.AssetKey([mirror, "source", topic])


def target_key(mirror: str, topic: str) -> dg.AssetKey:
    """The topic's copy on the target cluster, by the name of the source topic."""
    return dg.AssetKey([mirror, "target", topic])


def backfill_key(mirror: str, topic: str) -> dg.AssetKey:
    """Past time ranges of the topic, one partition an hour or a day."""
    return dg.AssetKey([mirror, "backfill", topic])


def topic_of(key: dg.AssetKey) -> str:
    """The source topic of any of the keys above."""
    return key.path[-1]


def word(text: str) -> str:
    """Only letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def unique(kind: str, *parts: str) -> str:
    """A name for an operation, job or sensor that no other parts give."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{kind}_{word('_'.join(parts))[:LONGEST_WORD]}_{digest}"


def lane_label(mirror: str, lane: str) -> str:
    """How people and tags name a lane: ``east-to-west/0``."""
    return f"{mirror}/{lane.removeprefix('lane-')}"


def group(mirror: str, part: str) -> str:
    """Asset group of a lane, or of the backfills of a mirror."""
    return f"{word(mirror)}/{word(part)}"


def lane_pool(mirror: str, lane: str) -> str:
    """The pool whose single slot a lane's run holds."""
    return f"mirror/{lane_label(mirror, lane)}"
