"""What both sides of a copied partition hold, record by record, read from the brokers and matched by content only."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import log_range
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.verify.log_walk import read_log

Content = tuple[bytes | None, bytes | None]


def contents(cluster: ClusterSettings, topic: str, partition: int) -> list[tuple[int, Content]]:
    """Offset, and key and value, of every record that a read_committed consumer gets."""
    place = TopicPartition(topic, partition)
    with WireClient(cluster) as client:
        start, end = log_range(client, [place], isolation=1)[place]
        pieces = read_log(client, place, start, end, isolation=1)
        return [(record.offset, (record.key, record.value)) for piece in pieces for record in piece.records()]


@dataclass(frozen=True)
class Pairs:
    """The copied records of a partition, as (source offset, target offset) in order, and the ends of both logs."""

    rows: list[tuple[int, int]]
    source_end: int
    target_end: int

    def to_target(self, offset: int) -> int:
        """Where the first record at or after a source offset is; the end of the target if there is none."""
        at = bisect_left(self.rows, (offset, -1))
        return self.rows[at][1] if at < len(self.rows) else self.target_end

    def to_source(self, offset: int) -> int:
        """The same from target to source."""
        at = bisect_left([target for _, target in self.rows], offset)
        return self.rows[at][0] if at < len(self.rows) else self.source_end


def pairs(source: ClusterSettings, target: ClusterSettings, topic: str, copy: str, partition: int) -> Pairs:
    """Match the two logs of a finished copy: the same contents in the same order."""
    left, right = contents(source, topic, partition), contents(target, copy, partition)
    assert [content for _, content in left] == [content for _, content in right]
    with WireClient(source) as here, WireClient(target) as there:
        source_end = log_range(here, [TopicPartition(topic, partition)], isolation=1)[TopicPartition(topic, partition)][1]
        target_end = log_range(there, [TopicPartition(copy, partition)], isolation=1)[TopicPartition(copy, partition)][1]
    return Pairs([(a, b) for (a, _), (b, _) in zip(left, right, strict=True)], source_end, target_end)
