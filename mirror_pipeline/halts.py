"""Every reason for which a topic halts: one function each, with its code, message and hint; and which halts can be accepted.

A code never changes; docs/troubleshooting.md explains each. Halts of topics whose copy cannot begin have no code.
Those whose cause lies on a cluster are tried ``again`` within the run; those that protect data wait for an operator.

Over 300 lines: all halts stand in one file.
"""

from __future__ import annotations

import logging
import shlex
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mirror_pipeline.errors import BrokerError, MirrorError, TopicHalted
from mirror_pipeline.model import DecisionKind, TopicPartition, topic_id_of
from mirror_pipeline.text import instant

log = logging.getLogger(__name__)

ACCEPTABLE: dict[str, DecisionKind] = {
    "trimmed": DecisionKind.GAP,
    "unexplained_hole": DecisionKind.GAP,
    "oversize": DecisionKind.GAP,
    "corrupt": DecisionKind.GAP,
    "recreated": DecisionKind.RECREATED,
    "truncated": DecisionKind.TRUNCATED,
    "target_recreated": DecisionKind.TARGET,
    "target_truncated": DecisionKind.TARGET,
    "source_gone": DecisionKind.SOURCE_GONE,
}
"""Halts that `mirror resolve` can end, and the decision that it records."""

MEANING = {
    "trimmed": "leave out what the source has deleted, and record it as a gap",
    "unexplained_hole": "leave out the missing source offsets, and record them as a gap",
    "oversize": "leave the record out, keep it in the quarantine table, and record a gap",
    "corrupt": "leave the damaged batch out, keep its bytes in the quarantine table, and record a gap",
    "recreated": "append the records of the new source topic after those of the old one",
    "truncated": "continue where the source's log ends now; what was copied beyond it stays on the target, recorded as a gap",
    "target_recreated": "copy everything again, into the target topic as it is now (it must be empty)",
    "target_truncated": "copy everything again, into the target topic as it is now (it must be empty)",
    "source_gone": "leave the topic out of the mirror; what was deleted before it was read is recorded as a gap",
}
"""What accepting a halt means, in words."""

PROMOTED = "promoted"
"""The code, and the state in `lag` and `status`, of a topic that was handed over to applications."""
STANDBY = "standby"
"""The same of a topic whose other direction is in effect."""
DIRECTED = (PROMOTED, STANDBY)
"""Halts that `mirror failback` ends."""
PAUSED = "paused"
"""The code, and the state in `lag` and `status`, of a topic that an operator has paused."""
LEFT_ALONE = (*DIRECTED, PAUSED)
"""Halts that are in order: no run is started for such topics, and none fails because of them."""
ENDED = "ended"
"""The code, and the state in `lag` and `status`, of a topic that was deleted on the source and whose copy is kept, or deleted too."""
GONE = ("source_gone", ENDED)
"""Codes of topics that were deleted on the source."""
OF_LOG = frozenset({"trimmed", "unexplained_hole", "oversize", "corrupt", "truncated"})
"""Codes of halts for what the source's log holds: they end where the topic turns out to be another one, or gone."""
OF_TOPIC = frozenset({"recreated", "other_cluster", *GONE})
"""Codes of halts for what the source topic is."""
FENCED = ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
"""Refusals that say that another run writes in this one's place."""
RECORD_GAP = "with `on_loss: record_gap` the run records the gap and continues"
FILLED_HINT = (
    "was the buffer moved or deleted? It holds the ledger: point buffer.uri at it again, or restore it as it was after the last run;"
    " without it `mirror adopt` continues a topic that holds a copy; or mirror under another target name (`naming`), or delete the"
    " target topic: the copy then starts over"
)
UNPROVEN_HINT = (
    "was the buffer moved or deleted? Point buffer.uri at it again; or mirror under another target name (`naming`), or delete the target"
    " topic: the copy then starts over"
)
CLAIMED_HINT = "use `naming: prefix`, select the topic in one of the two mirrors only, or write `writers: shared` in both"


@dataclass(frozen=True, slots=True)
class Halt:
    """Why one topic cannot continue; the others do. Plain values: it crosses into Spark's workers and back.

    ``code`` is a short stable word for the reason, ``span`` the source offsets it is about, ``trace`` the traceback of an
    internal error. ``again``: the cause may pass without us, so a run tries the topic again. What a target task reports names the
    target's partition until :meth:`at` names the source's.
    """

    topic: str
    message: str
    hint: str = ""
    code: str = ""
    partition: int | None = None
    span: tuple[int, int] | None = None
    trace: str = ""
    again: bool = False

    @property
    def state(self) -> str:
        """The topic's state: ``halted``, or the code of a halt that is in order, such as ``promoted``."""
        return self.code if self.code in (*LEFT_ALONE, ENDED) else "halted"

    def at(self, source: TopicPartition) -> Halt:
        """The same halt, of a source partition."""
        return replace(self, topic=source.topic, partition=source.partition)

    def error(self) -> TopicHalted:
        """The exception that carries this halt."""
        return TopicHalted(self)


def _at(
    place: TopicPartition, code: str, message: str, hint: str, span: tuple[int, int] | None = None, *, again: bool = False
) -> Halt:
    return Halt(place.topic, message, hint, code, place.partition, span, again=again)


# The source.


def trimmed(source: TopicPartition, start: int, end: int) -> Halt:
    """The source deleted offsets before they were copied: retention or DeleteRecords was faster."""
    message = f"the source deleted offsets [{start}, {end}) of {source} before they were copied"
    return _at(source, "trimmed", message, RECORD_GAP, (start, end))


def unexplained_hole(source: TopicPartition, start: int, end: int, settings_unread: str = "") -> Halt:
    """The source's log skips offsets without a known reason; ``settings_unread``: why compaction cannot be ruled out."""
    missing = f"source offsets [{start}, {end}) of {source} are missing"
    if settings_unread:
        message = f"{missing}, and whether the topic is compacted is unknown: {settings_unread}"
        return _at(source, "unexplained_hole", message, f"grant DESCRIBE_CONFIGS on the topic; {RECORD_GAP}", (start, end))
    message = f"{missing} and the topic is not compacted"
    return _at(source, "unexplained_hole", message, f"was the topic compacted before? {RECORD_GAP}", (start, end))


def oversize(source: TopicPartition, offset: int, max_batch_bytes: int, error: MirrorError) -> Halt:
    """A single record does not fit into any batch that the target topic takes."""
    message = (
        f"the record of {source} at offset {offset} is larger than the target topic's"
        f" max.message.bytes ({max_batch_bytes}): {error.message}"
    )
    hint = "raise max.message.bytes on the target topic and run again"
    return _at(source, "oversize", message, hint, (offset, offset + 1))


def corrupt(source: TopicPartition, start: int, end: int, error: MirrorError) -> Halt:
    """A batch of the source fails its checksum; ``end`` is the next healthy batch."""
    return _at(source, "corrupt", f"{source} at offset {start}: {error.message}", _damaged("source"), (start, end), again=True)


def unreadable(place: TopicPartition, offset: int, error: MirrorError, *, cluster: str) -> Halt:
    """What a log of the ``cluster`` ("source" or "target") holds at an offset cannot be read."""
    return _at(place, "unreadable", f"{place} at offset {offset}: {error.message}", _damaged(cluster), again=True)


def _damaged(cluster: str) -> str:
    return f"the {cluster}'s log is damaged there, or a proxy changed the bytes; check the broker's disk"


def truncated(source: TopicPartition, end: int, staged: int) -> Halt:
    """The source's log ends before the next offset to copy."""
    return _truncated(source, f"{source} ends at offset {end}, before the next offset to copy ({staged})", "was truncated", (end, staged))


def rewritten(source: TopicPartition, offset: int, staged: int) -> Halt:
    """The source's log holds another batch than the one that was read last."""
    message = f"{source} holds other records at offset {offset} than those that were copied"
    return _truncated(source, message, "was truncated and written again", (offset, staged))


def _truncated(source: TopicPartition, seen: str, what: str, span: tuple[int, int]) -> Halt:
    message = f"{seen}: the source's log {what} (unclean leader election?)"
    return _at(source, "truncated", message, "compare both sides with `mirror verify`", span)


def recreated(topic: str, incarnation: str, topic_id: str) -> Halt:
    """The source topic has another topic id than the ``incarnation`` that was copied."""
    return Halt(
        topic,
        f"source topic {topic} was recreated: its topic id is {topic_id}, the copy so far is of {topic_id_of(incarnation)}",
        "the target holds the old topic's records; mirror the new topic under another target name, or append its records",
        "recreated",
    )


def source_gone(topic: str, alias: str, *, deletes: bool = False, kept: str = "") -> Halt:
    """The source topic was deleted, or is hidden from this user.

    ``deletes``: a run will delete its copy, if nothing speaks against it (`topics.on_source_delete: delete`); ``kept``: what does.
    """
    message = f"source topic {topic} does not exist any more on cluster {alias}, or this user may not see it"
    if kept:
        message += f"; its copy is not deleted: {kept}"
    hint = "was it deleted? What was read of it is delivered, and its copy stays; exclude it from the mirror, or create it again"
    if deletes or kept:
        hint = "the next run deletes its copy, if all of it is delivered and verified by then; or exclude the topic from the mirror"
    return Halt(topic, message, hint, "source_gone")


def gone(topic: str, alias: str, policy: str) -> Halt:
    """What a topic that was deleted on the source halts with, by the mirror's ``topics.on_source_delete``."""
    return ended(topic, alias) if policy == "keep" else source_gone(topic, alias, deletes=policy == "delete")


def copy_deleted(topic: str, target_topic: str, alias: str) -> Halt:
    """The source topic was deleted, and `topics.on_source_delete` has deleted its copy."""
    message = f"source topic {topic} was deleted, and its copy {target_topic} on cluster {alias} too (topics.on_source_delete: delete)"
    return Halt(topic, message, "nothing is to be done; created again, it is copied anew", ENDED)


def ended(topic: str, alias: str) -> Halt:
    """The source topic was deleted, and `topics.on_source_delete` keeps its copy."""
    message = f"source topic {topic} was deleted on cluster {alias}: its copy is kept (topics.on_source_delete: keep)"
    return Halt(topic, message, "nothing is to be done; exclude it from the mirror to see it no more", ENDED)


def source_missing(topic: str) -> Halt:
    """A source topic that was selected does not exist; nothing of it was copied."""
    return Halt(topic, f"source topic {topic} does not exist", "check its name, and that this user may describe it")


def other_cluster(topic: str, alias: str, known_id: str, cluster_id: str) -> Halt:
    """The source's alias leads to another cluster than before."""
    return Halt(
        topic,
        f"cluster {alias} is another cluster than before: its id is {cluster_id}, {topic} was copied from {known_id}",
        "check bootstrap_servers; a new cluster needs a new mirror name",
        "other_cluster",
    )


def renamed(topic: str, known: str, configured: str) -> Halt:
    """The configuration has changed the target topic's name."""
    return Halt(
        topic,
        f"{topic} has been mirrored to {known} so far, the configuration now says {configured}",
        f"set `naming` back for it, e.g. {{map: {{{topic}: {known}}}}}, or give the mirror a new name to start over",
        "renamed",
    )


# Names on the target.


def unnamable(topic: str, name: str, problem: str) -> Halt:
    """A topic's name on the target would not be legal."""
    hint = "choose another naming, or exclude the topic"
    return Halt(topic, f'topic {topic} would be named "{name}" on the target, which {problem}', hint)


def colliding(topic: str, target_topic: str, alias: str, other: str) -> Halt:
    """Two topics of one mirror would be copied into one target topic."""
    message = (
        f"target topic {target_topic} on cluster {alias} would get the records of two topics:"
        f" {other} of this mirror and {topic} of this mirror"
    )
    return Halt(topic, message, "give them different names by `naming`, or exclude one of them")


def looping(topic: str, circle: Sequence[str], *, begun: bool) -> Halt:
    """A topic would come back through these mirrors to the one that first copied it; ``begun``: all of them have copied it."""
    hint = "use naming: prefix in these mirrors, or exclude the topic in one of them"
    return Halt(topic, f"topic {topic} would loop forever: {' -> '.join(circle)}", hint, "loop" if begun else "")


# Failover.


def promoted(topic: str, target_topic: str, alias: str, by: str, at: int) -> Halt:
    """The copy was handed over to applications; ``at`` in milliseconds since the epoch."""
    message = f"{target_topic} on cluster {alias} was promoted at {instant(at)} by {by}: applications write there, and it is not copied to"
    return Halt(topic, message, "`mirror failback` leads back", PROMOTED)


def paused(topic: str, by: str, at: int) -> Halt:
    """An operator has paused the topic, or its mirror; ``at`` in milliseconds since the epoch."""
    return Halt(topic, f"{topic} was paused at {instant(at)} by {by}", "`mirror resume` continues it", PAUSED)


def written_by_reverse(topic: str, mirror: str) -> Halt:
    """The mirror in the other direction writes this topic."""
    message = f"mirror {mirror} copies into {topic}: copying it back would loop"
    return Halt(topic, message, f"`mirror failover {mirror}` ends that, then `mirror failback {mirror}` opens this direction", STANDBY)


def standing_by(topic: str, mirror: str, forward: str) -> Halt:
    """A reverse mirror whose other direction is in effect."""
    message = f"mirror {mirror} is the reverse of {forward}, which is in effect for {topic}"
    return Halt(topic, message, f"`mirror failback {forward}` opens it after a failover", STANDBY)


# The target.


def other_target_cluster(topic: str, alias: str, known_id: str, cluster_id: str) -> Halt:
    """The target's alias leads to another cluster than before."""
    return Halt(
        topic,
        f"cluster {alias} is another cluster than before: its id is {cluster_id}, {topic} was copied to {known_id}",
        "check bootstrap_servers; a new target cluster needs a new mirror name",
        "other_target_cluster",
        again=True,
    )


def target_gone(topic: str, target_topic: str, error: BrokerError) -> Halt:
    """The target topic does not exist any more."""
    hint = "was it deleted? Create it again and accept it, or mirror into a new target topic"
    return Halt(topic, f"target topic {target_topic} cannot be used any more: {error.name}", hint, "target_gone", again=True)


def target_recreated(topic: str, target_topic: str, known_id: str, topic_id: str) -> Halt:
    """The target topic has another topic id than the one that the copy went to."""
    message = f"target topic {target_topic} was recreated: its topic id is {topic_id}, the copy went to {known_id}"
    return Halt(topic, message, "mirror into a new target topic, or start over in this one", "target_recreated")


def target_truncated(target: TopicPartition, end: int, position: int) -> Halt:
    """The target's log ends before the offset up to which it has acknowledged records."""
    message = (
        f"{target} ends at offset {end}, but {position - end} more records were acknowledged:"
        " the target topic was truncated or recreated"
    )
    return _at(target, "target_truncated", message, "restore the target topic, or mirror into a new one")


def target_filled(topic: str, target_topic: str, records: int, *, unproven: str = "") -> Halt:
    """A copy would begin in a topic that holds records; ``unproven``: why it is not known to be a copy with the same offsets."""
    message = filled_message(target_topic, records)
    return Halt(topic, f"{message}: {unproven}" if unproven else message, UNPROVEN_HINT if unproven else FILLED_HINT, "target_filled")


def filled_message(target_topic: str, records: int) -> str:
    """Why a copy does not begin in a topic that is not empty."""
    return f"target topic {target_topic} already holds {records:,} records that are not in this mirror's ledger"


def target_claimed(topic: str, message: str) -> Halt:
    """Another mirror writes the target topic; the ``message`` names both."""
    return Halt(topic, message, CLAIMED_HINT, "target_claimed")


def foreign_writer(target: TopicPartition, offset: int) -> Halt:
    """The target's log holds records of another writer."""
    message = f"{target} holds records at offset {offset} that this mirror did not write"
    hint = "the mirror must be the only writer of a mirrored topic: stop the other producer and mirror into a new topic"
    return _at(target, "foreign_writer", message, hint)


def displaced(target: TopicPartition, offset: int, expected: int) -> Halt:
    """The target has acknowledged a batch at another offset than expected: it holds records of another writer."""
    message = f"{target} put a batch at offset {offset} where {expected} was expected: another producer writes to the target topic"
    return _at(target, "foreign_writer", message, "stop the other producer; the mirror must be the only writer of a mirrored topic")


def fill_too_large(target: TopicPartition, offsets: int, most: int) -> Halt:
    """Offsets without a record, that the target would need markers for (``offsets: exact``), are too many."""
    message = f"{target}: {offsets:,} offsets without a record come next; at most {most:,} are filled so that offsets stay equal"
    hint = "copy it with `offsets: translated` in a mirror of its own, or begin later: `start`; so late a start needs DELETE on the topic"
    return _at(target, "fill_too_large", message, hint)


def markers_refused(target: TopicPartition) -> Halt:
    """The target does not let this principal write the markers that fill holes (``offsets: exact``)."""
    message = f"{target}: the target refuses the markers that keep offsets equal: CLUSTER_AUTHORIZATION_FAILED (31)"
    hint = "grant ALTER on its cluster: kafka-acls --add --allow-principal User:NAME --operation Alter --cluster"
    return _at(target, "markers_refused", message, hint, again=True)


def target_ahead(topic: str, target: TopicPartition, end: int, start: int) -> Halt:
    """The target's log ends after the first offset to copy, so no offset could be equal (``offsets: exact``)."""
    message = f"{target} ends at offset {end}, the copy begins at source offset {start}: offsets cannot be exact there"
    return Halt(topic, message, "copy into a new target topic, see docs/exact-offsets.md", "target_ahead", target.partition)


def sequence_gap(target: TopicPartition, offset: int, sequence: int, expected: int) -> Halt:
    """The target's log lacks a batch between others of this mirror."""
    message = (
        f"{target} holds a batch with sequence {sequence} at offset {offset} where {expected} was expected:"
        " batches before it are missing"
    )
    return _at(target, "sequence_gap", message, "mirror into a new topic and report this")


def tail_deleted(target: TopicPartition, offset: int) -> Halt:
    """Records after our last known one are gone from a topic with several writers, and no broker remembers whether some were ours."""
    message = (
        f"{target}: records after offset {offset} were deleted before this mirror, which was interrupted while it sent,"
        " could see whether some were its own"
    )
    return _at(target, "tail_deleted", message, "mirror into a new topic: what was sent last cannot be known any more")


def copy_differs(mirror: str, place: TopicPartition, source_offset: int | None, kind: str, count: int) -> Halt:
    """The target's records are not those that were staged; ``place`` and ``source_offset`` are those of the first difference."""
    where = "" if source_offset is None else f" at source offset {source_offset}"
    message = (
        f"the copy of {place.topic} differs from what was read: partition {place.partition}{where} is {kind} on the target"
        f" ({count} differences found); its spans stay in the buffer"
    )
    options = f"--mirror {mirror} --topic {place.topic}"
    hint = f"mirror verify {options} lists them, mirror repair {options} writes missing or altered records into a side topic"
    return _at(place, "copy_differs", message, hint)


# Target topics that cannot be made or are not ready.


BEGINS_THEN = "`mirror plan` shows whether that is mended; the copy then begins by itself"


def blocked(topic: str, blockers: tuple[str, ...]) -> Halt:
    """The topic's plan has blockers."""
    return Halt(topic, "; ".join(blockers), BEGINS_THEN)


def settings_refused(topic: str, target_topic: str, alias: str) -> Halt:
    """The target refuses every form of the topic's settings."""
    return Halt(topic, f"cluster {alias} refuses every form of the settings of topic {target_topic}", BEGINS_THEN)


def target_smaller(topic: str, target_topic: str, partitions: int, wanted: int) -> Halt:
    """The target topic has fewer partitions than its source."""
    message = f"topic {target_topic} has {partitions} partitions, its source {wanted}: another process has just created it"
    return Halt(topic, message, "run again")


def without_leaders(topic: str, target_topic: str, alias: str, seconds: float) -> Halt:
    """Partitions of a target topic have no leader in time."""
    message = f"topic {target_topic} on cluster {alias} has partitions without a leader after {seconds:.0f} s"
    return Halt(topic, message, "check the brokers of that cluster")


def not_begun(topic: str, error: MirrorError) -> Halt:
    """A topic's copy cannot begin, for the reason that an error names."""
    return error.halt if isinstance(error, TopicHalted) else Halt(topic, error.message, error.hint or BEGINS_THEN)


# The buffer, brokers, this program.


def buffer_gap(topic: str, target: TopicPartition, error: ValueError) -> Halt:
    """The buffer does not hold what the target's log says was sent."""
    return Halt(topic, f"{target}: {error}", "was the buffer folder exchanged or emptied by hand?", "buffer_gap")


def buffer_damaged(target: TopicPartition, error: MirrorError) -> Halt:
    """A staged batch fails its checksum."""
    message = f"the buffer holds a damaged batch for {target}: {error.message}"
    hint = "check the buffer's disk; remove the lane's `spans` folder to read the rest from the source again"
    return _at(target, "buffer_damaged", message, hint)


def refused(place: TopicPartition, error: BrokerError) -> Halt:
    """A broker refuses a partition, for longer than a moment; the code is the error's name in lower case."""
    return _at(place, error.name.lower(), f"{place}: {error.message}", error.hint, again=error.name not in FENCED)


def refused_topic(topic: str, error: BrokerError) -> Halt:
    """The same of a topic, or where the error names the partition itself."""
    return Halt(topic, error.message, error.hint, error.name.lower(), again=error.name not in FENCED)


def internal(place: TopicPartition, error: Exception) -> Halt:
    """An internal error in one partition's work: the others continue.

    Call it where the exception is handled. The halt carries the traceback from a task to the driver, which logs it
    with :func:`log_internal`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    message = f"{place}: unexpected {type(error).__name__}{': ' if text else ''}{text}{where}"
    hint = "an error in mirror-pipeline: report it with the traceback in the log"
    return replace(_at(place, "internal", message, hint, again=True), trace="".join(traceback.format_exception(error)))


def log_internal(halt: Halt) -> None:
    """Log the traceback of an ``internal`` halt; other halts explain themselves."""
    if halt.trace:
        log.error("topic_halted topic=%s code=%s: %s\n%s", halt.topic, halt.code, halt.message, halt.trace)


def accept_command(mirror: str, topic: str, code: str) -> str:
    """The command that accepts a halt; "" when only fixing its cause helps."""
    if code not in ACCEPTABLE:
        return ""
    return shlex.join(["mirror", "resolve", "--mirror", mirror, "--topic", topic, "--accept", code])


def accept_hint(mirror: str, topic: str, code: str) -> str:
    """The same as a sentence."""
    command = accept_command(mirror, topic, code)
    return f"to {MEANING[code]}: {command}" if command else ""
