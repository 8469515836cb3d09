"""Which spans of the buffer to compare next: produced, not verified yet, within a budget. Reads ledger rows only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mirror_pipeline.buffer.ledger.ledger import Ledger
from mirror_pipeline.buffer.spans.eviction import SpanKey
from mirror_pipeline.model import Incarnation, SpanRef, Verdict

Generations = Mapping[tuple[str, str], Incarnation]
"""Generations of topics, past ones too: what was staged of them is still compared."""
Lost = tuple[SpanKey, int, int]
"""Source offsets of a partition that left the buffer unverified."""


def choose_spans(
    live: Sequence[SpanRef], ledger: Ledger, generations: Generations, verified: Mapping[SpanKey, int], budget: int
) -> tuple[dict[SpanKey, list[SpanRef]], list[Lost]]:
    """Produced spans that are not verified yet, in order, within the budget; and offset ranges before them that are gone."""
    chosen: dict[SpanKey, list[SpanRef]] = {}
    lost: list[Lost] = []
    starts = {(t, p, i): start for (t, i), generation in generations.items() for p, start in generation.starts.items()}
    begun = {key: verified.get(key, start) for key, start in starts.items()}
    reached, stuck = ledger.reached(), _stuck(ledger)
    waiting = [span for span in live if begun.get(_key(span), span.end) < span.end <= reached.get(_key(span), -1)]
    affordable = _affordable([span for span in waiting if _key(span) not in stuck] or waiting, budget)
    for span in waiting:
        key = _key(span)
        if span.micro_batch > affordable:
            continue
        done = chosen.setdefault(key, [])
        at = done[-1].end if done else begun[key]
        if span.start > at:  # evicted by a version that did not verify, or by hand
            lost.append((key, at, span.start))
        done.append(span)
    return chosen, lost


def _key(span: SpanRef) -> SpanKey:
    return (span.topic, span.partition, span.incarnation)


def _stuck(ledger: Ledger) -> set[SpanKey]:
    """Partitions that differed when they were looked at last: they must not use up the budget of the others."""
    latest = {(row.topic, row.partition, row.incarnation): row.verdict for row in ledger.verifications()}
    return {key for key, verdict in latest.items() if verdict is Verdict.DIFFERENT}


def _affordable(waiting: Iterable[SpanRef], budget: int) -> int:
    """The last micro-batch that the budget allows; at least the first one."""
    sizes: dict[int, int] = {}
    for span in waiting:
        sizes[span.micro_batch] = sizes.get(span.micro_batch, 0) + span.bytes
    last, spent = -1, 0
    for number in sorted(sizes):
        spent += sizes[number]
        if spent > budget and last >= 0:
            break
        last = number
    return last
