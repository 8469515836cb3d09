"""Translate offsets between the two sides of a mirror, by the ledger; the clusters are asked for times and log starts only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirror_pipeline.buffer.ledger.translation import (
    GenerationMap,
    OffsetState,
    PartitionMap,
    Translated,
    empty_maps,
    extend_maps,
)
from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.errors import BrokerError, ClusterUnreachable, UsageError
from mirror_pipeline.flow import Flow
from mirror_pipeline.kafka.answers import EARLIEST_TIME, LATEST_TIME
from mirror_pipeline.kafka.client import WireClient
from mirror_pipeline.kafka.offsets import offsets_at, offsets_or_errors
from mirror_pipeline.model import TopicPartition
from mirror_pipeline.operations.state.buffer_status import ledger_of
from mirror_pipeline.reports import MappedRange, Translation
from mirror_pipeline.text import SHOWN_NAMES, instant, plural

Maps = dict[int, PartitionMap]


@dataclass(frozen=True, slots=True)
class TranslationQuestion:
    """Which offset of a topic is asked for: ``offset``, or the first record at or after ``at`` (milliseconds since the epoch)."""

    topic: str
    partition: int | None = None
    offset: int | None = None
    at: int | None = None
    reverse: bool = False
    generation: int | None = None

    def check(self) -> None:
        """Raises UsageError for a question that has no answer."""
        if (self.offset is None) == (self.at is None):
            raise UsageError("name an offset or a time", hint="one of --offset N and --time T")
        if self.offset is not None and self.offset < 0:
            raise UsageError(f"offset {self.offset} is negative", hint="offsets count from 0")


def maps_of(store: LaneStore, topics: Iterable[str] | None = None) -> dict[TopicPartition, PartitionMap]:
    """The offset maps of a lane's topics, or of some of them. Raises BufferUnusable."""
    ledger = ledger_of(store)
    wanted = None if topics is None else set(topics)
    maps = empty_maps(g for g in ledger.generations().values() if wanted is None or g.topic in wanted)
    starts = {
        (tp.topic, tp.partition, part.generation.incarnation): part.source_start - 1 for tp, own in maps.items() for part in own.generations
    }
    extend_maps(maps, ledger.sends_after(starts))
    return maps


def translate(flow: Flow, question: TranslationQuestion) -> tuple[Translation, ...]:
    """See ``Mirror.translate``."""
    question.check()
    maps = _partitions(question, _found(flow, question))
    offsets = _asked(flow, question, maps)
    ways = {number: own.to_source if question.reverse else own.to_target for number, own in maps.items()}
    answers = {number: ways[number](offset, question.generation) for number, offset in offsets.items()}
    starts, unknown = _log_starts(flow, question, maps, answers)
    return tuple(_report(flow, question, maps[n], n, offsets[n], answers[n], starts.get(n, 0), unknown) for n in sorted(answers))


def show(flow: Flow, topic: str | None = None) -> tuple[MappedRange, ...]:
    """See ``Mirror.offset_map``."""
    rows = []
    for store in flow.lane_stores():
        for tp, own in sorted(maps_of(store, None if topic is None else [topic]).items()):
            for part in own.generations:
                generation = part.generation
                rows.append(
                    MappedRange(
                        flow.name, tp.topic, generation.target_topic, tp.partition, part.number, part is own.generations[-1],
                        generation.at, part.source_start, part.source_end, part.target_start, part.target_end,
                        sum(part.runs.length), len(part.runs.source),
                    )
                )  # fmt: skip
    if topic is not None and not rows:
        raise _unknown(flow, topic)
    return tuple(sorted(rows, key=lambda row: (row.topic, row.partition, row.generation)))


def _found(flow: Flow, question: TranslationQuestion) -> Maps:
    """The maps of the topic, named by its name on the source, or on the target for the way back."""
    for store in flow.lane_stores():
        generations = ledger_of(store).generations().values()
        names = {g.topic for g in generations if g.topic == question.topic} or {
            g.topic for g in generations if question.reverse and g.target_topic == question.topic
        }
        if names:
            return {tp.partition: found for tp, found in maps_of(store, names).items()}
    raise _unknown(flow, question.topic)


def _unknown(flow: Flow, topic: str) -> UsageError:
    known = sorted({g.topic for store in flow.lane_stores() for g in ledger_of(store).incarnations().values()})
    more = f" and {plural(len(known) - SHOWN_NAMES, 'more topic')}" if len(known) > SHOWN_NAMES else ""
    hint = f"it has copied {', '.join(known[:SHOWN_NAMES])}{more}" if known else "it has not copied anything yet: `mirror run`"
    return UsageError(f"mirror {flow.name} has not copied a topic {topic!r}", hint=hint)


def _partitions(question: TranslationQuestion, maps: Maps) -> Maps:
    if question.partition is not None and question.partition not in maps:
        raise UsageError(
            f"{question.topic} has no partition {question.partition} that was copied", hint=f"it has {min(maps)} to {max(maps)}"
        )
    if question.partition is None and question.offset is not None and len(maps) > 1:
        raise UsageError(f"an offset of which partition? {question.topic} has {len(maps)}", hint="name one with --partition")
    chosen = maps if question.partition is None else {question.partition: maps[question.partition]}
    wanted = question.generation
    known = {part.number for own in maps.values() for part in own.generations}
    if wanted is not None and wanted not in known:
        raise UsageError(f"{question.topic} has no generation {wanted}", hint=f"it has 1 to {max(known)}; see `mirror offsets show`")
    return {n: own for n, own in chosen.items() if wanted is None or any(part.number == wanted for part in own.generations)}


def _generation(own: PartitionMap, number: int | None) -> GenerationMap:
    return next((part for part in own.generations if part.number == number), own.generations[-1])


def _topic(question: TranslationQuestion, own: PartitionMap, *, target: bool) -> str:
    generation = _generation(own, question.generation).generation
    return generation.target_topic if target else generation.topic


def _asked(flow: Flow, question: TranslationQuestion, maps: Maps) -> dict[int, int]:
    """The offset asked for in each partition; for a time, the first record at or after it, or the log's end."""
    if question.at is None:
        assert question.offset is not None  # noqa: S101 - checked
        return dict.fromkeys(maps, question.offset)
    places = {TopicPartition(_topic(question, own, target=question.reverse), n): n for n, own in maps.items()}
    _refuse_past(question, maps)
    with flow.target_client() if question.reverse else flow.source_client() as client:
        found = offsets_at(client, places, question.at)
        late = [tp for tp, offset in found.items() if offset < 0]
        found |= offsets_at(client, late, LATEST_TIME)
    return {places[tp]: offset for tp, offset in found.items()}


def _refuse_past(question: TranslationQuestion, maps: Maps) -> None:
    """A broker finds times in the log that it has now."""
    last = max(own.generations[-1].number for own in maps.values())
    if question.generation is not None and question.generation != last and not question.reverse:
        raise UsageError(
            f"generation {question.generation} of {question.topic} has ended: its log cannot be searched by time", hint="name an --offset"
        )


def _log_starts(flow: Flow, question: TranslationQuestion, maps: Maps, answers: dict[int, Translated]) -> tuple[dict[int, int], str]:
    """First offsets of the partitions that the answers are in, where it is still the same log; and which cluster did not answer."""
    places = {}
    for number, answer in answers.items():
        part = _generation(maps[number], answer.generation)
        if answer.offset is not None:
            topic = part.generation.topic if question.reverse else part.generation.target_topic
            places[TopicPartition(topic, number)] = part.generation.topic_id if question.reverse else part.generation.target_topic_id
    side = flow.settings.source if question.reverse else flow.settings.target
    if not places:
        return {}, ""
    try:
        with flow.source_client() if question.reverse else flow.target_client() as client:
            return _starts(client, places), ""
    except ClusterUnreachable:
        return {}, f"cluster {side} does not answer: its log may start later"


def _starts(client: WireClient, places: dict[TopicPartition, str]) -> dict[int, int]:
    known = client.metadata({tp.topic for tp in places}).topics
    same = [tp for tp, topic_id in places.items() if tp.topic in known and known[tp.topic].topic_id == topic_id]
    found = offsets_or_errors(client, same, EARLIEST_TIME)
    return {tp.partition: offset for tp, offset in found.items() if not isinstance(offset, BrokerError)}


def _report(
    flow: Flow, question: TranslationQuestion, own: PartitionMap, number: int, asked: int, answer: Translated, log_start: int, unknown: str
) -> Translation:
    part = _generation(own, answer.generation)
    state, found = answer.state, answer.offset
    note = _note(question, part, asked, answer)
    if found is not None and found < log_start:
        here = flow.settings.source if question.reverse else flow.settings.target
        note = f"{found} has been deleted on {here}; its log starts at {log_start}"
        state, found = OffsetState.BELOW_LOG_START, log_start
    later = next((other.generation.at for other in own.generations if other.number > answer.generation), None)
    past = ""
    if question.reverse and question.generation is None and later is not None:
        past = f"generation {answer.generation} of the topic, until {instant(later)}"
    return Translation(
        flow.name,
        part.generation.topic,
        part.generation.target_topic,
        number,
        answer.generation,
        found if question.reverse else asked,
        asked if question.reverse else found,
        state.value,
        "; ".join(text for text in (note, past, unknown) if text),
    )


def _note(question: TranslationQuestion, part: GenerationMap, asked: int, answer: Translated) -> str:
    end = part.target_end if question.reverse else part.source_end
    start = part.target_start if question.reverse else part.source_start
    return {
        OffsetState.SKIPPED: "no record was copied from this offset; the next one that was",
        OffsetState.BEFORE_START: f"the copy begins at {start}",
        OffsetState.END: "the end of what is copied; the next record goes there",
        OffsetState.NOT_THERE_YET: f"not there yet: copied up to {end}",
        OffsetState.ENDED: f"generation {part.number} ended at {end}",
    }.get(answer.state, "")
