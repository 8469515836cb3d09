"""Several brokers of a model source: each leads some of the partitions, leadership moves, and not everyone has heard of it."""

from __future__ import annotations

from collections import defaultdict

from mirror_pipeline.kafka.answers import OffsetAnswer
from mirror_pipeline.model import TopicPartition
from tests.model.broker import NOT_LEADER, SEEN
from tests.model.cluster import ModelCluster
from tests.model.processes import Clock

NETWORK_EXCEPTION, OFFSET_NOT_AVAILABLE = 13, 78
LAG_MOST = 3
"""How many of the last appends a new leader's high watermark may not know of."""


class SeveralBrokers(ModelCluster):
    """Every answer to a question that is held open is of the moment in which its broker found something to say.

    Nothing is ever cut off here, so no halt ``truncated`` may come of it. A *former* leader that has not heard of its successor
    answers from its log as it was; a *new* one answers fetches with a high watermark that lags behind what was committed, and
    ListOffsets not at all until it has caught up (KIP-207).
    """

    at_once = False
    nodes = (1, 2, 3)

    def __init__(self, clock: Clock, alias: str, topic: str, partitions: int, topic_id: str) -> None:
        super().__init__(clock, alias, topic, partitions, topic_id)
        self.silent: set[int] = set()
        self.stable: dict[TopicPartition, list[int]] = {tp: [0] for tp in self.logs}
        self.epochs: dict[TopicPartition, list[int]] = {tp: [0] for tp in self.logs}
        self._led = {tp: self.nodes[tp.partition % len(self.nodes)] for tp in self.logs}
        self._former: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        self._lags: dict[TopicPartition, int] = {}
        self._moves = 0

    def leader_of(self, tp: TopicPartition) -> int:
        return self._led[tp]

    def appended(self, tp: TopicPartition) -> None:
        """The log has grown by something whole: a transaction with its marker."""
        self.stable[tp].append(self.logs[tp].end)

    def watermark(self, tp: TopicPartition, node: int) -> tuple[int, int]:
        if node == self._led[tp]:
            return self._lags.get(tp, self.logs[tp].replicated), self.logs[tp].end
        end = self._former[tp].get(node, -1)
        return end, end

    def offset_told(self, tp: TopicPartition, node: int, when: int) -> OffsetAnswer:
        told, _ = self.watermark(tp, node)
        lags = node == self._led[tp] and tp in self._lags
        error = NETWORK_EXCEPTION if node in self.silent else NOT_LEADER if told < 0 else OFFSET_NOT_AVAILABLE if lags else 0
        return OffsetAnswer(-1, -1, error) if error else OffsetAnswer(0 if when == -2 else told, -1, 0)

    def epoch_end(self, tp: TopicPartition, epoch: int) -> int:
        return [*self.epochs[tp][1:], self.logs[tp].end][epoch]

    def move(self, *, lags: bool = False, unaware: bool = False) -> None:
        """The next broker leads one of the partitions; the last one has not heard of it when it is ``unaware``."""
        self._moves += 1
        tp = sorted(self.logs)[self._moves % len(self.logs)]
        before = self._led[tp]
        after = self.nodes[before % len(self.nodes)]
        if unaware:
            self._former[tp][before] = self.watermark(tp, before)[0]
        self._former[tp].pop(after, None)
        self._led[tp] = after
        self.epochs[tp].append(self.logs[tp].end)
        if lags:
            self._lags[tp] = self.stable[tp][-LAG_MOST:][0]
        SEEN["source leader moved"] += 1

    def agree(self) -> None:
        """All have heard of everything, and have caught up."""
        self._former.clear()
        self._lags.clear()

    def hush(self) -> None:
        """One more broker does not answer, the one that leads the first partition."""
        self.silent.add(self._led[min(self.logs)])
        SEEN["source broker silent"] += 1
