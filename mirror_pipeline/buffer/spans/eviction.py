"""Which micro-batches may leave the buffer, and which files may leave the disk: pure choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirror_pipeline.model import SpanRef

SpanKey = tuple[str, int, str]
"""Topic, partition, incarnation."""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """What the buffer holds of one micro-batch: bytes on disk, when it was staged (milliseconds since the epoch), files, spans."""

    micro_batch: int
    size: int
    staged_at: int
    files: int = 1
    spans: int = 1


def produced_batches(spans: Iterable[SpanRef], produced: Mapping[SpanKey, int]) -> set[int]:
    """Micro-batches all of whose spans end at or below the position of their partition.

    Args:
        spans: the live spans.
        produced: next source offset that is not yet safe on the target, by topic, partition and incarnation; a partition
            that is not named counts as not produced at all.
    """
    done: set[int] = set()
    held: set[int] = set()
    for span in spans:
        safe = span.end <= produced.get((span.topic, span.partition, span.incarnation), -1)
        (done if safe else held).add(span.micro_batch)
    return done - held


def choose(
    staged: Iterable[StagedBatch],
    done: Iterable[int],
    *,
    older_than: int | None = None,
    target_bytes: int | None = None,
    target_files: int | None = None,
    target_spans: int | None = None,
) -> list[int]:
    """Micro-batches to remove, oldest first; never one outside ``done``.

    Args:
        staged: everything that is live.
        done: micro-batches that are not needed any more.
        older_than: remove what was staged before this time (milliseconds since the epoch).
        target_bytes: remove further, oldest first, until at most this many bytes are live.
        target_files: the same for files.
        target_spans: the same for spans.
    """
    batches = sorted(staged, key=lambda batch: batch.micro_batch)
    removable = set(done)
    live = sum(batch.size for batch in batches)
    files = sum(batch.files for batch in batches)
    spans = sum(batch.spans for batch in batches)
    chosen = []
    for batch in batches:
        expired = older_than is not None and batch.staged_at < older_than
        crowded = _more(live, target_bytes) or _more(files, target_files) or _more(spans, target_spans)
        if batch.micro_batch in removable and (expired or crowded):
            chosen.append(batch.micro_batch)
            live -= batch.size
            files -= batch.files
            spans -= batch.spans
    return chosen


def _more(count: int, limit: int | None) -> bool:
    return limit is not None and count > limit


def safe_ends(produced: Mapping[SpanKey, int], verified: Mapping[SpanKey, int]) -> dict[SpanKey, int]:
    """Source offset up to which a partition may be forgotten: what is on the target *and* was verified there."""
    return {key: min(end, verified[key]) for key, end in produced.items() if key in verified}
