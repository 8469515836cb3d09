"""Every error code of Kafka 4.3 (``org.apache.kafka.common.protocol.Errors``): name, what a mirror does, what an operator can do.

Where Kafka's own clients send again after an unknown outcome, a mirror reads the target's tail first: the broker's
duplicate detection expires by record time (KIP-98), and mirrored records are old.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from mirror_pipeline.errors import BrokerError


class Action(StrEnum):
    """What to do after an error code."""

    NONE = "none"  # no error
    RETRY = "retry"  # same request to the same broker, after a pause: it was not carried out
    REFRESH = "refresh"  # new metadata, then again: it was not carried out
    UNKNOWN_OUTCOME = "unknown_outcome"  # may have been carried out: read the target's tail before anything is sent
    RESEEK = "reseek"  # the offset is not in the log: compare with log start and end
    HALT = "halt"  # this topic cannot continue, the others can
    FENCED = "fenced"  # another writer has taken over our producer id: this lane must stop
    FATAL = "fatal"  # nothing on this cluster can continue until an operator acts


class Code(NamedTuple):
    """One error code."""

    code: int
    name: str
    action: Action
    hint: str


UNSUPPORTED_VERSION = 35
CLUSTER_AUTHORIZATION_FAILED = 31
NETWORK_EXCEPTION = 13
LEADER_NOT_AVAILABLE = 5
MESSAGE_TOO_LARGE = 10
OUT_OF_ORDER_SEQUENCE = 45
UNREACHED = frozenset((LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION))
"""Errors that say nothing of the partition: its leader has not been asked."""
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REPLICATION_FACTOR = 38
UNKNOWN_TOPIC_ID = 100
THROTTLING_QUOTA_EXCEEDED = 89

_N, _R, _M, _U = Action.NONE, Action.RETRY, Action.REFRESH, Action.UNKNOWN_OUTCOME
_S, _H, _F, _X = Action.RESEEK, Action.HALT, Action.FENCED, Action.FATAL

_GROUP = "concerns consumer groups; check the group in the target cluster"
_TRANSACTION = "concerns transactions, which a mirror does not use; report it"
_TOKEN = "concerns delegation tokens, which a mirror does not use; check security.mechanism"  # noqa: S105 - not a secret
_RIGHTS = "grant READ and DESCRIBE on the source topic, or WRITE, READ and DESCRIBE on the target topic; see `mirror check`"
_TIMES = "set message.timestamp.before.max.ms and message.timestamp.after.max.ms of the target topic to 9223372036854775807"
_TAKEN = "another run has taken over this lane's producer id; make sure that only one runs"
_REBORN = "the topic was deleted or recreated, or another broker answers at this address; it is looked up again automatically"
_SESSION = "concerns fetch sessions, which a mirror does not use; report it"
_BROKERS = "concerns brokers and controllers among themselves; check the brokers' logs"
_SHARE = "concerns share groups, which a mirror does not use; report it"
_STREAMS = "concerns Kafka Streams groups, which a mirror does not use; report it"
_TELEMETRY = "concerns client telemetry, which a mirror does not use; report it"
_ADMIN = "an administrative request was refused; see the message and the cluster's state"
_MOVED = "leadership moved; it is looked up again automatically, if it persists check the brokers' health"
_REPORT = "the broker found the request malformed; report it with the brokers' versions"

_TABLE: tuple[tuple[int, str, Action, str], ...] = (
    (-1, "UNKNOWN_SERVER_ERROR", _U, "internal error of the broker; check the brokers' logs"),
    (0, "NONE", _N, "no error"),
    (1, "OFFSET_OUT_OF_RANGE", _S, "the source deleted or truncated this offset; see retention.ms of the topic and `mirror gaps`"),
    (2, "CORRUPT_MESSAGE", _H, "the broker found the batch corrupt, or a record without key on a compacted topic; compare cleanup.policy"),
    (3, "UNKNOWN_TOPIC_OR_PARTITION", _M, "no such topic or partition, or this user may not see it; check its name and the DESCRIBE right"),
    (4, "INVALID_FETCH_SIZE", _H, _REPORT),
    (5, "LEADER_NOT_AVAILABLE", _M, "no leader is elected; bring the partition's brokers up"),
    (6, "NOT_LEADER_OR_FOLLOWER", _M, _MOVED),
    (7, "REQUEST_TIMED_OUT", _U, "the brokers did not finish in time; check replication on the target, or raise the request timeout"),
    (8, "BROKER_NOT_AVAILABLE", _M, "a broker is down; bring it up"),
    (9, "REPLICA_NOT_AVAILABLE", _M, "a replica is not up; bring its broker up"),
    (10, "MESSAGE_TOO_LARGE", _H, "raise max.message.bytes of the target topic to at least the source's"),
    (11, "STALE_CONTROLLER_EPOCH", _M, _BROKERS),
    (12, "OFFSET_METADATA_TOO_LARGE", _H, _GROUP),
    (13, "NETWORK_EXCEPTION", _U, "the connection broke; check the network and the broker's health"),
    (14, "COORDINATOR_LOAD_IN_PROGRESS", _R, "the coordinator is loading; the request is retried automatically"),
    (15, "COORDINATOR_NOT_AVAILABLE", _M, "the coordinator is not up; check the brokers of the internal topics"),
    (16, "NOT_COORDINATOR", _M, "the coordinator moved; it is looked up again automatically"),
    (17, "INVALID_TOPIC_EXCEPTION", _H, "the topic's name is not allowed or it is internal; change naming in mirror.yaml"),
    (18, "RECORD_LIST_TOO_LARGE", _H, "raise segment.bytes of the target topic to at least the source's"),
    (19, "NOT_ENOUGH_REPLICAS", _R, "fewer in-sync replicas than min.insync.replicas; bring the target's brokers up"),
    (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", _U, "written, but not replicated in time; bring the target's brokers up"),
    (21, "INVALID_REQUIRED_ACKS", _X, _REPORT),
    (22, "ILLEGAL_GENERATION", _H, _GROUP),
    (23, "INCONSISTENT_GROUP_PROTOCOL", _H, _GROUP),
    (24, "INVALID_GROUP_ID", _H, _GROUP),
    (25, "UNKNOWN_MEMBER_ID", _H, _GROUP),
    (26, "INVALID_SESSION_TIMEOUT", _H, _GROUP),
    (27, "REBALANCE_IN_PROGRESS", _R, _GROUP),
    (28, "INVALID_COMMIT_OFFSET_SIZE", _H, _GROUP),
    (29, "TOPIC_AUTHORIZATION_FAILED", _H, _RIGHTS),
    (30, "GROUP_AUTHORIZATION_FAILED", _H, "grant READ on the group; `mirror check` prints the command"),
    (31, "CLUSTER_AUTHORIZATION_FAILED", _X, "grant IDEMPOTENT_WRITE (brokers before 2.8) on the cluster; see `mirror check`"),
    (32, "INVALID_TIMESTAMP", _H, _TIMES),
    (33, "UNSUPPORTED_SASL_MECHANISM", _X, "set security.mechanism to one that the listener has enabled"),
    (34, "ILLEGAL_SASL_STATE", _X, "set security.protocol to match the listener: a SASL listener needs SASL_SSL or SASL_PLAINTEXT"),
    (35, "UNSUPPORTED_VERSION", _X, "the broker is too old or too new for this request; see the versions named"),
    (36, "TOPIC_ALREADY_EXISTS", _H, "the topic exists already; see `mirror plan`"),
    (37, "INVALID_PARTITIONS", _H, "the partition count is not possible; compare the partition counts of both topics"),
    (38, "INVALID_REPLICATION_FACTOR", _H, "the target has too few brokers for this replication factor"),
    (39, "INVALID_REPLICA_ASSIGNMENT", _H, _ADMIN),
    (40, "INVALID_CONFIG", _H, "a topic setting is not valid on the target; see the message for which"),
    (41, "NOT_CONTROLLER", _M, "the controller moved; it is looked up again automatically"),
    (42, "INVALID_REQUEST", _H, _REPORT),
    (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", _H, "the topic's message format is too old for this; raise it on the broker"),
    (44, "POLICY_VIOLATION", _H, "a policy of the cluster refuses this; ask who runs it, or create the topic beforehand"),
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", _U, "the batch does not follow the last one; the target's end is read to find out why"),
    (46, "DUPLICATE_SEQUENCE_NUMBER", _U, "the batch was written before; the target's end is read to find where"),
    (47, "INVALID_PRODUCER_EPOCH", _F, _TAKEN),
    (48, "INVALID_TXN_STATE", _H, _TRANSACTION),
    (49, "INVALID_PRODUCER_ID_MAPPING", _H, _TRANSACTION),
    (50, "INVALID_TRANSACTION_TIMEOUT", _H, _TRANSACTION),
    (51, "CONCURRENT_TRANSACTIONS", _R, _TRANSACTION),
    (52, "TRANSACTION_COORDINATOR_FENCED", _H, _TRANSACTION),
    (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _X, "grant WRITE and DESCRIBE on the transactional id"),
    (54, "SECURITY_DISABLED", _X, "the cluster has no authorizer; remove what needs one"),
    (55, "OPERATION_NOT_ATTEMPTED", _R, _ADMIN),
    (56, "KAFKA_STORAGE_ERROR", _M, "a broker's disk failed; check its log and replace the disk"),
    (57, "LOG_DIR_NOT_FOUND", _H, _BROKERS),
    (58, "SASL_AUTHENTICATION_FAILED", _X, "check user name, password and mechanism of this cluster in mirror.yaml"),
    (59, "UNKNOWN_PRODUCER_ID", _U, "the target no longer knows the mirror's producer id; its end is read before anything is sent"),
    (60, "REASSIGNMENT_IN_PROGRESS", _R, "a partition reassignment is in progress; wait until it ends"),
    (61, "DELEGATION_TOKEN_AUTH_DISABLED", _X, _TOKEN),
    (62, "DELEGATION_TOKEN_NOT_FOUND", _X, _TOKEN),
    (63, "DELEGATION_TOKEN_OWNER_MISMATCH", _X, _TOKEN),
    (64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", _X, _TOKEN),
    (65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", _X, _TOKEN),
    (66, "DELEGATION_TOKEN_EXPIRED", _X, _TOKEN),
    (67, "INVALID_PRINCIPAL_TYPE", _X, _TOKEN),
    (68, "NON_EMPTY_GROUP", _H, _GROUP),
    (69, "GROUP_ID_NOT_FOUND", _H, _GROUP),
    (70, "FETCH_SESSION_ID_NOT_FOUND", _R, _SESSION),
    (71, "INVALID_FETCH_SESSION_EPOCH", _R, _SESSION),
    (72, "LISTENER_NOT_FOUND", _M, "the leader has no listener of this name; compare listeners and advertised.listeners of all brokers"),
    (73, "TOPIC_DELETION_DISABLED", _H, "set delete.topic.enable on the brokers"),
    (74, "FENCED_LEADER_EPOCH", _M, _MOVED),
    (75, "UNKNOWN_LEADER_EPOCH", _M, _MOVED),
    (76, "UNSUPPORTED_COMPRESSION_TYPE", _H, "the broker is too old for this compression (zstd needs Kafka 2.1); recompress on the source"),
    (77, "STALE_BROKER_EPOCH", _M, _BROKERS),
    (78, "OFFSET_NOT_AVAILABLE", _R, "the new leader is still catching up; the request is retried automatically"),
    (79, "MEMBER_ID_REQUIRED", _R, _GROUP),
    (80, "PREFERRED_LEADER_NOT_AVAILABLE", _M, _ADMIN),
    (81, "GROUP_MAX_SIZE_REACHED", _H, _GROUP),
    (82, "FENCED_INSTANCE_ID", _H, _GROUP),
    (83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", _M, "no replica is eligible to lead; bring the partition's brokers up"),
    (84, "ELECTION_NOT_NEEDED", _N, "the partition needs no leader election; nothing to do"),
    (85, "NO_REASSIGNMENT_IN_PROGRESS", _N, "no reassignment is in progress; nothing to do"),
    (86, "GROUP_SUBSCRIBED_TO_TOPIC", _H, "stop the group's consumers first"),
    (87, "INVALID_RECORD", _H, "the target refuses a record; compare cleanup.policy (compacted topics need keys) and timestamp settings"),
    (88, "UNSTABLE_OFFSET_COMMIT", _R, "a transaction on these offsets is open; wait for its end"),
    (89, "THROTTLING_QUOTA_EXCEEDED", _R, "the cluster's quota for such changes is used up; the request is retried automatically"),
    (90, "PRODUCER_FENCED", _F, _TAKEN),
    (91, "RESOURCE_NOT_FOUND", _H, _ADMIN),
    (92, "DUPLICATE_RESOURCE", _H, _ADMIN),
    (93, "UNACCEPTABLE_CREDENTIAL", _X, _ADMIN),
    (94, "INCONSISTENT_VOTER_SET", _X, _BROKERS),
    (95, "INVALID_UPDATE_VERSION", _H, _ADMIN),
    (96, "FEATURE_UPDATE_FAILED", _H, _ADMIN),
    (97, "PRINCIPAL_DESERIALIZATION_FAILURE", _X, _BROKERS),
    (98, "SNAPSHOT_NOT_FOUND", _X, _BROKERS),
    (99, "POSITION_OUT_OF_RANGE", _X, _BROKERS),
    (100, "UNKNOWN_TOPIC_ID", _M, _REBORN),
    (101, "DUPLICATE_BROKER_REGISTRATION", _X, _BROKERS),
    (102, "BROKER_ID_NOT_REGISTERED", _X, _BROKERS),
    (103, "INCONSISTENT_TOPIC_ID", _M, _REBORN),
    (104, "INCONSISTENT_CLUSTER_ID", _X, "another cluster answers at this address; compare bootstrap_servers in mirror.yaml"),
    (105, "TRANSACTIONAL_ID_NOT_FOUND", _H, _TRANSACTION),
    (106, "FETCH_SESSION_TOPIC_ID_ERROR", _R, _SESSION),
    (107, "INELIGIBLE_REPLICA", _R, _BROKERS),
    (108, "NEW_LEADER_ELECTED", _M, _BROKERS),
    (109, "OFFSET_MOVED_TO_TIERED_STORAGE", _S, "the offset lies in tiered storage; check the topic's remote storage"),
    (110, "FENCED_MEMBER_EPOCH", _H, _GROUP),
    (111, "UNRELEASED_INSTANCE_ID", _H, _GROUP),
    (112, "UNSUPPORTED_ASSIGNOR", _H, _GROUP),
    (113, "STALE_MEMBER_EPOCH", _R, _GROUP),
    (114, "MISMATCHED_ENDPOINT_TYPE", _X, "bootstrap_servers names a controller; give the brokers' addresses"),
    (115, "UNSUPPORTED_ENDPOINT_TYPE", _X, "bootstrap_servers names another kind of endpoint; give the brokers' addresses"),
    (116, "UNKNOWN_CONTROLLER_ID", _M, _BROKERS),
    (117, "UNKNOWN_SUBSCRIPTION_ID", _H, _TELEMETRY),
    (118, "TELEMETRY_TOO_LARGE", _H, _TELEMETRY),
    (119, "INVALID_REGISTRATION", _X, _BROKERS),
    (120, "TRANSACTION_ABORTABLE", _H, _TRANSACTION),
    (121, "INVALID_RECORD_STATE", _H, _SHARE),
    (122, "SHARE_SESSION_NOT_FOUND", _R, _SHARE),
    (123, "INVALID_SHARE_SESSION_EPOCH", _R, _SHARE),
    (124, "FENCED_STATE_EPOCH", _H, _SHARE),
    (125, "INVALID_VOTER_KEY", _X, _BROKERS),
    (126, "DUPLICATE_VOTER", _X, _BROKERS),
    (127, "VOTER_NOT_FOUND", _X, _BROKERS),
    (128, "INVALID_REGULAR_EXPRESSION", _H, "the regular expression is not valid on the broker"),
    (129, "REBOOTSTRAP_REQUIRED", _M, "the known brokers are out of date; the bootstrap servers are asked again automatically"),
    (130, "STREAMS_INVALID_TOPOLOGY", _H, _STREAMS),
    (131, "STREAMS_INVALID_TOPOLOGY_EPOCH", _H, _STREAMS),
    (132, "STREAMS_TOPOLOGY_FENCED", _H, _STREAMS),
    (133, "SHARE_SESSION_LIMIT_REACHED", _R, _SHARE),
)

CODES: dict[int, Code] = {row[0]: Code(*row) for row in _TABLE}


def lookup(code: int) -> Code:
    """What is known about ``code``; a code newer than this program halts the topic rather than being retried."""
    return CODES.get(code) or Code(code, f"ERROR_{code}", _H, "newer than mirror-pipeline; look it up in Kafka's documentation")


def after_produce(code: int) -> Action:
    """The action for a code in a produce answer.

    A leader that appended the batch and lost the partition while it waited for the replicas answers as one that
    never had it (NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION; Kafka's DelayedProduce),
    so what is a refresh elsewhere is an unknown outcome here.
    """
    action = lookup(code).action
    return _U if action is _M else action


def broker_error(code: int, context: str, detail: str | None = None) -> BrokerError:
    """A BrokerError with the code's name and hint; ``context`` says which request to whom, ``detail`` is the broker's own text."""
    known = lookup(code)
    text = f"{context}: {known.name}" + (f": {detail}" if detail else "")
    return BrokerError(code, known.name, text, hint=known.hint, retryable=known.action in {_R, _M})
