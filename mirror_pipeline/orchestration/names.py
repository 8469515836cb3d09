"""Names inside Dagster: asset keys, groups, pools, operations, run tags.

Asset keys keep a topic's true name. What Dagster wants a Python-like name for (jobs, sensors, operations) is called by words
alone, and gets a hash only where two would be called the same: the topics ``a.b`` and ``a_b`` would otherwise be one.
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
SAME_CHECK = "same_as_source"
COPYING_CHECK = "copying"
KIND_LANE, KIND_BACKFILL, KIND_UPKEEP = "lane", "backfill", "upkeep"

LONGEST_WORD = 60
LONGEST_NAME = 90
RESERVED = ("evict", "evict_buffers", "evict_hourly", "prune", "prune_runs", "prune_nightly", "reaper", "mirrors_missing")
"""Names that do not stand for one mirror."""


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
    """A name that no other parts give, whatever they are."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    return f"{kind}_{word('_'.join(parts))[:LONGEST_WORD]}_{digest}"


def distinct(wanted: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A readable name for each ``(kind, mirror, ...)``; those that would share one get :func:`unique` names."""
    plain = {parts: word("_".join((*parts[:2], *(part.removeprefix("lane-") for part in parts[2:]))))[:LONGEST_NAME] for parts in wanted}
    shared = Counter(plain.values()) + Counter(RESERVED)
    return {parts: name if shared[name] == 1 else unique(*parts) for parts, name in plain.items()}


def lane_label(mirror: str, lane: str) -> str:
    """The display name and tag value of a lane: ``east-to-west/0``."""
    return f"{mirror}/{lane.removeprefix('lane-')}"


def group(mirror: str, part: str) -> str:
    """Asset group of a lane, or of the backfills of a mirror."""
    return f"{word(mirror)}/{word(part)}"


def lane_pool(mirror: str, lane: str) -> str:
    """The pool whose single slot a lane's run holds."""
    return f"mirror/{lane_label(mirror, lane)}"
