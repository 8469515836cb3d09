"""Offsets of partitions where an error of any of them ends the question."""

from __future__ import annotations

from collections.abc import Iterable

from mirror_pipeline.model import TopicPartition
from mirror_pipeline.wire.client import WireClient
from mirror_pipeline.wire.codes import broker_error


def offsets_at(client: WireClient, parts: Iterable[TopicPartition], at: int, *, isolation: int = 1) -> dict[TopicPartition, int]:
    """:meth:`WireClient.list_offsets` for one time and all of ``parts``.

    Raises:
        BrokerError: a partition's leader refuses to tell.
    """
    wanted = dict.fromkeys(parts, at)
    answers = client.list_offsets(wanted, isolation=isolation) if wanted else {}
    for tp, answer in answers.items():
        if answer.error:
            raise broker_error(answer.error, str(tp))
    return {tp: answer.offset for tp, answer in answers.items()}
