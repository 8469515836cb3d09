"""The shape of mirror.yaml. Descriptions here become the JSON Schema and docs/configuration.md.

Over 300 lines: one declaration per key, in the order of the file.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from mirror_pipeline.config.fields import Addresses, Channel, Duration, Hours, Naming, Options, Patterns, Secret, Size, Start, Text, setting
from mirror_pipeline.config.settings import KEPT_BY_TARGET


class Section(BaseModel):
    """A block of mirror.yaml: a key that is not listed is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)


class SecurityModel(Section):
    """How to connect to a cluster. One block serves both client stacks."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT",
        "Transport and authentication, as the broker's listener has it.",
        "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        example="SASL_SSL",
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = setting(
        None,
        "SASL mechanism; required with a SASL protocol. PLAIN sends the password in clear text and is accepted with SASL_SSL only.",
        "one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        example="SCRAM-SHA-512",
    )
    username: Text | None = setting(
        None, "SASL user name, or a reference to it; required with a SASL protocol.", "text or secret reference", example="mirror"
    )
    password: Secret | None = setting(
        None, "SASL password, by reference only; required with a SASL protocol.", "secret reference", example="${env:EAST_PASSWORD}"
    )
    ca_file: Text | None = setting(
        None,
        "PEM file with the authorities that may sign the brokers' certificates. Without it those of the system are used.",
        "path",
        example="certs/ca.pem",
    )
    cert_file: Text | None = setting(None, "PEM file with this client's certificate (mutual TLS).", "path", example="certs/mirror.pem")
    key_file: Text | None = setting(None, "PEM file with the key of `cert_file`.", "path", example="certs/mirror.key")
    key_password: Secret | None = setting(
        None, "Password of `key_file`, by reference only.", "secret reference", example="${file:secrets/key-password}"
    )
    verify_hostname: bool = setting(
        True,
        "Whether the broker's certificate must name the host that the client connects to.",
        "true or false",
        example="true",
        strict=True,
    )


class ClusterModel(Section):
    """A Kafka cluster under an alias. The alias is the key; letters, digits, `_` and `-`."""

    bootstrap_servers: Addresses = setting(
        ...,
        "Addresses of the first connection: `host:port`, several separated by commas or as a list. May hold `${env:NAME}`.",
        "text or list of text",
        example='"broker1:9092,broker2:9092"',
    )
    security: SecurityModel = setting(SecurityModel(), "How to connect, see [security](#security).", "section")
    client: Options = setting(
        {},
        "Further librdkafka properties for the administrative client (metadata, topics, configs). "
        "The data path has its own transport and reads only client.id and the socket buffer sizes. "
        "An unknown property is an error when the client is created. Addresses and security belong in the keys above. "
        "Values of keys that hold secrets must be references.",
        "mapping of property to value",
        example="{socket.keepalive.enable: true}",
    )


class TopicConfigsModel(Section):
    """Settings of target topics follow their source's while the mirror runs."""

    sync: bool = setting(
        True,
        "Whether settings are kept in step. With `false`, or with `topics.manage: false`, they are set only when a topic is created.",
        "true or false",
        example="false",
        strict=True,
    )
    exclude: Patterns = setting(
        list(KEPT_BY_TARGET),
        "Settings that are left to the target: regexes on the whole name. A list of your own replaces the default.",
        "list of regexes",
        example='["min\\\\.insync\\\\.replicas", "retention\\\\..*"]',
    )
    defaults_from: Literal["target", "source"] = setting(
        "target",
        "What a setting becomes that the source topic does not have of its own: `target` leaves it to the target's default, `source` "
        "sets the value in force on the source, also over settings that the target topic has of its own.",
        "target or source",
        example="source",
    )
    interval: Duration = setting("30s", "Time between two comparisons of all topics.", "duration", example="1m", ge=1, le=3600)


class TopicAclsModel(Section):
    """ACLs of target topics follow their source's while the mirror runs, as far as they are about reading."""

    sync: bool = setting(
        False,
        "Whether ACLs of the source's topics are carried to their copies. They are compared as often as `configs.interval` says.",
        "true or false",
        example="true",
        strict=True,
    )


class TopicsModel(Section):
    """Which topics of the source are mirrored, and what may be changed on the target.

    A regex must match the whole topic name. Internal topics (`__*`) are never mirrored.
    """

    include: Patterns = setting(
        ..., "Topics to mirror: Python regexes on the whole name.", "list of regexes", example='["orders", "payments\\\\..*"]', min_length=1
    )
    exclude: Patterns = setting([], "Topics to leave out; wins over `include`.", "list of regexes", example='[".*\\\\.internal"]')
    originals_only: bool = setting(
        False,
        "Whether copies are left out: topics that a mirror wrote to the source cluster, by their names (`west.orders` where `west` is a "
        "cluster of this file, and every name that a mirror of this file gives) or by the ledgers of this file's mirrors. With it a "
        'further cluster joins with `include: [".*"]`, and no record reaches it twice, see [patterns](patterns.md).',
        "true or false",
        example="true",
        strict=True,
    )
    manage: bool = setting(
        True,
        "Whether the mirror creates missing target topics and adds missing partitions. With `false` such a topic "
        "halts, with the command that resolves it.",
        "true or false",
        example="false",
        strict=True,
    )
    replication_factor: int | None = setting(
        None,
        "Replicas of target topics the mirror creates. Without it: the target's `default.replication.factor` if that is more than 1, "
        "else 3, or the number of target brokers if that is smaller. Brokers that are down count, and a new topic waits for them.",
        "number",
        unit="replicas",
        example="3",
        ge=1,
        le=100,
        strict=True,
    )
    on_source_delete: Literal["halt", "keep", "delete"] = setting(
        "halt",
        "What a topic does that was deleted on the source, once what was read of it is on the target: `halt` as `source_gone` until a "
        "person accepts it; `keep` marks it as `ended`, which is no alarm, and its copy stays; `delete` deletes its copy too, once all of "
        "it is delivered and verified, see [deleted topics](troubleshooting.md#a-source-topic-was-deleted).",
        "halt, keep or delete",
        example="keep",
    )
    follow_trim: bool = setting(
        False,
        "With `offsets: exact`: whether records that the source has deleted (retention, DeleteRecords) are deleted on the target too, so "
        "that both logs begin at the same offset. Needs DELETE on target topics. Nothing is deleted while the source has deleted records "
        "that were not copied.",
        "true or false",
        example="true",
        strict=True,
    )
    configs: TopicConfigsModel = setting(TopicConfigsModel(), "Settings of target topics, see [configs](#configs).", "section")
    acls: TopicAclsModel = setting(TopicAclsModel(), "ACLs of target topics, see [acls](#acls).", "section")


class GroupsModel(Section):
    """Consumer groups whose committed offsets are translated and written on the target, see [offsets](offsets.md#consumer-groups)."""

    include: Patterns = setting([], "Groups to carry over: regexes on the whole name.", "list of regexes", example='[".*"]')
    exclude: Patterns = setting([], "Groups to leave out; wins over `include`.", "list of regexes", example='["console-consumer-.*"]')
    interval: Duration = setting("10s", "Time between two rounds over all groups.", "duration", example="5s", ge=1, le=3600)


class EngineModel(Section):
    """How much is read at a time, and where the work runs.

    The block stands at the top for all mirrors, or inside a mirror, where single keys override.
    """

    micro_batch_bytes: Size = setting(
        "128MB",
        "Maximum bytes that one micro-batch reads from the source. Without it: 128MB, or a quarter of `buffer.max_bytes` if smaller.",
        "size",
        unit="bytes",
        example="64MB",
        ge=1_000_000,
    )
    inline_bytes: Size | None = setting(
        None,
        "A micro-batch up to this size is run by the mirror's own process; Spark runs larger ones. Spark starts once these have brought,"
        " or have waiting, 256 times this size. `0` gives every micro-batch to Spark. Without it: 8MB.",
        "size",
        unit="bytes",
        example="0",
        ge=0,
    )
    max_batch_age: Duration = setting("10s", "A micro-batch is closed after this time even if it is small.", "duration", example="2s")
    tasks: int | None = setting(
        None,
        "Spark tasks that read, and that write, at the same time. Without it: one for each core Spark has.",
        "number",
        unit="tasks",
        example="8",
        ge=1,
        le=10_000,
        strict=True,
    )
    fetch_max_bytes: Size = setting(
        "32MiB",
        "Maximum bytes of one fetch request; bounds the memory of a task.",
        "size",
        unit="bytes",
        example="8MiB",
        ge=65_536,
        le=1_000_000_000,
    )
    connections: int | None = setting(
        None,
        "Connections of each reading task to each source broker. Without it: two; on a long link "
        "the number adapts to round-trip time and measured throughput.",
        "number",
        unit="connections",
        example="32",
        ge=1,
        le=512,
        strict=True,
    )
    bandwidth: Size | None = setting(
        None,
        "Maximum bytes a second that are read from the source, per lane. Without it: no limit.",
        "size",
        unit="bytes a second",
        example="50MB",
        ge=10_000,
    )
    bandwidth_hours: Hours = setting(
        {},
        "Different limits at some hours of the day, in this machine's time; a range may span midnight, the first match counts.",
        "mapping of HH:MM-HH:MM to size",
        example='{"08:00-18:00": 20MB}',
    )
    request_timeout: Duration = setting(
        "30s", "How long one request to a broker may take before its connection is given up.", "duration", example="60s", ge=1, le=3600
    )
    poll_interval: Duration = setting(
        "200ms", "How long a run waits before it asks again when the source has no new records.", "duration", example="1s", le=3600
    )
    source_wait: Duration = setting(
        "60s",
        "How long `run --once` waits for a source that stopped responding. Continuous runs wait without limit.",
        "duration",
        example="5m",
    )
    target_wait: Duration = setting(
        "5m",
        "How long `run --once` waits for a target that stopped responding, and for each partition of which it takes nothing; staging"
        " continues. Continuous runs wait without limit.",
        "duration",
        example="1h",
    )
    lease: Duration = setting(
        "60s",
        "How long after its start a task may send to the target. A task that was suspended and resumes later sends nothing.",
        "duration",
        example="2m",
        ge=5,
        le=600,
    )
    spark_master: Text | None = setting(None, "Spark master URL. Without it: `local[*]`.", "text", example='"local[2]"')
    spark: Options = setting(
        {},
        "Further Spark properties for the session. Not a place for secrets: set those in `spark-defaults.conf` or the environment.",
        "mapping of property to value",
        example="{spark.driver.memory: 2g}",
    )


class MirrorModel(Section):
    """One directed flow: topics of a source cluster copied to a target cluster."""

    name: Text = setting(
        ...,
        "Name of the mirror; letters, digits, `_` and `-`. It names folders, Dagster assets and metrics: do not change it later.",
        "text",
        example="east-to-west",
    )
    source: Text = setting(..., "Alias of the cluster to read from.", "cluster alias", example="east")
    target: Text = setting(..., "Alias of the cluster to write to; not the source.", "cluster alias", example="west")
    sources: list[Text] = setting(
        [],
        "Aliases of further clusters that hold the source's topics with the same names and offsets: a backlog is read from all of them, "
        "see [several sources](exact-offsets.md#several-sources). With `offsets: exact`.",
        "list of cluster aliases",
        example="[north]",
    )
    topics: TopicsModel = setting(..., "Which topics, see [topics](#topics).", "section")
    naming: Naming = setting(
        "prefix",
        "Names on the target: `prefix` (`orders` becomes `east.orders`), `identity` (same name), a template "
        "with `{topic}` and optionally `{source}`, or a map or a regex for some of the topics, see "
        "[names by map and by regex](#names-by-map-and-by-regex).",
        "prefix, identity, template or mapping",
        example='"{source}-{topic}"',
    )
    offsets: Literal["translated", "exact"] = setting(
        "translated",
        "How offsets relate: `translated` keeps an exact map from source to target offsets. `exact` gives every record the same offset "
        "on both sides, see [exact offsets](exact-offsets.md).",
        "translated or exact",
        example="translated",
    )
    start: Start = setting(
        "earliest",
        "Where a topic that was never mirrored begins: `earliest`, `latest`, or a time: the first record with that time or a later one. "
        "`latest` is the end of the log when the mirror first sees the source. Topics that appear, or are selected, later are copied "
        "from their beginning. Or a mapping for some of the topics, see [start by topic](#start-by-topic).",
        "earliest, latest, a time or mapping",
        example="2026-03-01T00:00:00Z",
    )
    on_loss: Literal["halt", "record_gap"] = setting(
        "halt",
        "When records cannot be copied (the source deleted them before they were read, or one is larger than the target accepts): "
        "`halt` stops that topic with the reason; `record_gap` writes the missing offsets into the gap ledger and continues.",
        "halt or record_gap",
        example="record_gap",
    )
    lanes: int = setting(
        1,
        "Number of lanes over which new topics are spread. Each lane is a separate Dagster run. A topic keeps its first lane, so after "
        "this number is lowered the lanes beyond it still run, with the topics they have.",
        "number",
        unit="lanes",
        example="2",
        ge=1,
        le=64,
        strict=True,
    )
    writers: Literal["sole", "shared"] = setting(
        "sole",
        "Who writes the target topics. `sole`: this mirror alone; records of another writer halt the topic. `shared`: other mirrors that "
        "say `shared` too, and applications, see [patterns](patterns.md#fan-in-into-one-topic). A copy then begins in a topic that holds "
        "records, and settings of target topics are set only when this mirror creates them. Not with `offsets: exact`, `groups` or "
        "`reverse_of`.",
        "sole or shared",
        example="shared",
    )
    reverse_of: Text | None = setting(
        None,
        "Name of the mirror whose clusters this one has the other way round. It copies nothing until that mirror was failed over and "
        "`mirror failback` opens it, see [failover](failover.md); of the two only one copies a topic, so `naming: identity` is no loop.",
        "mirror name",
        example="east-to-west",
    )
    groups: GroupsModel | None = setting(None, "Consumer groups to carry over, see [groups](#groups). Without it: none.", "section")
    engine: EngineModel | None = setting(None, "Overrides of the [engine](#engine) keys for this mirror.", "section")


class BufferModel(Section):
    """Where data is stored between the source and the target."""

    uri: Text = setting(
        "./mirror_buffer",
        "Folder of the buffer; a relative path counts from the folder of mirror.yaml. Or `s3://bucket/prefix`, in a store that "
        "supports conditional puts; how to reach it comes from the environment (`AWS_ENDPOINT_URL`, `AWS_REGION`, "
        "`AWS_ACCESS_KEY_ID`, ...), see [object stores](buffer.md#object-stores). May hold `${env:NAME}`.",
        "path or s3:// URI",
        example="/data/mirror_buffer",
    )
    retention: Duration = setting(
        "24h", "How long staged data is kept after the target has it.", "duration", unit="whole seconds", example="2h", ge=1
    )
    archive: Duration | None = setting(
        None,
        "How long spans are kept after they were staged, counted beyond their delivery: when a span leaves the buffer it moves into the "
        "lane's [archive](buffer.md#the-archive), from which `mirror backfill` copies records that the source no longer has. Must be "
        "longer than `retention`. The archive does not count towards `max_bytes`. No archive by default.",
        "duration",
        unit="whole seconds",
        example="90d",
        ge=1,
    )
    max_bytes: Size = setting(
        "50GB",
        "Maximum bytes of the buffer on disk, all mirrors together. When it is full, reading pauses until data has reached the target.",
        "size",
        unit="bytes",
        example="200GB",
        ge=4_000_000,
    )
    durable: bool = setting(
        True,
        "Whether files are flushed to the disk before they count. With `false` writing is faster, and a power loss "
        "(not the end of a process) can leave the buffer unreadable. No effect in an object store.",
        "true or false",
        example="false",
        strict=True,
    )
    lease: Duration = setting(
        "30s",
        "Object stores only: how long a run that stopped renewing its lease keeps others from its lane. After a crash the next run waits "
        "that long; a store that is unreachable for longer pauses the run.",
        "duration",
        example="1m",
        ge=2,
        le=600,
    )


class NotifyModel(Section):
    """Messages about trouble, sent by `mirror exporter` or `mirror up`: one when a cause has lasted, one when it is over."""

    urls: list[Channel] = setting(
        [],
        "Where messages go, as [Apprise](https://github.com/caronc/apprise/wiki) addresses. Those with a password or token by reference "
        "only; `json://`, `jsons://` and `mailto://` without one may be written out.",
        "list of addresses or secret references",
        example='["${env:SLACK_ADDRESS}", "json://alerts.example.com/mirror"]',
    )
    after: Duration = setting(
        "2m", "How long a cause must last before it is told: shorter ones are never told.", "duration", example="30s", le=86_400
    )


class PageUserModel(Section):
    """Somebody who may use the page beside the owner, who has the token that `mirror up` or `mirror page` prints."""

    name: Text = setting(..., "As changes are signed in the ledger.", "text", example="anna")
    role: Literal["look", "change"] = setting(
        "look",
        "`look` sees the mirrors; `change` may do all that the owner may, and use Dagster's page.",
        "look or change",
        example="change",
    )
    token: Secret | None = setting(
        None, "16 characters or more, by reference only; not needed with `user_header`.", "secret reference", example="${env:ANNA_TOKEN}"
    )


class PageModel(Section):
    """Who may use the page of `mirror up` and `mirror page`, see [the page](security.md#the-page-of-mirror-up). Read at its start."""

    users: list[PageUserModel] = setting([], "Beside the owner, see [users](#users).", "list of sections")
    user_header: Text | None = setting(
        None,
        "Request header in which a proxy that authenticates says who the user is. It counts with `--no-token` only, and then only the "
        "`users` get in.",
        "text",
        example="X-Forwarded-User",
    )


class FileModel(Section):
    """Clusters, the flows between them, where data is staged, and how the work is done."""

    clusters: dict[str, ClusterModel] = setting(
        ..., "The Kafka clusters by alias, see [clusters](#clusters).", "mapping of alias to section", min_length=1
    )
    mirrors: list[MirrorModel] = setting(..., "The flows between them, see [mirrors](#mirrors).", "list of sections", min_length=1)
    buffer: BufferModel = setting(BufferModel(), "Where data is staged, see [buffer](#buffer).", "section")
    engine: EngineModel = setting(EngineModel(), "How the work is done, see [engine](#engine).", "section")
    notify: NotifyModel = setting(NotifyModel(), "Who is told of trouble, see [notify](#notify).", "section")
    page: PageModel = setting(PageModel(), "Who may use the page, see [page](#page).", "section")
