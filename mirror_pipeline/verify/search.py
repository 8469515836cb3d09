"""Pass two of an alignment: which of some records occur in a stream, without opening every batch of it. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from mirror_pipeline.kafka.records.batch import content
from mirror_pipeline.verify.pieces import Piece, Trace, digest

# Pass two opens so many batches at first, and then every so-manieth, to learn how far times go back inside a batch.
FIRST_SAMPLES = 16
SAMPLE_EVERY = 256


def find_digests(pieces: Iterable[Piece], wanted: Iterable[Trace]) -> set[bytes]:
    """Which of the wanted records occur in a stream (pass two).

    A batch is opened when one of the wanted times lies between its base and its newest time. Records may be older than
    their batch's base time; how much older is learned from the batches that are opened, some of which are samples.
    """
    left: dict[int, set[bytes]] = {}
    for want in wanted:
        left.setdefault(want.timestamp, set()).add(want.digest)
    times = sorted(left)
    found: set[bytes] = set()
    disorder = 0
    for number, piece in enumerate(pieces):
        header = piece.header
        sampled = number < FIRST_SAMPLES or number % SAMPLE_EVERY == 0 or header.magic < 2 or header.log_append_time or piece.timeless
        if not sampled and bisect_left(times, header.base_timestamp - disorder) == bisect_right(times, header.max_timestamp):
            continue
        for record in piece.opened():
            disorder = max(disorder, header.base_timestamp - record.timestamp)
            marks = left.get(record.timestamp)
            if marks and (mark := digest(content(record))) in marks:
                found.add(mark)
    return found
