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
SAME_CHECK = "same_as_source"
COPYING_CHECK = "copying"
GROUPS_CHECK = "groups_in_step"
KIND_LANE, KIND_BACKFILL, KIND_UPKEEP, KIND_FAILOVER = "lane", "backfill", "upkeep", "failover"

LONGEST_WORD = 60
LONGEST_NAME = 90
# Names that do not belong to one mirror.
RESERVED = ("evict", "evict_buffers", "evict_hourly", "prune", "prune_runs", "prune_nightly", "reaper", "mirrors_missing")


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
    """Asset group of a lane, or of the backfills of a mirror."""
    return f"{word(mirror)}/{word(part)}"


def lane_pool(mirror: str, lane: str) -> str:
    """The pool whose single slot a lane's run holds."""
    return f"mirror/{lane_label(mirror, lane)}"
