"""Where the topics of a mirror with ``start: latest`` begin: at their ends when the lane saw the source for the first time.

That is written down at once, before the target is asked for anything: records that come while the target is away are not left out.
Topics that appear later are copied from their beginning.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.kafka.answers import LATEST, ClusterMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.model import Incarnation, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic

STARTS = "starts.json"


class FirstSeen:
    """The start offsets of one lane, in a file of it: topic to topic id and offset by partition.

    A topic without a topic id was there at the first look, but could not tell its offsets yet.
    """

    def __init__(self, store: LaneStore) -> None:
        self._store = store
        self._told: dict[str, Any] | None = None

    def look(
        self, client: WireClient, topics: Collection[LaneTopic], metadata: ClusterMetadata, known: Mapping[str, Incarnation]
    ) -> None:
        """Write down where topics begin that the lane sees for the first time, if this is its first look at the source.

        Args:
            client: the source.
            topics: what the lane shall copy; backfills know where they begin.
            metadata: of these topics.
            known: copies that have begun.

        Raises:
            BufferUnusable: the file cannot be read or written.
            ClusterUnreachable: the source does not answer.
        """
        told = self._read()
        if told is None:
            first = [] if known else [topic.topic for topic in topics if topic.ranges is None]
            told = {"cluster": metadata.cluster_id, "topics": {name: {"id": "", "offsets": {}} for name in first}}
            self._write(told)
        due = [name for name, row in told["topics"].items() if not row["id"] and name not in known]
        found = {name: topic for name in due if (topic := metadata.topics.get(name)) is not None and not topic.error}
        parts = [TopicPartition(name, number) for name, topic in found.items() for number in topic.partitions]
        ends = offsets_or_errors(client, parts, LATEST)
        rows = {}
        for name, topic in found.items():
            offsets = {number: ends[TopicPartition(name, number)] for number in sorted(topic.partitions)}
            if all(isinstance(offset, int) for offset in offsets.values()):
                rows[name] = {"id": topic.topic_id, "offsets": {str(number): offset for number, offset in offsets.items()}}
        if rows:
            self._write(told | {"topics": told["topics"] | rows})

    @property
    def looked(self) -> bool:
        """Whether the lane has seen its source. Raises BufferUnusable."""
        return self._read() is not None

    def offsets(self, topic: str, topic_id: str, cluster_id: str) -> dict[int, int] | None:
        """Start offsets by partition of a topic that was there at the first look.

        Returns:
            {} for one that came later: it begins at its first offsets; None for one that could not tell its offsets yet.
        """
        told = self._read() or {"cluster": cluster_id, "topics": {}}
        row = told["topics"].get(topic)
        if row is not None and not row["id"] and told["cluster"] == cluster_id:
            return None
        if row is None or row["id"] != topic_id or told["cluster"] != cluster_id:
            return {}
        return {int(number): offset for number, offset in row["offsets"].items()}

    def _read(self) -> dict[str, Any] | None:
        if self._told is None:
            with explained(self._store.uri):
                text = self._store.read_file(STARTS)
            try:
                self._told = None if text is None else json.loads(text)
            except ValueError as error:
                raise BufferUnusable(
                    f"{self._store.table(STARTS)} is damaged: {error}", hint="remove it: topics that are not copied yet then begin anew"
                ) from error
        return self._told

    def _write(self, told: dict[str, Any]) -> None:
        with explained(self._store.uri):
            self._store.write_file(STARTS, json.dumps(told), durable=True)
        self._told = told
