"""The offset maps of a mirror's topics, kept up to date from new files of the ledgers only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.ledger.translation import PartitionMap, empty_maps, extend_maps
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.model import Incarnation, TopicPartition


@dataclass(slots=True)
class LaneMaps:
    """The maps of one lane, of those topics only that are asked for: 24 bytes of memory for each run."""

    ledger: Ledger
    maps: dict[TopicPartition, PartitionMap] = field(default_factory=dict)
    _generations: dict[tuple[str, str], Incarnation] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def refresh(self, topics: Collection[str]) -> None:
        """Read what is new; everything again when a topic or a generation is. Raises BufferUnusable."""
        generations = {key: g for key, g in self.ledger.generations().items() if key[0] in topics}
        if generations != self._generations:
            self.maps, self._generations, self._known = empty_maps(generations.values()), generations, set()
        if not self._read() and self._known:  # files were joined in between: from the beginning
            self.maps, self._known = empty_maps(generations.values()), set()
            self._read()

    def _read(self) -> bool:
        sends, live = self.ledger.sends_since(self._known, {topic for topic, _ in self._generations})
        whole = extend_maps(self.maps, sends)
        self._known = set(live)
        return whole


@dataclass(slots=True)
class MirrorMaps:
    """The maps of all lanes of a mirror."""

    _lanes: dict[LaneStore, LaneMaps] = field(default_factory=dict)

    def refresh(self, stores: Iterable[LaneStore], topics: Collection[str]) -> dict[TopicPartition, PartitionMap]:
        """The maps of these topics as the ledgers have them now. Raises BufferUnusable."""
        found: dict[TopicPartition, PartitionMap] = {}
        for store in stores:
            lane = self._lanes.setdefault(store, LaneMaps(Ledger(store)))
            lane.refresh(topics)
            found |= lane.maps
        return found
