"""Input and output of a produce task; they cross into Spark and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirror_pipeline.buffer.place.place import LaneStore
from mirror_pipeline.config import ClusterSettings
from mirror_pipeline.engine.tasks.write.offset_map import Landed
from mirror_pipeline.halts import Halt
from mirror_pipeline.model import MarkerStamp, Position, SpanRef, Stamp, TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """Spans of one source partition to send to one target partition, from ``position`` on.

    ``producer_epoch`` is added to the stamp's epoch. ``shared``: other writers' records may lie between ours.
    """

    target: TopicPartition
    spans: tuple[SpanRef, ...]
    position: Position
    producer_epoch: int = 0
    shared: bool = False

    @property
    def bytes(self) -> int:
        """Size of the spans together."""
        return sum(span.bytes for span in self.spans)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Everything one produce task needs; picklable, free of secrets.

    ``lease`` is how many seconds after its start the task may still send (a process that is stopped and resumes
    later sends nothing); ``issued`` is the driver's wall clock: a task that starts too late sends nothing. ``ahead`` is by how many
    seconds the clocks of hosts that have run tasks are ahead of the driver's.
    ``markers``: with ``offsets: exact`` holes are filled up to the end of the spans, with markers of this stamp.
    After ``silence`` seconds without a byte from a broker the task gives up on it, and the outcome of its requests is unknown.
    """

    store: LaneStore
    cluster: ClusterSettings
    stamp: Stamp
    work: tuple[PartitionWork, ...]
    timeout: float
    lease: float
    issued: float
    request_bytes: int
    markers: MarkerStamp | None = None
    forgotten_before: int = 0
    silence: float | None = None
    ahead: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Records of the work that the target acknowledged, counted from the work's position.

    ``outcome_unknown`` says the target's tail must be read before anything is sent again; ``halt`` is final for the topic
    and names the target's partition. ``answered``: the error is the leader's answer, so the target is there. ``landed`` is where the
    records lie in a shared topic: target offset and count of each run. ``end`` is the target offset up to which the log is filled.
    """

    target: TopicPartition
    records: int
    bytes: int
    outcome_unknown: bool = False
    error: str = ""
    halt: Halt | None = None
    answered: bool = False
    landed: Landed = ()
    end: int = -1


@dataclass(frozen=True, slots=True)
class WriteResult:
    """One outcome for each partition of the task; ``silent`` maps brokers that let a request time out to the error.

    ``host`` and ``ahead``: whose clock was by how many seconds ahead of the driver's, as far as the task's own start tells.
    """

    outcomes: tuple[PartitionOutcome, ...]
    seconds: float
    silent: dict[int, str] = field(default_factory=dict)
    host: str = ""
    ahead: float = 0.0
