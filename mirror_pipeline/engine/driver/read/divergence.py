"""Is the source's log still the one that was read before? Recreated topics, truncation, unclean leader elections.

A truncated log that has grown again past the position looks healthy by its offsets alone. But the batch that was read
last is then another one, or not there: the leader epoch it was written under (KIP-101, KIP-320) and its CRC tell.

Nothing halts by one answer. A broker that was paused still takes itself for the leader for a moment, one that has not heard
of a change yet tells old metadata, and an answer may be older than what was read since. So whoever sees a log that ends too
early, or another topic id, waits ``SECOND_LOOK_SECONDS``, forgets the leaders it knows, and asks again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mirror_pipeline.halts import Halt, recreated, rewritten, truncated
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.codes import broker_error
from mirror_pipeline.kafka.fetch import fetch
from mirror_pipeline.kafka.offsets import offsets_at
from mirror_pipeline.kafka.records.batch import BatchHeader, headers
from mirror_pipeline.model import BatchMark, TopicPartition, topic_id_of

LOG_LOOK_BYTES = 64 * 1024
# A resumed broker learns within a few heartbeats that it does not lead any more; brokers hear of metadata within milliseconds.
SECOND_LOOK_SECONDS = 1.5


def cut_off(
    client: WireClient, staged: Mapping[TopicPartition, int], known: Mapping[str, str], *, within: float | None = None
) -> list[Halt]:
    """The second look at logs that seemed to end before ``staged``: the halts of those that do, by answers asked for now.

    ``known`` are the incarnations that were read: a topic that was recreated since is said to be that.

    Only ListOffsets can tell: after a leader change it is refused until the new leader knows how far its replicas are
    (KIP-207), while a fetch names an end that lags. A partition that cannot be asked is left for another time.

    Raises:
        ConnectionLost, ClusterUnreachable: the source cannot be asked now.
    """
    for source in staged:
        client.forget(source)
    answers = client.list_offsets(dict.fromkeys(staged, LATEST_TIME), isolation=1, within=within)
    below = {tp: answer.offset for tp, answer in answers.items() if not answer.error and 0 <= answer.offset < staged[tp]}
    return of_same_topic(client, known, [truncated(tp, end, staged[tp]) for tp, end in below.items()])


def of_same_topic(client: WireClient, known: Mapping[str, str], halts: Iterable[Halt]) -> list[Halt]:
    """Halts for what a log holds, with one for each recreated topic in place of its own: another topic's log proves nothing.

    The ids are asked for after the log, because an id never comes back. Halts of topics that cannot be asked are left out.

    Raises:
        ClusterUnreachable: no broker answers.
    """
    found = list(halts)
    ids = _topic_ids(client, {halt.topic for halt in found})
    other = _others(known, ids)
    same = [halt for halt in found if halt.topic in ids and halt.topic not in other]
    return [*(recreated(name, known[name], topic_id) for name, topic_id in other.items()), *same]


def other_ids(client: WireClient, known: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Topic ids, by topic, that are not those of the ``known`` incarnations; topics that cannot be asked are left out.

    Raises:
        ClusterUnreachable: no broker answers.
    """
    return _others(known, _topic_ids(client, names))


def _others(known: Mapping[str, str], ids: Mapping[str, str]) -> dict[str, str]:
    return {name: topic_id for name, topic_id in ids.items() if topic_id != topic_id_of(known[name])}


def _topic_ids(client: WireClient, names: Collection[str]) -> dict[str, str]:
    found = client.metadata(sorted(names)).topics if names else {}
    return {name: found[name].topic_id for name in names if name in found and not found[name].error}


def diverged(
    client: WireClient, source: TopicPartition, mark: BatchMark, staged: int, *, compacted: bool, within: float | None = None
) -> Halt | None:
    """Look for the batch read last in the source's log as it is now; the halt when it is not there any more.

    Args:
        client: the source.
        source: the partition.
        mark: the batch read last.
        staged: next source offset to read.
        compacted: the cleaner may have rewritten or removed the batch; then only its epoch can tell.
        within: seconds for each answer, which is then asked for once.

    Raises:
        BrokerError, ConnectionLost, ClusterUnreachable: the source cannot be asked now.
    """
    answer = client.epoch_ends({source: mark.epoch}, within=within)[source]
    if answer.error:
        client.forget(source)
        raise broker_error(answer.error, str(source))
    if 0 <= answer.offset <= mark.offset:  # where a killed run read on after its last report, the mark is older than what was staged
        return truncated(source, answer.offset, staged)
    start, end = (offsets_at(client, [source], at, isolation=0, within=within)[source] for at in (EARLIEST_TIME, LATEST_TIME))
    if mark.offset < start:
        return None  # deleted meanwhile: nothing is left to compare with
    if end < staged:
        return truncated(source, end, staged)
    found = _batch_at(client, source, mark.offset, within)
    if found is not None and found.base_offset == mark.offset:
        same = found.crc == mark.crc or (compacted and found.leader_epoch == mark.epoch)
        return None if same else rewritten(source, mark.offset, staged)
    return None if compacted else rewritten(source, mark.offset, staged)


def _batch_at(client: WireClient, source: TopicPartition, offset: int, within: float | None) -> BatchHeader | None:
    connection = client.connection(client.leader(source))
    if within is not None:
        connection.limit(within)
    data = fetch(connection, {source: (offset, LOG_LOOK_BYTES)}, max_wait_ms=0, min_bytes=0, max_bytes=LOG_LOOK_BYTES, isolation=0)[source]
    if data.error:
        client.forget(source)
        raise broker_error(data.error, str(source))
    return next((header for _, header in headers(data.records) if header.next_offset > offset), None)
