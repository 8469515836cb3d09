"""Fill topics that cover every record-format edge case, for the demo and the tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from mirror_pipeline.local.shapes import log, odd, plain
from mirror_pipeline.local.shapes.bulk import fill_bulk
from mirror_pipeline.local.shapes.ground import CODECS, Ground, SeededTopic, local_settings, raw_batch
from mirror_pipeline.local.shapes.live import produce_live

__all__ = ["SeededTopic", "fill", "fill_bulk", "local_settings", "produce_live", "raw_batch"]

SHAPES: tuple[Callable[[Ground], SeededTopic], ...] = (
    log.transactions,
    odd.nulls,
    odd.record_headers,
    odd.raw_headers,
    odd.times,
    odd.tombstones,
    odd.single_record_batches,
    plain.many_partitions,
    plain.large,
    plain.append_time,
    log.trimmed,
    plain.empty_partition,
    plain.empty,
)


def fill(
    cluster_bootstrap: str, scale: int = 20_000, prefix: str = "", seed: int = 0, progress: Callable[[SeededTopic], None] | None = None
) -> list[SeededTopic]:
    """Create and fill about twenty topics that together cover every record-format edge case.

    Takes some seconds, and up to two minutes more until the broker has compacted the compacted topic (a broker with
    ``log.cleaner.backoff.ms`` of a second compacts it at once).

    Args:
        cluster_bootstrap: bootstrap servers of a cluster without security.
        scale: records in each of the five plain topics, one for each codec (500 bytes a record).
        prefix: of every topic name.
        seed: determines the contents.
        progress: called with each topic once it is filled.

    Raises:
        UsageError: A topic of that name exists.
        ProblemFound: Records could not be written, or the broker does not compact.
        ClusterUnreachable: No broker answers.
    """
    ground = Ground(cluster_bootstrap, prefix, scale, seed)
    filled: list[SeededTopic] = []

    def done(topic: SeededTopic) -> None:
        filled.append(topic)
        if progress is not None:
            progress(topic)

    with closing(ground):
        compacting = log.start_compacted(ground)
        for name in CODECS:
            done(plain.codec(ground, name))
        for shape in SHAPES:
            done(shape(ground))
        done(compacting.finish())
    return filled
