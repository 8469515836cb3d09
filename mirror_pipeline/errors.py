"""The error tree.

MirrorError                 everything this project raises on purpose
├── UsageError              the call or the configuration is wrong                      (exit 2)
│   └── ConfigError         mirror.yaml: which file, which line, what to write instead
├── ProblemFound            the work was done as asked and found a problem              (exit 1)
│   ├── NothingSelected     topic selection matches no topic
│   ├── LaneBusy            another run holds the lane
│   ├── LaneLost            another run has taken the lane over while this one did not renew it
│   ├── TopicHalted         one topic cannot continue; carries the reason and the command that resolves it
│   └── BufferUnusable      buffer folder missing, not writable, not a buffer
│       └── BufferDamaged   its content is not what was written
├── TaskLost                a Spark worker died: what its tasks did is unknown
├── SparkGone               Spark's JVM died; the run ends, the next one continues
├── ClusterUnreachable      no broker of a cluster answers in time                      (exit 3)
│   └── WrongCluster        every address that answers leads to another cluster
├── WireError               one request to a broker failed; `retryable` says whether asking again can help
│   ├── ConnectionLost      outcome unknown
│   │   ├── Stranger        a broker of another cluster answers at the address
│   │   └── NoTailYet       the leader answers, but its log and its memory of our producer do not agree yet
│   │       └── NotReplicated  the leader has the records, its replicas not yet: they may still be lost
│   ├── BrokerError         the broker answered with an error code
│   ├── CorruptBatch        bytes that are not a valid RecordBatch
│   │   └── RecordTooLarge  a single record is larger than a batch may be
│   └── TlsFailed           the broker's or the client's certificate is not accepted
├── StartFailed             an embedded broker ended or did not become ready
├── FetchFailed             jars could not be fetched
└── WrongChecksum           a fetched jar is not the one that was pinned
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirror_pipeline.halts import Halt
    from mirror_pipeline.reports import RunReport


class MirrorError(Exception):
    """Base of all errors raised on purpose: a one-line message, and a ``hint`` that says what to do."""

    exit_code = 1
    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), dict(self.__dict__)))


def _rebuild(kind: type[MirrorError], state: dict[str, object]) -> MirrorError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("message"))
    error.__dict__.update(state)
    return error


UNEXPECTED = 70
"""EX_SOFTWARE of sysexits.h: an error in this program, not in its input."""


def exit_code_of(error: BaseException) -> int:
    """The exit code of an error."""
    return error.exit_code if isinstance(error, MirrorError) else UNEXPECTED


class UsageError(MirrorError):
    """The command line or a call is wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """mirror.yaml is wrong; the message names file, line and key."""


class ProblemFound(MirrorError):
    """The work was done as asked and found a problem."""


class NothingSelected(ProblemFound):
    """The topic selection matches no topic."""


class LaneBusy(ProblemFound):
    """Another run holds this lane."""


class BufferUnusable(ProblemFound):
    """The buffer cannot be opened or written."""


class BufferDamaged(BufferUnusable):
    """The buffer's content is not what was written there: maintenance must not continue."""


class LaneLost(ProblemFound):
    """Another run has taken this lane over: this one must not touch it any more. A restarted run waits for its turn."""

    retryable = True


class TopicHalted(ProblemFound):
    """One topic cannot continue; the others do. Made by :meth:`mirror_pipeline.halts.Halt.error`."""

    def __init__(self, halt: Halt) -> None:
        super().__init__(halt.message, hint=halt.hint)
        self.halt = halt


class TaskLost(MirrorError):
    """A Spark worker died: whether its tasks did their work is unknown."""

    retryable = True


class SparkGone(MirrorError):
    """Spark's JVM died; nothing more can run in this process."""


class ClusterUnreachable(MirrorError):
    """No broker of a cluster answered in time.

    A run whose source stays silent first delivers what is staged; ``report`` then holds its result.
    """

    exit_code = 3
    retryable = True
    report: RunReport | None = None

    def __init__(self, cluster: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.cluster = cluster


class WrongCluster(ClusterUnreachable):
    """Every address that answers leads to another cluster than the one that is meant; ``cluster_id`` is that one's."""

    def __init__(self, cluster: str, message: str, cluster_id: str, *, hint: str = "") -> None:
        super().__init__(cluster, message, hint=hint)
        self.cluster_id = cluster_id


class WireError(MirrorError):
    """One request to a broker failed."""


class ConnectionLost(WireError):
    """The connection broke or timed out: whether the request was carried out is unknown.

    ``timed_out``: the broker neither answered nor refused, so asking it again costs the same time again.
    """

    retryable = True

    def __init__(self, message: str, *, hint: str = "", timed_out: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.timed_out = timed_out


class CorruptBatch(WireError):
    """Bytes that are not a valid RecordBatch."""


class Stranger(ConnectionLost):
    """A broker of another cluster answers at the address. Nothing of it is used: the request is sent elsewhere, or later."""

    def __init__(self, message: str, cluster_id: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.cluster_id = cluster_id


class BrokerError(WireError):
    """A broker answered with an error code (``code``, ``name``); ``kafka.codes`` maps it to an action."""

    def __init__(self, code: int, name: str, message: str, *, hint: str = "", retryable: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.name = name
        self.retryable = retryable
