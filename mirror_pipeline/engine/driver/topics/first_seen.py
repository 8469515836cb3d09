"""The topics that a lane's first look at the source found, with their end offsets, for a mirror whose ``start`` is not ``earliest``.

With ``start: latest`` they begin at these offsets. They are saved before the target gets any request, so records that arrive while
the target is unreachable are copied. Topics that appear later are copied from their beginning.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from mirror_pipeline.buffer.place.errors import explained
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.engine.driver.topics.waits import patience
from mirror_pipeline.errors import BufferUnusable
from mirror_pipeline.kafka.answers import LATEST_TIME, ClusterMetadata
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_or_errors
from mirror_pipeline.model import Incarnation, TopicPartition
from mirror_pipeline.topics.lanes import LaneTopic

STARTS = "starts.json"


class FirstSeen:
    """The start offsets of one lane, saved in its folder: topic to topic id and offset by partition.

    A topic without a topic id existed at the first look, but its offsets were not available yet.
    """

    def __init__(self, store: LaneStore) -> None:
        self._store = store
        self._saved: dict[str, Any] | None = None

    def look(
        self, client: WireClient, topics: Collection[LaneTopic], metadata: ClusterMetadata, known: Mapping[str, Incarnation]
    ) -> None:
        """Save where the topics begin, if this is the lane's first look at the source; complete what was not available then.

        Args:
            client: the source.
            topics: the lane's topics; those of a backfill have their own ranges.
            metadata: the source's metadata of these topics.
            known: copies that have begun.

        Raises:
            BufferUnusable: the file cannot be read or written.
            ClusterUnreachable: the source does not answer.
        """
        saved = self._read()
        if saved is None:
            first = [] if known else [topic.topic for topic in topics if topic.ranges is None]
            saved = {"cluster": metadata.cluster_id, "topics": {name: {"id": "", "offsets": {}} for name in first}}
            self._write(saved)
        due = [name for name, row in saved["topics"].items() if not row["id"] and name not in known]
        found = {name: topic for name in due if (topic := metadata.topics.get(name)) is not None and not topic.error}
        parts = [TopicPartition(name, number) for name, topic in found.items() for number in topic.partitions]
        ends = offsets_or_errors(client, parts, LATEST_TIME, within=patience(client))
        rows = {}
        for name, topic in found.items():
            offsets = {number: ends[TopicPartition(name, number)] for number in sorted(topic.partitions)}
            if all(isinstance(offset, int) for offset in offsets.values()):
                rows[name] = {"id": topic.topic_id, "offsets": {str(number): offset for number, offset in offsets.items()}}
        if rows:
            self._write(saved | {"topics": saved["topics"] | rows})

    @property
    def looked(self) -> bool:
        """Whether the lane has seen its source. Raises BufferUnusable."""
        return self._read() is not None

    def offsets(self, topic: str, topic_id: str, cluster_id: str) -> dict[int, int] | None:
        """Start offsets by partition of a topic that existed at the first look.

        Returns:
            {} for a later topic, which begins at its first offsets; None for one whose offsets are not available yet.
        """
        saved = self._read() or {"cluster": cluster_id, "topics": {}}
        row = saved["topics"].get(topic)
        if row is not None and not row["id"] and saved["cluster"] == cluster_id:
            return None
        if row is None or row["id"] != topic_id or saved["cluster"] != cluster_id:
            return {}
        return {int(number): offset for number, offset in row["offsets"].items()}

    def _read(self) -> dict[str, Any] | None:
        if self._saved is None:
            with explained(self._store.uri):
                text = self._store.read_file(STARTS)
            try:
                self._saved = None if text is None else json.loads(text)
            except ValueError as error:
                raise BufferUnusable(
                    f"{self._store.table(STARTS)} is damaged: {error}",
                    hint="delete it; the start offsets of topics that are not copied yet are then determined again",
                ) from error
        return self._saved

    def _write(self, saved: dict[str, Any]) -> None:
        with explained(self._store.uri):
            self._store.write_file(STARTS, json.dumps(saved), durable=True)
        self._saved = saved
