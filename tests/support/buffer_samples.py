"""Facts the buffer's tests are made of."""

from __future__ import annotations

from dataclasses import dataclass

from mirror_pipeline.buffer.spans.part_writer import SpanDraft
from mirror_pipeline.model import HoleCause, Incarnation, Send

LIFE = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True)
class Settings:
    uri: str
    lease: float = 30.0


def draft(start: int, end: int, *, topic: str = "orders", partition: int = 0, incarnation: str = LIFE) -> SpanDraft:
    return SpanDraft(topic, partition, incarnation, start, end, end - start, 1, 1_000 + start, 2_000 + end)


def send(start: int, end: int, *, topic: str = "orders", partition: int = 0, ordinal: int | None = None, target: int | None = None) -> Send:
    first = start if target is None else target
    put = start if ordinal is None else ordinal
    return Send(topic, partition, LIFE, start, end, f"east.{topic}", first, first + end - start, end - start, put, 0)


def hole(start: int, end: int, *, ordinal: int, target: int, cause: HoleCause = HoleCause.MARKER) -> Send:
    return Send("orders", 0, LIFE, start, end, "east.orders", target, target, 0, ordinal, 0, cause)


def life(starts: dict[int, int], *, topic: str = "orders", incarnation: str = LIFE, at: int = 1_000) -> Incarnation:
    return Incarnation(topic, incarnation, "east-id", "west-id", f"east.{topic}", "target-id", starts, dict(starts), at)
